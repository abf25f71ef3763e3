"""Settings of the C library's memory allocator."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # of mallopt(3), malloc.h


def keep_freed_memory() -> None:
    """Keep the memory of freed tensors for later ones instead of returning it to the system.

    By default glibc maps each block of more than 32 MiB separately, so that every use causes page faults; a training
    step with a large vocabulary allocates gigabytes. The process never shrinks. Without glibc nothing changes.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 64 * 2**20)
