"""Run a program: errors that the user can fix are one line on stderr, and the exit status says what
happened.
"""

import errno
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from txl.errors import RunFailed, UsageError
from txl.files import Stopped, signals_raise
from txl.plugins import without_plugins
from txl.runtime.log import print_error, print_notices

_REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "change its permissions, or name another"),
    **dict.fromkeys((errno.ENOENT, errno.EISDIR), "check the name"),
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EROFS, errno.EEXIST), "name a folder that can be written"
    ),
    **dict.fromkeys(
        (errno.EMFILE, errno.ENFILE), "too many files are open; raise the limit with ulimit -n"
    ),
    errno.ENOTEMPTY: "another program has written to it meanwhile; name another",
    errno.EINVAL: "look what stands there, and name another",
    errno.EIO: "the disk fails; use another",
    errno.ELOOP: "remove the link, or name another place",
}
_NOTHING_LEFT = "nothing was left half written"
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|not enough memory|ALLOC_FAILED|overflow", re.I
)


def run(main: Callable[[Sequence[str]], int | None]) -> NoReturn:
    """Run an entry point, which returns its exit status (None: 0), and exit. Errors that the user
    can fix are printed in one line on stderr, with exit status 2.
    """
    print_notices()
    message = ""
    try:
        _prepare_streams()
        with signals_raise():
            status = main(without_plugins(sys.argv[1:])) or 0
        sys.stdout.flush()
    except UsageError as error:
        status = 2
        message = str(error)
    except RunFailed as error:
        status = 1
        message = str(error)
    except UnicodeEncodeError as error:
        name = _not_utf8(error)
        if name is None:
            raise
        status = 2
        message = f"{name}: a name that is not UTF-8; rename it"
    except BrokenPipeError:  # for example from `eval.py | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    except OSError as error:
        status = 2
        message = _of_system(error)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not _OUT_OF_MEMORY.search(str(error)):
            raise
        status = 2
        message = _out_of_memory(error)
    except KeyboardInterrupt:
        status = 130
        message = f"interrupted; {_NOTHING_LEFT}"
    except Stopped as stop:
        status = int(stop.code or 0)
        message = f"stopped by {stop.signal.name}; {_NOTHING_LEFT}"
    if message:
        print_error(message)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # at interpreter exit the rest of a process group may abort, and the exit status is lost
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _prepare_streams() -> None:
    """Make output safe in any encoding.

    A closed stream is replaced, or its descriptor would go to another file.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        raise UsageError("standard output is closed; send it to a file, or to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _not_utf8(error: UnicodeEncodeError) -> str | None:
    """The name of a file that the system knows by bytes that are no text, if an
    error is about one.
    """
    if not all(
        "\ud800" <= character <= "\udfff" for character in error.object[error.start : error.end]
    ):
        return None
    before = re.split(r'["\n]', error.object[: error.start])
    after = re.split(r'["\n]', error.object[error.start :])
    return (before[-1] + after[0]).encode(errors="backslashreplace").decode()


def _of_system(error: OSError) -> str:
    if error.errno == errno.ENOMEM:  # no disk is full
        return _out_of_memory(error)
    name = error.filename2 or error.filename or "writing"
    remedy = _REMEDIES.get(error.errno or 0, "make room, or name a folder that can be written")
    return f"{name}: {error.strerror or error}; {remedy}"


def _out_of_memory(error: Exception) -> str:
    size = re.search(r"(?:tried|unable) to allocate ([\d.]+ ?\w+)", str(error), re.I)
    return (
        f"out of memory{f' (allocating {size[1]})' if size else ''}: use a smaller --batch_size,"
        " shorter lengths or a smaller model, or a machine with more memory"
    )
