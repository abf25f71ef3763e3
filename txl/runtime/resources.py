"""Free and used memory of the machine."""

import re
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
