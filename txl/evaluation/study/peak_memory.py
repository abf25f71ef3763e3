"""Peak memory of a computation."""

import ctypes
import re
import sys
from pathlib import Path

import torch

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class PeakMemory:
    """The peak memory of this process from now on, weights included.

    On a GPU: bytes of tensors. Otherwise the resident set, whose peak Linux can reset (proc(5), clear_refs); freed
    memory is first returned to the system. If the peak cannot be reset there is no figure, as the process's overall
    peak does not describe one row.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            _give_back_freed()
        self._measures = device.type == "cuda" or _forget_peak()

    def bytes(self) -> int | None:
        """Bytes, or None if they cannot be measured."""
        if not self._measures:
            return None
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return _resident("VmHWM")


def _forget_peak() -> bool:
    try:
        _CLEAR.write_text("5")
        peak, now = _resident("VmHWM"), _resident("VmRSS")
    except OSError:
        return False
    # some containers accept the write and ignore it: then the peak stays above the current size
    return peak is not None and now is not None and peak - now < 2**24


def _resident(name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _give_back_freed() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
