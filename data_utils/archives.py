"""Files out of zip and tar archives, none of them outside the folder."""

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from txl.files import written_whole

from .raw_text import DataError


def unpack(archive: Path, folder: Path, named: Callable[[str], tuple[str, ...]]) -> None:
    """Write files of an archive into `folder`, where `named` says for a member: several places, one or none. Raises
    `DataError` if the archive is damaged or has none of the files, or if a member would be written outside `folder` or
    is no plain file, before anything is written."""
    is_empty = True
    try:
        with zipfile.ZipFile(archive) if zipfile.is_zipfile(archive) else tarfile.open(archive) as opened:
            members = _members(opened)
            for name, is_plain, _ in members:
                path = PurePosixPath(name.replace("\\", "/"))
                if path.is_absolute() or ".." in path.parts or ":" in path.parts[0][1:2] or not is_plain:
                    raise DataError(f"{archive}: its member {name!r} is a link or leaves the folder; bring another one")
            for name, _, what in members:
                for place in named(name):
                    with what() as source, written_whole(folder / place) as temporary, temporary.open("wb") as file:
                        shutil.copyfileobj(source, file, 1 << 20)
                    is_empty = False
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{archive}: damaged ({error}); delete it and start again") from None
    if is_empty:
        raise DataError(f"{archive}: holds none of the data set's files; bring another archive")


def _members(opened: Any) -> list[tuple[str, bool, Callable[[], Any]]]:
    """The files of an open archive: the name, whether it is a plain file, what opens it."""
    if isinstance(opened, tarfile.TarFile):
        return [(one.name, one.isreg(), partial(opened.extractfile, one)) for one in opened if not one.isdir()]
    kinds = (0, 8)  # of a Unix file: not noted, plain
    files = [one for one in opened.infolist() if not one.is_dir()]
    return [(one.filename, one.external_attr >> 28 in kinds, partial(opened.open, one)) for one in files]
