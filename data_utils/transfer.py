"""One file over HTTP: resumed where it was cut, checked, and given its name only when it is
whole."""

import hashlib
import urllib.error
import urllib.request
from collections.abc import Sequence
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from txl.files import content_of, not_through_a_link

from .raw_text import DataError

TIMEOUT_S = 30.0
"""Of silence, after which a transfer counts as cut."""
TRIES = 5
"""Cuts in a row without a new byte before the next mirror is asked."""
_BLOCK = 1 << 16
_AGENT = {
    "User-Agent": "Mozilla/5.0 (compatible; txl data_utils)"
}  # some mirrors refuse Python's own


class Remote(NamedTuple):
    """A file that can be loaded.

    Attributes:
        name: of the file here.
        urls: where it is, tried in order.
        digest: see `fits`; empty: none is published.
    """

    name: str
    urls: Sequence[str]
    digest: str = ""


def fits(path: Path, digest: str) -> bool:
    """True if a file has this digest: `sha256:` or `md5:` and hex digits, or `lines:` and their
    number; empty: if it is not empty."""
    kind, _, expected = digest.partition(":")
    with path.open("rb") as file:
        if not kind:
            return bool(file.read(1))
        if kind == "lines":
            return sum(
                block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")
            ) == int(expected)
        return hashlib.file_digest(file, kind).hexdigest() == expected


def require_fit(path: Path, digest: str) -> None:
    """Raise `DataError` unless `fits`."""
    if not fits(path, digest):
        what = "is empty"
        if digest:
            what = f"is not the file of the data set ({digest})"
        raise DataError(f"{path}: {what}; move it away and start again")


class TransferError(Exception):
    """A mirror does not give the file; says why."""


def load(remote: Remote, folder: Path) -> bool:
    """Bring a file into `folder`; False if it was there. Raises `DataError` if no mirror gives it,
    with what to do."""
    target = folder / remote.name
    part = folder / f"{remote.name}.part"
    if target.exists():
        require_fit(target, remote.digest)
        return False
    reasons = []
    for url in remote.urls:
        try:
            _from_mirror(remote, url, part)
        except TransferError as error:
            reasons.append(f"{url}: {error}")
            continue
        part.replace(target)
        return True
    digest = ""
    if remote.digest:
        digest = f" ({remote.digest})"
    why = "; ".join(reasons)
    raise DataError(
        f"{remote.name}: cannot be loaded ({why}); put it{digest} into {folder} and start again"
    )


def _from_mirror(remote: Remote, url: str, part: Path) -> None:
    """Write the file to `part`. A beginning that another mirror, or an older try, left is gone on
    with: where there is a digest to check it by, or the server says by a mark, which is kept beside
    it, that it is of the same content."""
    mark = None
    if not remote.digest:
        mark = part.with_name(f"{part.name}.mark")
    n_try = 1
    if _size(part):  # the beginning may be at fault
        n_try = 2
    for _ in range(n_try):
        _until_whole(url, part, mark)
        if mark is not None:
            mark.unlink(missing_ok=True)
        if fits(part, remote.digest):
            return
        part.unlink()
    if remote.digest:
        raise TransferError(f"the file is another ({remote.digest} expected)")
    raise TransferError("the file is empty")


def _size(path: Path) -> int:
    if not path.exists():
        return 0
    return path.stat().st_size


def _until_whole(url: str, part: Path, mark: Path | None) -> None:
    n_failed = 0
    while True:
        n_held = _size(part)
        try:
            return _go_on(url, part, mark)
        except urllib.error.HTTPError as error:
            if error.code != 416 or not n_held:
                raise TransferError(f"status {error.code}") from None
            if mark is None:  # nothing is left, or the part is longer than the file
                return
            mark.unlink(missing_ok=True)
            n_failed += 1
            reason = "status 416"
            no_server = False
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            n_failed += 1
            if _size(part) > n_held:
                n_failed = 0
            no_server = isinstance(error, urllib.error.URLError) and not isinstance(
                reason, TimeoutError
            )
        if n_failed >= TRIES or no_server:
            raise TransferError(str(reason) or type(reason).__name__) from None


def _go_on(url: str, part: Path, mark: Path | None) -> None:
    """Ask for the bytes that `part` lacks and append them, or for all where its `mark` is not
    known. Raises `OSError` where they are cut."""
    n_held = _size(part)
    known = ""
    if n_held and mark is not None and mark.exists():
        known = content_of(mark).decode()
    if mark is not None and not known:
        n_held = 0
    request = urllib.request.Request(url, headers=_AGENT)
    if n_held:
        request.add_header("Range", f"bytes={n_held}-")
    if known:
        request.add_header("If-Range", known)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        said = answer.headers.get("Content-Range", "")
        appends = answer.status == 206 and said.startswith(f"bytes {n_held}-")
        if answer.status == 206 and not appends:
            raise TransferError(f"answered with another range ({said})")
        n_done = n_held
        mode = "ab"
        if not appends:
            n_done = 0
            mode = "wb"
            known = ""
        if mark is not None:
            _keep_mark(mark, known, _mark_of(answer.headers), part)
        total = None
        if length := answer.headers.get("Content-Length"):
            total = n_done + int(length)
        with (
            open(part, mode, opener=not_through_a_link) as file,
            tqdm(
                total=total, initial=n_done, desc=part.stem, unit="B", unit_scale=True, disable=None
            ) as bar,
        ):
            while block := answer.read1(_BLOCK):
                file.write(block)
                bar.update(len(block))
                n_done += len(block)
        if total is not None and n_done < total:
            raise OSError(f"cut after {n_done:,} of {total:,} bytes")


def _mark_of(headers: Message) -> str:
    """What tells this content from another under the same address; empty: the server does not
    say."""
    tag = headers.get("ETag", "")
    if tag.startswith('"'):  # W/"..." is of like content
        return tag
    return headers.get("Last-Modified", "")


def _keep_mark(mark: Path, known: str, new: str, part: Path) -> None:
    """Keep the mark of an answer that goes on from the content of the mark `known`; empty: that
    begins anew. Raises `OSError` if it is of other content."""
    if known:
        if new not in ("", known):
            mark.unlink()
            raise OSError("the file has changed meanwhile")
        return
    mark.unlink(missing_ok=True)
    part.unlink(missing_ok=True)  # never an old beginning beside a new mark
    if new:
        with open(mark, "x", encoding="utf-8", opener=not_through_a_link) as file:
            file.write(new)
