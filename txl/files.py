"""Files that are written whole or not at all, and I/O errors that name their file."""

import errno
import fcntl
import hashlib
import io
import os
import re
import shutil
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NoReturn

from safetensors import SafetensorError


@contextmanager
def errors_naming(path: Path) -> Iterator[None]:
    """Add `path` to I/O errors that name no file, such as those of a write that fails half way."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
    except SafetensorError as error:
        raise OSError(None, str(error), str(path)) from error


class NoFileError(OSError):
    """A folder, a pipe or a device stands where a file belongs."""

    def __init__(
        self, name: str, what: str = "is a folder, a pipe or a device, and no file"
    ) -> None:
        super().__init__(errno.EINVAL, what, name)


def not_through_a_link(name: str, flags: int) -> int:
    """An `opener` for `open`. Raises `OSError` if a link stands in the file's place, which in an
    unpacked folder may lead to any file of the user, `NoFileError` if it is no file.
    """
    try:
        return regular(name, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _is_link(Path(name)) from None
        raise


def regular(name: str, flags: int) -> int:
    """An `opener` for `open`.

    Raises `NoFileError` for a pipe, which may block, and a device, which may never end.
    """
    try:
        descriptor = os.open(name, flags | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a pipe that nobody reads
            raise NoFileError(name) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NoFileError(name)
    return descriptor


_POINTER = b"version https://git-lfs.github.com/spec/"


def _require_no_pointer(begin: bytes, name: str) -> None:
    """Raise `NoFileError` if a file that begins so only says what git-lfs keeps elsewhere."""
    if begin.startswith(_POINTER):
        raise NoFileError(name, "is a pointer of git-lfs, and no content; run git lfs pull there")


def content_of(path: Path, most: int = -1) -> bytes:
    """The content of a file, or its first bytes. Raises `NoFileError` if it is none, `OSError` if it
    cannot be read.

    Args:
        most: so many bytes are read; -1: all.
    """
    with errors_naming(path), open(path, "rb", opener=regular) as file:
        content = file.read(most)
    _require_no_pointer(content, str(path))
    return content


def typed_content(path: str | Path, most: int = -1) -> bytes:
    """The content of a file or pipe that the user has named, or its first bytes. Raises
    `NoFileError` for a device that may never end, `OSError` if it cannot be read.

    Args:
        most: so many bytes are read; -1: all.
    """
    with open(path, "rb") as file:
        require_end(file)
        content = file.read(most)
    _require_no_pointer(content, str(path))
    return content


def require_end(file: BinaryIO) -> None:
    """Raise `NoFileError` if an open file is a device, such as /dev/zero, other than a terminal and
    /dev/null.
    """
    try:
        descriptor = file.fileno()
    except io.UnsupportedOperation:  # a text in memory in the place of standard input
        return
    state = os.fstat(descriptor)
    is_device = stat.S_ISCHR(state.st_mode) or stat.S_ISBLK(state.st_mode)
    if is_device and not os.isatty(descriptor) and not _is_null(state):
        raise NoFileError(file.name, "is a device, which may never end")


def require_no_link(path: Path) -> None:
    """Raise `OSError` if a link stands in the place of a file or folder that is written to."""
    if path.is_symlink():
        raise _is_link(path)


def _is_link(path: Path) -> OSError:
    return OSError(errno.ELOOP, "is a link, and nothing is written through one", str(path))


def place_below(folder: Path, name: str) -> Path:
    """Where a file that an archive or another list names has its place in a folder. Raises
    `ValueError` if the name leads out of it.
    """
    if os.path.isabs(name) or ".." in Path(name).parts or "\0" in name:
        raise ValueError(f"the name {name!r} leads out of its folder")
    return folder / name


def discard(folder: Path) -> None:
    """Remove a folder with all that it holds, as far as that may be; of a link the link only."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path` to write to; flushed and renamed at the end, removed on
    errors and SIGTERM.

    Temporary files that killed processes left for `path` are removed first. A link in the place of
    `path` is replaced, and what it leads to stays as it is.
    """
    with errors_naming(path), _temporary_file(path) as temporary:
        yield temporary
        _fsync(temporary)
        temporary.replace(path)


@contextmanager
def _temporary_file(path: Path) -> Iterator[Path]:
    """A new file beside `path`, locked; removed at the end if it is still there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_left(path)
    temporary = _temporary_name(path)
    try:
        with signals_raise(), open(temporary, "xb", opener=not_through_a_link) as held:
            lock(held.fileno(), wait=False)
            yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _temporary_name(path: Path) -> Path:
    """Of what becomes `path`. A user's file has no such name; its suffix tells writers the format."""
    return path.with_name(f".tmp.{os.getpid()}.txl.{path.name}")


