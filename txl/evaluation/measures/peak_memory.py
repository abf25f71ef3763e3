"""Peak memory of a computation."""

from pathlib import Path

import torch

from txl.runtime.allocator import trim_freed_memory
from txl.runtime.resources import resident_bytes

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
