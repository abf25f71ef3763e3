"""What `torch.compile` makes of code for an H200: its kernels, counted on a machine without a GPU.

AOTAutograd traces the code on a CPU. Its graphs are given the device of a GPU and lowered by Inductor
as far as the text of their kernels, which nobody compiles or runs. Tied to the internals of PyTorch
2.13.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._dynamo import device_interface
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import compile_fx, scheduler
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _triton
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from lab.benchmarks.launches import Kernel

H200 = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=141 * 2**30,
    warp_size=32,
    max_threads_per_block=1024,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65_536,
    shared_memory_per_block=49_152,
    shared_memory_per_block_optin=232_448,
    shared_memory_per_multiprocessor=233_472,
    L2_cache_size=50 * 2**20,
    gcnArchName="",
    uuid="",
)
DEVICE = torch.device("cuda:0")


def counting(note: Callable[[Kernel, bool], None]) -> Any:
    """A backend of `torch.compile` whose code computes nothing: it calls `note` for each kernel that
    it would launch, with True in a backward pass, and returns tensors without values.
    """

    def compiler(is_backward: bool) -> Callable[..., Any]:
        def compiled(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
            kernels = kernels_of(graph, is_backward=is_backward)
            (output,) = (node for node in graph.graph.nodes if node.op == "output")

            def run(given: list[Any]) -> list[Any]:
                given.clear()
                for kernel in kernels:
                    note(kernel, is_backward)
                return [None if x is None else _like(x.meta["val"]) for x in output.args[0]]

            run._boxed_call = True  # type: ignore[attr-defined]  # how AOTAutograd is told
            return run

        return compiled

    return aot_autograd(
        fw_compiler=compiler(False),
        bw_compiler=compiler(True),
        decompositions=select_decomp_table,
        partition_fn=_partition,
    )


def _like(x: Any) -> Any:
    if isinstance(x, Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    return x


def _partition(joint: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
    """As Inductor cuts a graph of both passes in two."""
    with V.set_fake_mode(_fake_mode(joint)):
        joint_graph_passes(joint)
    return min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **options)


def _fake_mode(graph: torch.fx.GraphModule) -> Any:
    values = (node.meta.get("val") for node in graph.graph.nodes)
    return next(x.fake_mode for x in values if isinstance(x, FakeTensor))


def kernels_of(graph: torch.fx.GraphModule, *, is_backward: bool) -> list[Kernel]:
    """Those that Inductor makes of a graph, in their order."""
    with _disable_current_modes():
        return _kernels_of(copy.deepcopy(graph), is_backward)


def _kernels_of(graph: torch.fx.GraphModule, is_backward: bool) -> list[Kernel]:
    _move(graph)
    inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    compile_fx.view_to_reshape(graph)
    with as_h200(), V.set_fake_mode(_fake_mode(graph)):
        compile_fx._recursive_post_grad_passes(graph, is_inference=False)
        lowering = GraphLowering(graph, example_inputs=inputs, is_backward=is_backward)
        with V.set_graph_handler(lowering), V.set_debug_handler(DebugContext()):
            lowering.run(*inputs)
            lowering.codegen()
            return [*_launched(lowering.scheduler.nodes)]


def _move(graph: torch.fx.GraphModule) -> None:
    """Give all tensors of a graph the device of a GPU."""
    mode = _fake_mode(graph)

    def moved(x: Any) -> Any:
        if isinstance(x, torch.device):
            return DEVICE
        if isinstance(x, Tensor):
            plain = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
            return FakeTensor(mode, plain, DEVICE)
        return x

    for node in graph.graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, moved)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, moved)
        if "val" in node.meta:
            node.meta["val"] = tree_map(moved, node.meta["val"])


def _launched(nodes: Sequence[Any]) -> Iterator[Kernel]:
    for node in nodes:
        name = "fused"
        args: tuple[Any, ...] = ()
        if isinstance(node, scheduler.NopKernelSchedulerNode):
            continue
        if isinstance(node, scheduler.ExternKernelSchedulerNode):
            made: Any = node.node
            if made.python_kernel_name is None:  # one of several results
                continue
            name = made.python_kernel_name.split(".")[-1].replace("default", "")
            name = name or made.python_kernel_name.split(".")[-2]
            origin = next(iter(made.origins), None)
            if origin is not None:
                args = tree_map(lambda x: getattr(x, "meta", {}).get("val", x), origin.args)
        yield Kernel(name, args, node.get_read_write_buffers_sizes())


@contextlib.contextmanager
def as_h200() -> Iterator[None]:
    """Inside, Inductor takes this machine for one with an H200."""
    properties = staticmethod(lambda device=None: H200)
    interface = device_interface.CudaInterface
    changes = [
        mock.patch.object(interface.Worker, "get_device_properties", properties),
        mock.patch.object(interface, "get_device_properties", properties),
        mock.patch.object(interface, "current_device", staticmethod(lambda: 0)),
        mock.patch.object(
            interface, "get_compute_capability", staticmethod(lambda device=None: 90)
        ),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=H200),
        mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)),
        mock.patch.object(torch.cuda, "current_device", return_value=0),
        mock.patch.object(scheduler, "has_triton", return_value=True),
        mock.patch.object(_triton, "triton_hash_with_backend", return_value=""),
    ]
    with contextlib.ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        yield
