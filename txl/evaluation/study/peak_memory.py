"""The most memory that a piece of work has held."""

import ctypes
import re
import sys
from pathlib import Path

import torch

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class PeakMemory:
    """The most memory that the process holds from now on, weights included.

    On a GPU, bytes that tensors take up there. Otherwise the process's resident set, of which Linux can forget the peak
    so far (proc(5), clear_refs); memory that was freed before and not yet given back is given back first. Where neither
    can be measured, no figure: the peak of a whole process says nothing of one row of a table.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            _give_back_freed()
        self._measures = device.type == "cuda" or _forget_peak()

    def bytes(self) -> int | None:
        """Bytes, or None where they cannot be measured."""
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
    # where the file takes the word and does nothing, as in some containers, the peak stays above what is held now
    return peak is not None and now is not None and peak - now < 2**24


def _resident(name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _give_back_freed() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
