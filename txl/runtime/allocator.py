"""Settings of the C library's memory allocator."""

import ctypes
import sys

# of mallopt(3), malloc.h
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Keep the memory of freed tensors for later ones instead of returning it to the system.

    By default glibc maps each block of more than 32 MiB separately, so that every use causes page
    faults; a training step with a large vocabulary allocates gigabytes. The process never shrinks.
    Without glibc nothing changes.
    """
    _set({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1, _M_TOP_PAD: 64 * 2**20})


def return_freed_memory() -> None:
    """Return the memory of freed tensors to the system at once; undoes `keep_freed_memory`.

    Weights that are gathered for one layer at a time would otherwise leave holes that nothing else
    fits into. Without glibc nothing changes.
    """
    _set(
        {_M_MMAP_MAX: 2**16, _M_MMAP_THRESHOLD: 2**16, _M_TRIM_THRESHOLD: 2**17, _M_TOP_PAD: 2**17}
    )


def trim_freed_memory() -> None:
    """Return what is freed by now to the system, this once. Without glibc nothing changes."""
    _call("malloc_trim", 0)


def _set(options: dict[int, int]) -> None:
    for option, value in options.items():
        _call("mallopt", option, value)


def _call(name: str, *values: int) -> None:
    if sys.platform.startswith("linux"):
        function = getattr(ctypes.CDLL(None), name, None)
    else:
        function = None
    if function is not None:
        function(*values)
