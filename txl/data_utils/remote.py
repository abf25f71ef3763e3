"""Text that is elsewhere, and its copies here. A file over HTTP goes on where it was cut, is checked,
and gets its name only when it is whole; for all else there is fsspec."""

import hashlib
import itertools
import os
import re
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from glob import has_magic
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from txl.files import not_through_a_link, place_below, written_whole

from .cache import one_at_a_time, read_record, write_record
from .config import DataConfig
from .errors import DataError
from .formats import kind_of

TIMEOUT_S = 30.0
"""Of silence, after which a transfer counts as cut."""
TRIES = 5
"""Cuts in a row without a new byte before the next mirror is asked."""
_BLOCK = 1 << 16
_AGENT = {"User-Agent": "Mozilla/5.0 (compatible; txl data_utils)"}
"""Some mirrors refuse Python's own."""


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
            return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b"")) == int(
                expected
            )
        return hashlib.file_digest(file, kind).hexdigest() == expected


def require_fit(path: Path, digest: str) -> None:
    """Raise `DataError` unless `fits`."""
    if not fits(path, digest):
        what = "is empty"
        if digest:
            what = f"is not the file of the data set ({digest})"
        raise DataError(f"{path}: {what}; move it away and start again")


def load(remote: Remote, folder: Path) -> bool:
    """Bring a file into `folder`; False if it was there. Raises `DataError` if no mirror gives it,
    with what to do."""
    target = folder / remote.name
    if target.exists():
        require_fit(target, remote.digest)
        return False
    part = folder / f"{remote.name}.part"
    reasons = []
    for url in remote.urls:
        try:
            _from_mirror(url, part, remote.digest)
        except (OSError, HTTPException, ValueError) as error:
            why = getattr(error, "reason", None) or error
            if isinstance(error, urllib.error.HTTPError):
                why = f"status {error.code}"
            reasons.append(f"{url}: {str(why) or type(why).__name__}")
            continue
        part.replace(target)
        return True
    known = ""
    if remote.digest:
        known = f" ({remote.digest})"
    raise DataError(
        f"{remote.name}: cannot be loaded ({'; '.join(reasons)}); put it{known} into {folder} and"
        " start again"
    )


def _from_mirror(url: str, part: Path, digest: str) -> None:
    """Write a file to `part`. A beginning that another mirror, or an older try, left is gone on
    with where there is a digest to check it by; if what comes out does not fit, that may be at
    fault, and all is asked for again."""
    if not digest:
        part.unlink(missing_ok=True)
    for _ in range(1 + bool(_size(part))):
        _until_whole(url, part, digest)
        if fits(part, digest):
            return
        part.unlink()
    what = "the file is empty"
    if digest:
        what = f"the file is another ({digest} expected)"
    raise OSError(what)


def _until_whole(url: str, part: Path, digest: str) -> None:
    """Load what `part` lacks, and go on where it is cut. Raises `OSError` or `HTTPException` where
    nothing new comes."""
    mark = ""  # by which the server knows its content again
    n_failed = n_most = 0
    while True:
        request = urllib.request.Request(url, headers=_AGENT)
        n_held = _size(part)
        if n_held:
            request.add_header("Range", f"bytes={n_held}-")
        if n_held and not digest:
            request.add_header("If-Range", mark)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                mark = answer.headers.get("ETag", "")
                if not mark.startswith('"'):  # W/"..." is of like content
                    mark = answer.headers.get("Last-Modified", "")
                return _append(answer, part, n_held)
        except urllib.error.HTTPError as error:
            if error.code != 416 or not n_held:
                raise
            return  # nothing is left, or it is longer than the file
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None)
            n_failed += 1
            if _size(part) > n_most:
                n_failed = 0
            n_most = max(n_most, _size(part))
            if n_failed == TRIES or (reason and not isinstance(reason, TimeoutError)):
                raise
            if not digest and not mark:
                part.unlink(missing_ok=True)


