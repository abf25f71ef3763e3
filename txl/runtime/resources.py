"""Memory: free and used, that of a computation at its peak, and settings of the C library's
allocator.
"""

import ctypes
import re
import sys
from pathlib import Path

import torch

from txl.config import UsageError

_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "inactive_file"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
"""Files with the limit and use of a container's memory, and the field of reclaimable pages: cgroup
v2 and v1.
"""


def available_bytes(device: torch.device) -> int | None:
    """Free memory of a device, or of this machine for the CPU, in bytes; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    kib = _number(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo"))
    if kib is None:
        found = []
    else:
        found = [1024 * kib]
    for limit, use, inactive in _CGROUPS:
        most = _number(r"^(\d+)$", Path(limit))
        used = _number(r"^(\d+)$", Path(use))
        if most is not None and used is not None:
            cached = _number(rf"^{inactive} (\d+)$", Path(limit).with_name("memory.stat")) or 0
            found.append(max(0, most - used + cached))
    return min(found, default=None)


def require_room(needed: int, device: torch.device, what: str) -> None:
    """Raise `UsageError` if a device has fewer bytes than `what` the user asks
    for needs at least.
    """
    free = available_bytes(device)
    if free is not None and needed > free:
        sizes = f"{needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} are free"
        raise UsageError(f"{what}: needs at least {sizes}; ask for less")


def resident_bytes(*, peak: bool = False) -> int:
    """RAM of this process, now or at its peak, in bytes; 0 if unknown."""
    return 1024 * (
        _number(rf"^{'VmHWM' if peak else 'VmRSS'}:\s+(\d+) kB$", Path("/proc/self/status")) or 0
    )


def _number(pattern: str, path: Path) -> int | None:
    try:
        found = re.search(pattern, path.read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return None
    if found:
        return int(found[1])
    return None


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


_CLEAR = Path("/proc/self/clear_refs")


class PeakMemory:
    """The peak memory of this process from now on, weights included.

    On a GPU: bytes of tensors. Otherwise the resident set, whose peak Linux can reset (proc(5),
    clear_refs); freed memory is first returned to the system. If the peak cannot be reset there is
    no figure, as the process's overall peak does not describe one row.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            trim_freed_memory()
        self._measures = device.type == "cuda" or _forget_peak()

    def bytes(self) -> int | None:
        """Bytes, or None if they cannot be measured."""
        if not self._measures:
            return None
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return resident_bytes(peak=True)


def _forget_peak() -> bool:
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    # some containers accept the write and ignore it: then the peak stays above the current size
    peak = resident_bytes(peak=True)
    return 0 < peak < resident_bytes() + 2**24
