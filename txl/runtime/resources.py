"""What the machine has left: memory and disk space."""

import re
from pathlib import Path

import torch

_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "inactive_file"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
"""Limit and use of a container's memory, and the name of what is given back on demand: cgroup v2 and v1."""


def available_bytes(device: torch.device) -> int | None:
    """Bytes of memory that are free on a device or, for the CPU, on this machine; None where nobody tells."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    found = [_number(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo"))]
    found[0] = None if found[0] is None else 1024 * found[0]
    for limit, use, inactive in _CGROUPS:
        most, used = _number(r"^(\d+)$", Path(limit)), _number(r"^(\d+)$", Path(use))
        if most is not None and used is not None:
            cached = _number(rf"^{inactive} (\d+)$", Path(limit).with_name("memory.stat")) or 0
            found.append(max(0, most - used + cached))
    known = [n for n in found if n is not None]
    return min(known) if known else None


def resident_bytes() -> int:
    """Bytes of RAM that this process holds; 0 where nobody tells."""
    return 1024 * (_number(r"^VmRSS:\s+(\d+) kB$", Path("/proc/self/status")) or 0)


def _number(pattern: str, path: Path) -> int | None:
    try:
        found = re.search(pattern, path.read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return None
    return int(found[1]) if found else None
