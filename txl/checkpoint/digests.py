"""The digests of all files of a checkpoint, in a file that `sha256sum --check` reads; its last line
is its own digest.

While config.json and progress.json are written anew they have two digests each: a kill in between
leaves the checkpoint whole.
"""

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path

from txl.checkpoint.folder import damaged
from txl.files import NoFileError, content_of, written_whole

DIGESTS = "SHA256SUMS"
Digests = Mapping[str, Collection[str]]
"""Of each file, by its name, the SHA-256 that it may have."""


def digest_of(content: bytes) -> str:
    """Hex digest, SHA-256."""
    return hashlib.sha256(content).hexdigest()


def write_digests(folder: Path, digests: Digests) -> None:
    """Write the digests of a folder's files, whole or not at all."""
    lines = []
    for name in sorted(digests):
        for digest in sorted(digests[name]):
            lines.append(f"{digest}  {name}\n")
    body = "".join(lines).encode()
    with written_whole(folder / DIGESTS) as temporary:
        temporary.write_bytes(body + _own_line(body))


def read_digests(folder: Path) -> Digests | None:
    """The digests of a folder's files; None if it has none, as checkpoints of version 0.2 and
    before. Raises `UsageError` if they are damaged.
    """
    path = folder / DIGESTS
    try:
        content = content_of(path)
    except FileNotFoundError:
        return None
    except NoFileError as error:
        raise damaged(path, error.strerror) from None
    body = content[: content.rfind(b"#")]
    if content != body + _own_line(body):
        raise damaged(path)
    found: dict[str, set[str]] = {}
    for line in body.decode(errors="replace").splitlines():
        digest, _, name = line.partition("  ")
        if Path(name).name != name:  # not by us, and leads elsewhere
            raise damaged(path)
        found.setdefault(name, set()).add(digest)
    return found


def _own_line(body: bytes) -> bytes:
    """A comment to sha256sum."""
    return f"# {digest_of(body)} of the lines above\n".encode()