def _remove_left(path: Path) -> None:
    """Remove the temporary files and folders that killed processes left for `path`."""
    name = re.compile(rf"\.tmp\.\d+\.txl\.{re.escape(path.name)}", re.ASCII)
    for left in path.parent.iterdir():
        if name.fullmatch(left.name):
            _remove_unless_locked(left)


def write_whole(path: Path, text: str) -> None:
    """Write a text in UTF-8, see `written_whole`."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_whole(file: io.FileIO, content: bytes) -> None:
    """All or nothing: after a write that failed half way, the next record would continue the same
    line.
    """
    begin = os.fstat(file.fileno()).st_size
    with errors_naming(Path(file.name)):
        try:
            while content:
                content = content[file.write(content) :]
        except BaseException:
            os.ftruncate(file.fileno(), begin)
            raise


def _remove_unless_locked(path: Path) -> None:
    """Remove a temporary file or folder unless a living writer holds its lock."""
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        path.unlink()
        return
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            if lock(descriptor, wait=False):
                if stat.S_ISDIR(mode):
                    discard(path)
                else:
                    path.unlink()
        finally:
            os.close(descriptor)


@contextmanager
def folder_written_whole(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder beside `folder`, which may be there if empty; flushed with its
    files and renamed at the end, removed on errors and SIGTERM.

    Temporary folders that killed processes left for `folder` are removed first.
    """
    with errors_naming(folder), signals_raise():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_left(folder)
        temporary = _temporary_name(folder)
        temporary.mkdir()
        held = os.open(temporary, os.O_RDONLY)
        try:
            lock(held, wait=False)
            yield temporary
            for path in (*temporary.iterdir(), temporary):
                flush(path)
            temporary.replace(folder)
            _fsync(folder.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        finally:
            os.close(held)


class Stopped(SystemExit):
    """A signal has asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.signal = signal.Signals(number)


@contextmanager
def signals_raise() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is closed, raise `Stopped` if they would end the process
    at once, so that cleanup runs.

    Also a decorator.
    """

    def end(number: int, _: object) -> NoReturn:
        raise Stopped(number)

    caught = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                caught.append(number)
    for number in caught:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


def take_lock(descriptor: int, *, wait: bool) -> bool:
    """Lock an open file with flock(2); False if another process holds the lock. Raises `OSError` if
    the file system has no locks, or for another reason.
    """
    operation = fcntl.LOCK_EX
    if not wait:
        operation |= fcntl.LOCK_NB
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    return True


def lock(descriptor: int, *, wait: bool) -> bool:
    """As `take_lock`; False also where it raises."""
    try:
        return take_lock(descriptor, wait=wait)
    except OSError:
        return False


def require_writable(path: Path) -> None:
    """Raise `OSError` unless a file can be written there."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with errors_naming(path), _temporary_file(path):
        pass


def is_stream(path: Path) -> bool:
    """True for what is written to as it is, and not replaced: a pipe, a terminal, /dev/null, and
    what this process was given open, such as /dev/stdout, also where that is a file.
    """
    parts = Path(os.path.abspath(path)).parts
    if parts[:3] in (("/", "dev", "stdout"), ("/", "dev", "stderr"), ("/", "dev", "fd")):
        return True
    if parts[:4] == ("/", "proc", "self", "fd"):
        return True
    try:
        state = path.stat()
    except OSError:
        return False
    if stat.S_ISCHR(state.st_mode):
        return _is_null(state) or _is_terminal(path)
    return stat.S_ISFIFO(state.st_mode)


def _is_null(state: os.stat_result) -> bool:
    """Whether this is the device /dev/null, under any name."""
    return stat.S_ISCHR(state.st_mode) and state.st_rdev == os.stat(os.devnull).st_rdev


def _is_terminal(path: Path) -> bool:
    """Whether a device is a terminal."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.isatty(descriptor)
    finally:
        os.close(descriptor)


RECORDS_BEGIN = b'{"kind": "start", '
"""With which the records of a run begin."""


def begins_with(path: Path, begin: bytes) -> bool:
    """True if a file begins with these bytes. Raises `OSError` if it cannot be read."""
    with open(path, "rb") as file:
        return file.read(len(begin)) == begin


def require_readable(path: Path) -> None:
    """Raise `OSError` if a file is there and cannot be opened, or is a pointer of git-lfs:
    safetensors says of any such file that it is missing, and waits for the other end of a pipe.
    """
    with suppress(FileNotFoundError), open(path, "rb", opener=regular) as file:
        _require_no_pointer(file.read(len(_POINTER)), str(path))


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    with errors_naming(path):
        _fsync(path)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes; about half a second per GB."""
    with open(path, "rb", opener=regular) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
