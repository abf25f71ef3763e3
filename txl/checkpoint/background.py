"""Work that goes on while the training does."""

import threading
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from txl.runtime.distributed import Ranks, is_in_shards


class Background:
    """One function at a time on a thread of its own. Its error is raised by the next `wait`."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], object]) -> None:
        """Begin; `wait` must have returned since the last start."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the function that was started last has returned, and raise its error."""
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error


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
    mesh, local = DeviceMesh.from_group(ranks.control, "cpu"), tensor.to_local().to("cpu", copy=True)
    shape, stride = torch.Size(tensor.shape), tensor.stride()
    return DTensor.from_local(local, mesh, tensor.placements, run_check=False, shape=shape, stride=stride)