def _append(answer: Any, part: Path, n_held: int) -> None:
    """Write what a server answers to `part`, which holds the beginning or starts again. Raises
    `OSError` or `HTTPException` where it is cut."""
    said = answer.headers.get("Content-Range", "")
    if answer.status != 206:
        n_held = 0
        part.unlink(missing_ok=True)
    elif not said.startswith(f"bytes {n_held}-"):
        raise ValueError(f"answered with another range ({said})")
    total = n_held + int(answer.headers.get("Content-Length") or 0)
    shown = {"desc": part.stem, "unit": "B", "unit_scale": True, "disable": None}
    with (
        open(part, "ab", opener=not_through_a_link) as file,
        tqdm(total=total or None, initial=n_held, **shown) as bar,
    ):
        while block := answer.read1(_BLOCK):
            file.write(block)
            bar.update(len(block))
    if _size(part) < total:
        raise OSError(f"cut after {_size(part):,} of {total:,} bytes")


def _size(path: Path) -> int:
    if not path.exists():
        return 0
    return path.stat().st_size


HERE = Path("data")
"""The folder of the copies: `https://host/a.txt` is `data/https/host/a.txt`."""
_COPIED = ".txl-copied.json"
"""In the copy of a folder: the files of each name that was copied whole, so that they are not asked
for again."""


def with_copies(config: DataConfig) -> DataConfig:
    """The configuration with what --data names elsewhere copied to `HERE`, and named there. What is
    there already is not asked for again. Raises `DataError` if it cannot be copied."""
    if isinstance(config.data, str):
        return replace(config, data=_copied(config.data))
    return replace(config, data=tuple(map(_copied, config.data)))


def names_in(data: tuple[str, ...] | str) -> tuple[str, ...]:
    """What --data names."""
    if isinstance(data, str):
        return (data,)
    return tuple(data)


def is_remote(name: str) -> bool:
    """True for names such as hf://datasets/owner/name."""
    return "://" in name


def is_copied(name: str) -> bool:
    """True if the copy of what is elsewhere is here, so that nothing is asked for."""
    if _is_web(name):
        return place_of(name).is_file()
    place = place_of(_without_glob(name))
    known = read_record(place / _COPIED).get(name)
    if not isinstance(known, list) or not known:
        return place.is_file()
    return all(isinstance(file, str) and (place / file).is_file() for file in known)


def place_of(name: str) -> Path:
    """Where the copy of what is elsewhere has its place, or a path itself. A query of an address,
    as in https://host/a.jsonl?download=true, stands before the suffixes, which say what the file
    holds. A member of an archive, as in tar://text/a.jsonl::x.tar, has its place in a folder of
    the archive."""
    if not is_remote(name):
        return Path(name)
    protocol, member, archive = _parts(name)
    if archive:
        fixed = _fixed(member)
        before = HERE / protocol / f"{fixed}::{archive}".strip("/")
        if before.is_dir():  # where versions up to 0.3 have copied it to
            return before / member.removeprefix(fixed).strip("/")
        return HERE / protocol / _as_name(archive) / member.strip("/")
    if not _is_web(name):
        return HERE / protocol / member.strip("/")
    rest, _, query = member.partition("#")[0].partition("?")
    place = HERE / protocol / rest.strip("/")
    if not query:
        return place
    return place.with_name(_with_query(place.name, query))


def _with_query(name: str, query: str) -> str:
    of_query = re.sub(r"[^\w.-]+", "_", query)
    suffixes = _suffixes(name)
    if not kind_of(Path(f"a{suffixes}")) and kind_of(Path(f"a{_suffixes(of_query)}")):
        suffixes = _suffixes(of_query)
    of_query = of_query.removesuffix(suffixes)[:60]
    is_simple = re.fullmatch(r"[^\W_]{1,30}=[^\W_]{1,30}", query)
    if not is_simple:  # of another query the same may be left
        of_query += f"_{hashlib.sha256(query.encode()).hexdigest()[:8]}"
    return f"{name.removesuffix(suffixes)}_{of_query}{suffixes}"


def _parts(name: str) -> tuple[str, str, str]:
    """The protocol of an address, what it names, and in which archive, as in
    protocol://member::archive; the last is empty where there is none. A host may be a number with
    colons in brackets."""
    protocol, _, rest = name.partition("://")
    if _is_web(name):
        return protocol, rest, ""
    member, *archive = re.split(r"::(?![^\[]*\])", rest, maxsplit=1)
    return protocol, member, "".join(archive)


def _as_name(archive: str) -> str:
    """The address of an archive as the name of a folder."""
    simple = re.sub(r"[^\w.-]+", "_", archive).strip("._")
    if simple == archive:
        return simple
    return f"{simple[-60:]}_{hashlib.sha256(archive.encode()).hexdigest()[:8]}"


