"""Work that goes on while the training does."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from txl.runtime.distributed import Ranks, is_in_shards


class Background:
    """One function at a time on a thread of its own. Its error is raised by the next `wait`."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._running: Future[object] | None = None

    def start(self, work: Callable[[], object]) -> None:
        """Begin; `wait` must have returned since the last start."""
        self._running = self._thread.submit(work)

    def wait(self) -> None:
        """Wait until the function that was started last has returned, and raise its error."""
        running = self._running
        self._running = None
        if running is not None:
            running.result()


def copied(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Copies of tensors in host memory, of shards those of this rank."""
    return {name: _copied(tensor.detach(), ranks) for name, tensor in tensors.items()}


def _copied(tensor: Tensor, ranks: Ranks) -> Tensor:
    if not is_in_shards(tensor):
        return tensor.to("cpu", copy=True)
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    assert ranks.control is not None  # there are shards
    mesh = DeviceMesh.from_group(ranks.control, "cpu")
    local = tensor.to_local().to("cpu", copy=True)
    shape = torch.Size(tensor.shape)
    stride = tensor.stride()
    return DTensor.from_local(
        local, mesh, tensor.placements, run_check=False, shape=shape, stride=stride
    )
