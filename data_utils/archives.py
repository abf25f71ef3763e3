"""Files out of zip and tar archives, none of them outside the folder."""

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from txl.files import written_whole

from .files import DataError


def unpack(archive: Path, folder: Path, named: Callable[[str], tuple[str, ...]]) -> list[Path]:
    """Write files of an archive into `folder`.

    Args:
        named: where a member goes, relative to `folder`; several places, or none.
    Raises:
        DataError: if the archive is damaged, or a member would be written outside `folder` or is no plain file; nothing
            is written then.
    """
    try:
        for name, what in _members(archive):
            path = PurePosixPath(name.replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts or ":" in path.parts[0][1:2] or what is None:
                raise DataError(f"{archive}: its member {name!r} is a link or leaves the folder; bring another archive")
        written = []
        for name, what in _members(archive):
            if what is None:
                continue
            for place in named(name):
                target = folder / place
                target.parent.mkdir(parents=True, exist_ok=True)
                with what() as source, written_whole(target) as temporary, temporary.open("wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
                written.append(target)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{archive}: damaged ({error}); delete it and start again") from None
    if not written:
        raise DataError(f"{archive}: holds none of the data set's files; bring another archive")
    return written


Member = tuple[str, Callable[[], IO[bytes]] | None]
"""The name of a file in an archive, and how it is opened; None: it is neither a plain file nor a folder."""


def _members(archive: Path) -> Iterator[Member]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for one in zipped.infolist():
                if not one.is_dir():
                    kind = one.external_attr >> 28  # of a Unix file; 0: not noted
                    yield one.filename, (lambda one=one: zipped.open(one)) if kind in (0, 8) else None
        return
    with tarfile.open(archive) as tarred:
        for one in tarred:
            if not one.isdir():
                yield one.name, (lambda one=one: _opened(tarred, one)) if one.isreg() else None


def _opened(tarred: tarfile.TarFile, one: tarfile.TarInfo) -> IO[bytes]:
    file = tarred.extractfile(one)
    assert file is not None
    return file
