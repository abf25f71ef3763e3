"""Kernel launches, bytes and FLOP of one training update on a GPU, counted without one.

    python -m lab.benchmarks.launches [--shapes nvidia-base] [--optims adam] [--graph] [--compile] [--top 12]

The update runs on fake tensors, which have shapes and no values, along the code paths of a GPU in
bfloat16 and over a full memory. Each operator is counted as the kernels that PyTorch 2.13 launches
for it on CUDA, our own operators by their code, compiled layers by the kernels that Inductor writes
for an H200. What is not counted: padding and workspaces of the libraries.

The last line is JSON, one object for each shape and optimizer:
    launches   kernels of an update
    bytes      read and written besides matrix products and attention, no cache assumed
    flop       of matrix products: 2 a multiplication; attention's own are left out
    waits      operators that wait for the device
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode_temporarily
from torch.utils._pytree import tree_leaves

from lab.benchmarks.shapes import TRAINING, Shape
from lab.benchmarks.workers import txl as worker
from lab.benchmarks.workers.serve import segments
from txl import TransformerXL
from txl.memory import full_memory
from txl.model import adaptive
from txl.model import attention as model_attention
from txl.model import layer as model_layer
from txl.model import memory as model_memory
from txl.ops import cast, layer_rows, lookup, rel_attention
from txl.ops import dropout as ops_dropout
from txl.ops import linear as ops_linear
from txl.ops import linear_cross_entropy as head
from txl.ops.lookup import Room, shapes_for_any_ids
from txl.ops.operator import Operator
from txl.ops.rel_attention.launch import n_tiles
from txl.training import optimizers
from txl.training.repeated import copy_memories
from txl.training.step import TrainState


@dataclasses.dataclass
class Part:
    """What the kernels of a part of the update come to."""

    launches: Counter[str] = dataclasses.field(default_factory=Counter)
    n_byte: int = 0
    flop: int = 0


class Kernel(NamedTuple):
    """One of a compiled layer.

    Attributes:
        name: the operator, "fused" for what Inductor writes itself.
        args: the operator's.
        n_byte: read and written.
    """

    name: str
    args: tuple[Any, ...]
    n_byte: int


class Kernels(TorchDispatchMode):
    """Counts the kernels of every operator that runs inside, by the part that `scoped` names."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, Part] = defaultdict(Part)
        self.part = "rest"
        self.n_wait = 0
        self.is_on = False

    def __enter__(self) -> Any:
        self.is_on = True
        return super().__enter__()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._schema.name.split("::")[-1]
        if name == "_local_scalar_dense":
            self.n_wait += 1
        elif name not in NO_KERNEL:
            self.note(name, args, _tensors((args, kwargs)), _tensors(out))
        return out

    def note(self, name: str, args: Any, read: list[Tensor], written: list[Tensor]) -> None:
        """Count the kernels of one operator."""
        if self.is_on:
            kernel = Kernel(name, args, bytes_of(name, args, read, written))
            self._count(self.part, kernel, launches_of(name, args, written))

    def unseen(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, run without this mode: torch.compile leaves alone what a mode looks at."""

        @functools.wraps(function)
        def run(*args: Any, **options: Any) -> Any:
            if not self.is_on:
                return function(*args, **options)
            with _pop_mode_temporarily():
                return function(*args, **options)

        return run

    @contextlib.contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Kernels inside belong to this part."""
        before = self.part
        self.part = part
        try:
            yield
        finally:
            self.part = before

    def scoped(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose kernels belong to this part."""

        @functools.wraps(function)
        def within(*args: Any, **options: Any) -> Any:
            with self.of(part):
                return function(*args, **options)

        return within

    def note_compiled(self, kernel: Kernel, is_backward: bool) -> None:
        """Count a kernel of a compiled layer."""
        if self.is_on:
            part = "backward" if is_backward else self.part
            self._count(part, kernel, launches_of(kernel.name, kernel.args, []))

    def _count(self, name: str, kernel: Kernel, n_launch: int) -> None:
        part = self.parts[name]
        part.launches[kernel.name] += n_launch
        if kernel.name in PRODUCTS:
            left, right = kernel.args[1:3] if "add" in kernel.name else kernel.args[:2]
            part.flop += 2 * left.numel() * right.shape[-1]
        elif not kernel.name.startswith("rel_attention"):
            part.n_byte += kernel.n_byte

    def total(self) -> dict[str, int]:
        """Of all parts, as the last line prints it."""
        return {
            "launches": sum(part.launches.total() for part in self.parts.values()),
            "bytes": sum(part.n_byte for part in self.parts.values()),
            "flop": sum(part.flop for part in self.parts.values()),
            "waits": self.n_wait,
        }


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_"}
VIEWS = """view _unsafe_view expand permute transpose t slice select unsqueeze squeeze split detach
    split_with_sizes chunk alias as_strided unbind unfold view_as diagonal _reshape_alias lift_fresh
    unflatten narrow""".split()
NO_KERNEL = {
    *VIEWS,
    "zeros",  # of outputs of our operator that have no gradient: its eager form makes none
    *"""empty empty_like new_empty empty_strided new_empty_strided device promote_types is_pinned
    _record_function_enter_new _record_function_exit result_type resize_ set_ record_stream
    detach_""".split(),
}
SEVERAL = {"native_layer_norm_backward": 3, "embedding_dense_backward": 5, "index_add_": 5}
"""Operators of several kernels: the gradients of weight and bias; sorted ids, by which `index_put_` adds
on a GPU, which fake tensors would copy the table for, where a CPU has `index_add_`."""
FOREACH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""Tensors in one launch, by how many lists an operator on lists reads and writes."""
LISTS = {"_foreach_norm": 1, "_foreach_mul_": 1, "_foreach_add_": 1, "_foreach_sub_": 1}
FILLS = {"zeros", "zeros_like", "new_zeros", "full", "new_full", "ones_like", "zero_", "fill_"}
GATHERS = {"embedding", "index_select", "gather", "index"}


def launches_of(name: str, args: Any, written: list[Tensor]) -> int:
    """The kernels of one operator on CUDA."""
    if name == "rel_attention":
        return 2  # the queries with their biases, attention
    if name == "rel_attention_backward":
        return _launches_of_attention_backward(*args)
    if name.startswith(("_foreach", "_fused_adam")):
        depth = 4 if name.startswith("_fused") else LISTS.get(name, 2)
        return launches_on_lists(args[0], depth) + (name == "_foreach_norm")
    if name in ("cat", "stack"):
        return n_tiles(len(args[0]), 128)
    if written and all(x.numel() == 0 for x in written):
        return 0
    return SEVERAL.get(name, 1)


def launches_on_lists(tensors: list[Tensor], depth: int) -> int:
    """Those of an operator on lists: 320 blocks of 65,536 numbers each, or as many tensors as fit."""
    n_launch = n_tensor = n_block = 0
    for x in tensors:
        n_chunk = n_tiles(x.numel(), 65_536)
        n_tensor += n_chunk > 0
        for i in range(n_chunk):
            n_block += 1
            is_last = i == n_chunk - 1
            if n_block == 320 or (is_last and n_tensor == FOREACH[depth]):
                n_launch += 1
                n_block = 0
                n_tensor = 0 if is_last else 1
    return n_launch + (n_block > 0)


def _launches_of_attention_backward(dout: Tensor, out: Tensor, *saved: Any) -> int:
    """As `txl.ops.rel_attention.fused._backward` launches them; the last one adds parts."""
    B, N, T, _ = out.shape
    S = saved[3].shape[2]
    keep_mib = saved[-1]
    at_once = min(B, keep_mib * 2**20 // (N * T * n_tiles(S, 64) * 64 * 2))
    n_part = 1
    if at_once:
        n_part = n_tiles(B, n_tiles(B, n_tiles(B, at_once)))
    return 1 + 3 * n_part + 1


def bytes_of(name: str, args: Any, read: list[Tensor], written: list[Tensor]) -> int:
    """Read and written by one operator: each tensor once, and what is expanded as it is stored."""
    if name in FILLS:
        return sum(map(_stored, written))
    if name in GATHERS:
        return 2 * sum(map(_stored, written))
    if name in ("nll_loss_forward", "nll_loss_backward"):
        return _stored(written[0])
    if name == "index_add_":
        return 3 * _stored(read[-1])
    if name == "embedding_dense_backward":
        return _stored(written[0]) + 2 * _stored(read[0])
    distinct = {id(x): x for x in [*read, *written]}
    found = sum(map(_stored, distinct.values()))
    if name.startswith("_fused_adam"):  # weights, moments and, where clipped, gradients are written
        return found * 2
    if "copy" in name:
        return found
    if name.startswith("_foreach") and name.endswith("_"):
        return found + sum(map(_stored, args[0]))
    if name.endswith("_"):  # what it changes is read and written
        return found + sum(map(_stored, written))
    return found


def _stored(x: Tensor) -> int:
    lengths = (n for n, stride in zip(x.shape, x.stride(), strict=True) if stride)
    return math.prod(lengths) * x.element_size()


@contextlib.contextmanager
def gpu_paths(kernels: Kernels, ids: tuple[Tensor, Tensor] | None) -> Iterator[None]:
    """Inside, tensors on the CPU take the code paths of a GPU.

    Args:
        ids: input and target of an update, whose words are grouped on the host; None: in a graph,
            which has room for any.
    """
    from txl.ops import softmax_kernel  # imports Triton

    budget = {"cpu": head.BUDGET["cuda"]}
    launched = LaunchedRows(kernels)
    total_norm = functools.partial(torch.nn.utils.get_total_norm, foreach=True)
    changes = [
        mock.patch.object(torch.nn.Linear, "reset_parameters"),
        mock.patch.object(torch.nn.utils, "get_total_norm", total_norm),
        mock.patch.object(Operator, "__call__", lambda self, *inputs: self.custom_op(*inputs)[0]),
        mock.patch.object(rel_attention, "resolved", _fused),  # torch.compile looks inside
        mock.patch.object(model_attention, "with_memory", _with_memory),
        mock.patch.object(ops_linear, "linear", F.linear),
        *(mock.patch.object(module, "on_gpu", _on_any) for module in ASK),
        mock.patch.object(layer_rows, "_launch", return_value=launched),
        mock.patch.object(ops_dropout, "dropout", _dropout),
        mock.patch.object(head, "_is_in_place", return_value=False),
        mock.patch.object(head, "_has_kernel", return_value=True),
        mock.patch.dict(optimizers._AT_ONCE, cpu=optimizers._AT_ONCE["cuda"]),
        mock.patch.object(softmax_kernel, "gradients_in_place", launched.gradients_in_place),
        mock.patch.multiple(
            head, linear=F.linear, linear_in_part=F.linear, BUDGET=budget, IN_CACHE=2**62
        ),
        mock.patch.multiple(adaptive, check_ids=mock.DEFAULT, to_device=lambda x, device: x),
        mock.patch.object(lookup, "to_device", lambda x, device: x),
    ]
    if ids is not None:
        changes.append(mock.patch.multiple(adaptive, **_by_counts(*ids)))
    with contextlib.ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        yield


ASK = (cast, head, ops_dropout, layer_rows, model_attention, model_layer, model_memory)
"""Modules that ask whether a tensor is on a GPU."""


class LaunchedRows:
    """`txl.ops.triton_layer_rows` without its kernels, which are counted."""

    def __init__(self, kernels: Kernels) -> None:
        from txl.ops.triton_layer_rows import PROGRAMS  # imports Triton

        self._kernels = kernels
        self._n_part = PROGRAMS

    def add_norm(self, x: Tensor, y: Tensor, *others: Any) -> tuple[Tensor, ...]:
        """See there."""
        out = torch.empty_like(x), torch.empty_like(y), x.new_empty(2, x[..., 0].numel())
        return self._launched("add_norm", [x, y], [*out])

    def add_norm_backward(self, dh: Any, dhalf: Any, x: Tensor, y: Tensor, *others: Any) -> Any:
        """See there."""
        parts_2PD = x.new_empty(2, self._n_part, x.shape[-1])
        given = [d for d in (dh, dhalf) if d is not None]
        out = [torch.empty_like(x), torch.empty_like(y), parts_2PD]
        return self._launched("add_norm_backward", [*given, x, y], out)

    def relu(self, z: Tensor, *others: Any) -> Tensor:
        """See there."""
        return self._launched("relu_dropout", [z], [torch.empty_like(z)])[0]

    def relu_backward(self, dout: Tensor, out: Tensor, p: float) -> tuple[Tensor, ...]:
        """See there."""
        parts_PD = dout.new_empty(self._n_part, out.shape[-1], dtype=torch.float32)
        return self._launched(
            "relu_dropout_backward", [dout, out], [torch.empty_like(out), parts_PD]
        )

    def gradients_in_place(self, logit_CV: Tensor, target_C: Tensor) -> Tensor:
        """See `txl.ops.softmax_kernel`."""
        nats_C = logit_CV.new_empty(len(logit_CV), dtype=torch.float32)
        return self._launched(
            "softmax", [logit_CV, logit_CV.view_as(logit_CV)], [logit_CV, nats_C]
        )[1]

    def _launched(self, name: str, read: list[Tensor], out: list[Tensor]) -> tuple[Tensor, ...]:
        self._kernels.note(name, (), read, out)
        return tuple(out)


def _fused(*given: Any, **options: Any) -> str:
    return "fused"


def _on_any(x: Tensor) -> bool:
    return True


def _with_memory(mem_BNMH: Tensor, x_BNTH: Tensor) -> Tensor:
    return torch.cat([mem_BNMH.transpose(1, 2), x_BNTH.transpose(1, 2)], dim=1).transpose(1, 2)


def _dropout(x: Tensor, p: float, *, training: bool = True) -> Tensor:
    if training and p:
        return torch.native_dropout(x, p, train=True)[0]
    return x


def _by_counts(input_BT: Tensor, target_BT: Tensor) -> dict[str, Callable[..., Any]]:
    """The words of each cluster as the host sends them; how many there are is that of these ids."""

    def counts(ids: Tensor, sizes: Sequence[int]) -> list[int]:
        ends = torch.tensor(sizes).cumsum(0)
        return torch.bincount(torch.bucketize(ids.flatten(), ends, right=True)).tolist()

    def found(lengths: list[int]) -> lookup.Members:
        n = sum(lengths)
        return lookup.Members(torch.empty(n, dtype=int), torch.empty(n, dtype=int), lengths)

    def members(id_L: Tensor, sizes: Sequence[int], device: torch.device) -> lookup.Members:
        with unset_fake_temporarily():
            lengths = counts(input_BT, sizes)
        return found(lengths)

    def classes_and_members(
        id_L: Tensor, sizes: Sequence[int], device: torch.device
    ) -> tuple[Tensor, lookup.Members]:
        with unset_fake_temporarily():
            lengths = counts(target_BT, sizes)
        return id_L, found(lengths[1:])

    return {"members": members, "classes_and_members": classes_and_members}


def count(
    shape: Shape, optim: str, *, graph: bool = False, compile_layers: bool = False
) -> Kernels:
    """The kernels of an update of this shape over a full memory.

    Args:
        graph: as --cuda_graph records it.
        compile_layers: as with --compile.
    """
    shape = dataclasses.replace(shape, device="cpu", dtype="bfloat16", compile=compile_layers)
    ids = next(segments(shape))
    sizes = worker.config_of(shape).cluster_sizes
    room = Room.of(sizes, worker.cluster_shares(shape), shape.batch_size * shape.tgt_len)
    kernels = Kernels()
    with (
        gpu_paths(kernels, None if graph else ids),
        _compiled_by(kernels) if compile_layers else contextlib.nullcontext(),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        model = TransformerXL(worker.config_of(shape), dropout=shape.dropout, dropatt=shape.dropatt)
        state = _on_gpu(worker.state_of(model, shape, optim=optim))
        _name_parts(kernels, state)
        if graph:
            state.update = shapes_for_any_ids(room)(state._update)
        state.step(*ids)
        like = torch.empty(0, dtype=state.memories[0].states[0].hidden_BMD.dtype)
        rows = shape.batch_size
        state.memories = [full_memory(state.model.config, state.context, rows, like=like)]
        state.step(*ids)  # what is made once over a full memory
        places = [memory.map(torch.clone) for memory in state.memories]
        with kernels:
            state.step(*ids)
            if graph:
                with kernels.of("memory"):
                    copy_memories(state.memories, places)
    return kernels


def _compiled_by(kernels: Kernels) -> Any:
    """Inside, compiled layers are counted."""
    from lab.benchmarks.inductor import counting  # of one version of PyTorch

    torch._dynamo.reset()
    backend = counting(kernels.note_compiled)
    compiled = torch.nn.Module.compile
    return mock.patch.object(
        torch.nn.Module, "compile", lambda module: compiled(module, backend=backend, dynamic=False)
    )


def _on_gpu(state: TrainState) -> TrainState:
    """With what a training on a GPU chooses."""
    state.checks_later = True
    for optimizer in state.optimizers._all:
        if isinstance(optimizer, optimizers.Muon):
            optimizer._dtype = torch.bfloat16
    return state


def _name_parts(kernels: Kernels, state: TrainState) -> None:
    model = state.model
    for layer in model.layers:
        if layer._compiled_call_impl is None:
            layer.forward = kernels.scoped("layers", layer.forward)
        else:
            compiled = kernels.unseen(layer._compiled_call_impl)
            layer._compiled_call_impl = kernels.scoped("layers", compiled)
    model.word_emb.forward = kernels.scoped("embedding", model.word_emb.forward)
    model.softmax.nll = kernels.scoped("head", model.softmax.nll)
    state._backward = kernels.scoped("backward", state._backward)
    state.optimizers.step = kernels.scoped("optimizer", state.optimizers.step)
    state._update = kernels.scoped("clipping", state._update)


def main() -> None:
    """Print a table for each shape and optimizer, and all totals as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=TRAINING, default=["nvidia-base"])
    parser.add_argument("--optims", nargs="+", choices=("adam", "muon"), default=["adam"])
    parser.add_argument("--graph", action="store_true", help="as train.py --cuda_graph records it")
    parser.add_argument("--compile", action="store_true", help="with layers compiled by Inductor")
    parser.add_argument("--top", type=int, default=12, help="operators that are named [12]")
    args = parser.parse_args()
    totals = {}
    for name in args.shapes:
        for optim in args.optims:
            kernels = count(TRAINING[name], optim, graph=args.graph, compile_layers=args.compile)
            title = f"{name} {optim}" + " graph" * args.graph + " compiled" * args.compile
            _print(title, kernels, args.top)
            totals[title] = kernels.total()
    print(json.dumps(totals))


def _print(title: str, kernels: Kernels, top: int) -> None:
    print(title)
    every: Counter[str] = Counter()
    for name, part in kernels.parts.items():
        every += part.launches
        n = part.launches.total()
        print(
            f"  {name:<10} {n:6,} launches {part.n_byte / 1e9:7.2f} GB {part.flop / 1e12:6.3f} TFLOP"
        )
    for name, n in every.most_common(top):
        print(f"    {n:6,} {name}")


if __name__ == "__main__":
    main()