def _suffixes(name: str) -> str:
    suffixes = re.search(r"(\.\w{1,8}){1,2}$", name)
    if suffixes is None:
        return ""
    return suffixes[0]


def _is_web(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def _without_glob(name: str) -> str:
    """The folder or file that a name begins with, up to its first wildcard; an archive has none."""
    protocol, member, archive = _parts(name)
    fixed = _fixed(member)
    if archive:
        fixed += f"::{archive}"
    return f"{protocol}://{fixed}"


def _fixed(path: str) -> str:
    return "/".join(itertools.takewhile(lambda part: not has_magic(part), path.split("/")))


def _copied(name: str) -> str:
    if not is_remote(name):
        return name
    place = place_of(name)
    if ".." in place.parts:
        raise DataError(f"--data {name}: goes up by '..'; name it by its own address")
    if not _is_web(name):
        _copy_below(name)
    elif not place.is_file():  # with our own transfer, which goes on where it was cut
        place.parent.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(place.parent):
            load(Remote(place.name, [name]), place.parent)
    return str(place)


def _copy_below(name: str) -> None:
    """Copy a file, the files of text of a folder and below it, or those that a glob matches."""
    if is_copied(name):
        return
    from fsspec.callbacks import TqdmCallback
    from fsspec.core import url_to_fs

    fixed = _without_glob(name)
    place = place_of(fixed)
    with _asking(name):
        system, top = url_to_fs(fixed)
        if fixed == name:
            members = system.find(top, detail=True)
        else:
            members = system.glob(url_to_fs(name)[1], detail=True)
    targets: dict[str, Path] = {}
    for file in sorted(members):
        if file == top or kind_of(Path(file)):
            targets[file] = _place_of_member(name, place, file, top, members[file])
    if not targets:
        raise DataError(f"--data {name}: no files of text there; give a folder, a file or a glob")
    for file, target in targets.items():
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            with one_at_a_time(target.parent), written_whole(target) as temporary, _asking(name):
                shown = {"desc": target.name, "unit": "B", "unit_scale": True, "disable": None}
                system.get_file(file, str(temporary), callback=TqdmCallback(tqdm_kwargs=shown))
    if place.is_dir():
        with suppress(OSError), one_at_a_time(place):  # of a folder that may only be read
            files = [str(target.relative_to(place)) for target in targets.values()]
            write_record(place / _COPIED, {**read_record(place / _COPIED), name: files})


def _place_of_member(name: str, place: Path, file: str, top: str, about: Mapping[str, Any]) -> Path:
    """Where the copy of a file has its place, in the folder of the copies of `top`. Raises
    `DataError` if it would be elsewhere, or the file is a link in an archive, which may lead
    anywhere.

    Args:
        about: what fsspec says of the file.
    """
    of_zip = (about.get("external_attr") or 0) >> 16
    try:
        if os.path.isabs(file) != os.path.isabs(top) or ".." in Path(file).parts:
            raise ValueError(f"the name {file!r} leads out of its folder")
        if about.get("linkname") or stat.S_ISLNK(of_zip):
            raise ValueError(f"{file!r} is a link")
        return place_below(place, os.path.relpath(file, top))
    except ValueError as error:
        raise DataError(
            f"--data {name}: {error}; unpack it yourself, and give the files that are text"
        ) from None


@contextmanager
def _asking(name: str) -> Iterator[None]:
    """Errors of fsspec and of the libraries below it, which have no class in common, as a
    `DataError`."""
    try:
        yield
    except ImportError as error:
        raise DataError(f"--data {name}: {str(error).splitlines()[0]}") from None
    except Exception as error:
        why = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise DataError(
            f"--data {name}: cannot be copied ({why[:200]}); check the address"
        ) from error


_OF_THIS_PROCESS = "memory://"
"""Of fsspec: what a program itself has put into its memory."""


def require_typed(data: tuple[str, ...] | str, named_in: Path) -> None:
    """Raise `DataError` if a file names an address of which no copy is here: it is asked only where
    the user types it."""
    for name in names_in(data):
        if is_remote(name) and not name.startswith(_OF_THIS_PROCESS) and not is_copied(name):
            what = f"the address of the text, which {named_in} names and you have not typed"
            raise DataError(f"{name}: {what}; to have it copied from there, give it with --data")
