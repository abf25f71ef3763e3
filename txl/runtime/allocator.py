"""What a process does with memory that it frees."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # of mallopt(3), malloc.h


def keep_freed_memory() -> None:
    """Keep large freed tensors for the next ones instead of giving their pages back to the system.

    glibc maps every block of more than 32 MiB anew, and each use faults all its pages in again; a training step of
    a large vocabulary frees and takes gigabytes. The process then never shrinks. Without glibc nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 64 * 2**20)
