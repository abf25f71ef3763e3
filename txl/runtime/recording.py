"""Work on a GPU that is recorded once and repeated as one CUDA graph, without launching its kernels
one by one.
"""

from collections.abc import Callable

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
    with torch.cuda.graph(graph):
        work()
    return graph.replay
