"""Work on a GPU that is recorded once and repeated as one CUDA graph, without launching its kernels
one by one.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

Record = Callable[[Callable[[], None]], Callable[[], None]]
"""Turns work into a function that repeats it."""


def recorded(work: Callable[[], None]) -> Callable[[], None]:
    """A function that repeats `work`, which must have been done before: it compiles kernels and
    allocates workspaces. It is called once, and what it does on the GPU is recorded and not done.

    What changes from one time to the next it reads from tensors that keep their places.

    Raises:
        RuntimeError: if the work has an operation that a graph cannot hold, such as one that waits
            for the GPU.
    """
    graph = torch.cuda.CUDAGraph()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    before = generator.clone_state()
    try:
        with torch.cuda.graph(graph):
            work()
    except RuntimeError as error:
        # it still counts for the graph, and would refuse to count for anything else
        generator.graphsafe_set_state(before)
        raise RuntimeError(str(_first(error))) from error
    return graph.replay


def on_device(device: torch.device) -> AbstractContextManager[None]:
    """Inside, work is recorded on this device, also where it is not the first GPU."""
    if device.type == "cuda":
        return torch.cuda.device(device)
    return nullcontext()


def _first(error: BaseException) -> BaseException:
    """What happened first: what is raised at the end of a recording says that something has."""
    while error.__context__ is not None:
        error = error.__context__
    return error
