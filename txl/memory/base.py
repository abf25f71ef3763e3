"""The interface of memories: what is kept of each stream, and the rule by which a layer keeps it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from txl.config import Context, ModelConfig
from txl.memory.rows import not_finite_in, of_rows, require_joinable, rows_joined
from txl.memory.span import Span

BESIDE: dict[str, tuple[Any, ...]] = {
    "recurrence": ("below",),
    "reversible": (False,),
    "same_length": (False,),
    "convention": ("txl",),
    "attention_by_distance": (False,),
}
"""What works with rules that keep what has left the window in another form; see `MemoryRule.only`."""


class State(NamedTuple):
    """What a layer remembers, in plain tensors with one row a stream.

    Attributes:
        hidden_BMD: hidden states that stand directly before the segment, without positions.
        more: what the rule keeps besides, by name.
        loss: what the last segment adds to the loss of the training, a mean over streams; None: nothing.
    """

    hidden_BMD: Tensor
    more: Mapping[str, Tensor] = {}
    loss: Tensor | None = None

    @property
    def length(self) -> int:
        """Remembered tokens whose hidden states are there."""
        return self.hidden_BMD.shape[1]


class MemoryRule(nn.Module):
    """What a layer remembers of earlier segments: the interface, and what most rules share.

    A rule is a part of its layer, with weights of its own if it has some. The hooks, in the order of the computation:
        empty         the memory before the first segment
        entered       what the first layer reads of a segment, and more around it
        span          where what a layer reads stands, and what of it belongs to another document
        read          the hidden states that stand before the segment
        weighed       how much each of them counts for each query
        beside        what is read of the rest, with queries that attention asks too
        kept          what is kept of a segment, and what that adds to the loss
        left          of what the last layer returns the segment's, and what is kept of the rest
    A checkpoint stores every tensor of a `State`. Rows are streams: what is kept of one never depends on another.
    """

    settings: ClassVar[tuple[str, ...]] = ()
    """Fields of `ModelConfig` and `Context` that it reads besides sizes. Flags that go unread are refused."""
    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """The table of what works with it: fields of configurations that have one of these values only."""
    is_bounded: ClassVar[bool] = True
    """What is kept depends on mem_len tokens in each layer only, and neither on where the reading began nor on where
    segments end."""
    reads_weights: ClassVar[bool] = False
    """`kept` computes with weights of the layer or its own, so it is a part of the layer's forward pass: of a model in
    shards they are there only then."""
    entered_weights: ClassVar[tuple[str, ...]] = ()
    """Names of the parameters that `entered` reads, outside the layer's forward pass."""
    learns_to_write: ClassVar[bool] = False
    """What it keeps has a gradient from what the same step reads later, and from nothing else: a step in one part does
    not teach it."""
    masks_documents: ClassVar[bool] = True
    """What is kept of one document is not read in another, in the same row."""
    keeps_places: ClassVar[bool] = True
    """As much stands before the segment in every row. Encodings that count positions from its beginning need that."""
    weighs_keys: ClassVar[bool] = False
    """It gives attention factors, which its plain form takes, and where `takes_factors` says so its form in blocks."""
    is_queue: ClassVar[bool] = False
    """What is kept of a token does not depend on where segments end, which only says how many tokens are kept."""
    projected: ClassVar[Any] = None
    """Remembers the same where weights are fixed, as projected keys and values in place of hidden states; see
    `txl.memory.key_values`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.keeps_output = config.recurrence == "same"

    @classmethod
    def of_layer(cls, config: ModelConfig, layer: int) -> "type[MemoryRule]":
        """The rule of a layer, counted from 0."""
        return cls

    def reset_parameters(self) -> None:
        """Initialise weights of its own that are not drawn as others are."""

    @classmethod
    def empty(cls, config: ModelConfig, batch_size: int, *, like: Tensor) -> State:
        """The memory of a layer before the first segment, with dtype and device of `like`."""
        return State(like.new_empty(batch_size, 0, config.d_model))

    @classmethod
    def full(cls, config: ModelConfig, context: Context, batch_size: int, *, like: Tensor) -> State:
        """The memory of a layer, of zeros, once it has grown as long as it may, with dtype and device of `like`."""
        state, longest = cls.empty(config, batch_size, like=like), cls.longest(config, context)

        def grown(x: Tensor, length: int) -> Tensor:
            return x.new_zeros([size or length for size in x.shape])

        more = {name: grown(x, longest.get(name, context.mem_len)) for name, x in state.more.items()}
        return State(grown(state.hidden_BMD, longest.get("hidden", context.mem_len)), more)

    @classmethod
    def longest(cls, config: ModelConfig, context: Context) -> Mapping[str, int]:
        """How long the tensors of a `State` grow that are empty at first and do not grow to mem_len."""
        return {}

    @classmethod
    def idle(cls, context: Context) -> str:
        """By which flag it remembers nothing of what makes it more than others, and what to do; empty: it does."""
        return ""

    @classmethod
    def length(cls, context: Context, config: ModelConfig) -> int:
        """How much can stand before a segment and after it at most, in positions."""
        return context.mem_len

    @classmethod
    def remembers(cls, context: Context) -> bool:
        """True if anything of a segment is there in the next."""
        return True

    def entered(self, h_BTD: Tensor, state: Any) -> Tensor:
        """What the layers read in place of a segment of vectors; asked of the first layer's rule."""
        return h_BTD

    def left(self, h_BTD: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Of what the layers return the vectors of the segment, and the memory of the first layer."""
        return h_BTD, state

    def span(self, state: Any, context: Context, *, n_new: int, since_BT: Tensor | None = None) -> Span:
        """The positions of what is read and of the segment."""
        return Span.of(context, n_mem=state.length, n_new=n_new, since_BT=since_BT)

    def read(self, state: State) -> Tensor:
        """The hidden states before the segment, (B, M, D), at consecutive positions, which attention reads."""
        return state.hidden_BMD

    def weighed(self, span: Span, new_BTD: Tensor, mem_BMD: Tensor, more: Mapping[str, Tensor]) -> Span:
        """The span with factors of the attention to what stands before the segment and to the segment."""
        return span

    def beside(self, more: Mapping[str, Tensor], span: Span, q_BNTH: Tensor, local_BNTH: Tensor) -> Tensor:
        """The result of attention with what the rule reads of `State.more`, (B, N, T, H).

        Args:
            q_BNTH: queries without positions.
            local_BNTH: the result of attention to what `read` gives and the segment.
        """
        return local_BNTH

    def kept(self, state: State, new_BTD: Tensor, span: Span, context: Context, layer: Any) -> State:
        """The memory for the next segment.

        Args:
            new_BTD: what `layer` read of the segment, or its output with `--recurrence same`. The last `ext_len` tokens
                are left out, because the next segment reads them again.
            span: of this segment.
        """
        raise NotImplementedError

    def through(
        self,
        layer: Any,
        h_BTD: Tensor,
        state: Any,
        feats: Tensor,
        span: Span,
        context: Context,
        run: Callable[..., Any],
    ) -> tuple[Tensor, Any]:
        """The state of the segment after a layer, and the memory for the next segment; `run` computes the layer."""

        def kept(out_BTD: Tensor) -> State:
            new_BTD = layer.read(out_BTD if self.keeps_output else h_BTD)
            return self.kept(state, new_BTD, span, context, layer)

        inputs = layer, h_BTD, self.read(state), feats, span, state.more
        if self.reads_weights:
            return run(*inputs, kept)
        out_BTD = run(*inputs)
        return out_BTD, kept(out_BTD)


@dataclass(frozen=True, eq=False)
class Memory:
    """What all layers remember. Immutable: each segment makes a new one. `None` in its place is the empty memory.

    Differs from kimiyoung/transformer-xl: n_layer tensors of hidden states instead of n_layer + 1, whose last was never
    read.

    Attributes:
        layers: the hidden states, (B, M, D) per layer, without positions.
        more: per layer what its rule keeps besides; empty: nothing.
        loss: of the last segment; see `State`.
    """

    layers: tuple[Tensor, ...]
    more: tuple[Mapping[str, Tensor], ...] = ()
    loss: Tensor | None = None

    @classmethod
    def of(cls, states: Sequence[Any]) -> "Memory":
        """The memory with these states of its layers."""
        losses = [state.loss for state in states if state.loss is not None]
        more = tuple(state.more for state in states) if any(state.more for state in states) else ()
        return cls(tuple(state.hidden_BMD for state in states), more, torch.stack(losses).sum() if losses else None)

    @property
    def states(self) -> tuple[State, ...]:
        """Of each layer."""
        return tuple(map(State, self.layers, self.more or ({},) * len(self.layers)))

    @property
    def length(self) -> int:
        """Remembered tokens whose hidden states are there."""
        return self.layers[0].shape[1]

    @property
    def batch_size(self) -> int:
        return self.layers[0].shape[0]

    def rule(self, layer: Any) -> MemoryRule:
        """The rule by which a layer keeps it."""
        return layer.memory

    def placed(
        self, layers: Sequence[Any], span: Span, context: Context, *, like: Tensor
    ) -> tuple["Memory", tuple[Tensor, ...]]:
        """The memory, and the position features for each layer."""
        return self, (layers[0].attn.pos.prepare(span, like=like),) * len(layers)

    def named(self) -> dict[str, Tensor]:
        """All tensors: those of layer i are `i` and `i.name`."""
        more = {f"{i}.{name}": tensor for i, state in enumerate(self.more) for name, tensor in state.items()}
        return {str(i): hidden_BMD for i, hidden_BMD in enumerate(self.layers)} | more

    @classmethod
    def of_named(cls, tensors: Mapping[str, Tensor]) -> "Memory":
        """The memory of these tensors; see `named`."""
        n_layer = sum(name.isdigit() for name in tensors)
        more: list[dict[str, Tensor]] = [{} for _ in range(n_layer)]
        for name, tensor in tensors.items():
            i, _, rest = name.partition(".")
            if rest:
                more[int(i)][rest] = tensor
        return cls(tuple(tensors[str(i)] for i in range(n_layer)), tuple(more) if any(more) else ())

    @classmethod
    def joined(cls, parts: Sequence["Memory"]) -> "Memory":
        """The memory of the streams of several, in their order.

        Raises:
            ValueError: if they hold different numbers of states, and nothing says how many each row holds.
        """
        named = [part.named() for part in parts]
        require_joinable(named)
        return cls.of_named({name: rows_joined([tensors[name] for tensors in named]) for name in named[0]})

    def between(self, begin: int, end: int) -> "Memory":
        """Of a queue: the tokens from `begin` to `end`, exclusive, relative to the first one here."""
        return Memory(tuple(hidden_BMD[:, begin:end] for hidden_BMD in self.layers))

    def chunks(self, n: int) -> list["Memory"]:
        """The memories of n equal parts of the streams."""
        parts = {name: tensor.chunk(n) for name, tensor in self.named().items()}
        return [self.of_named({name: part[i] for name, part in parts.items()}) for i in range(n)]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Memory":
        """With all tensors changed in the same way."""
        return self.of_named({name: change(tensor) for name, tensor in self.named().items()})

    def finite_in(self, row_B: Tensor) -> tuple["Memory", Tensor]:
        """With zeros for what is not finite in the rows where `row_B` is True, (B,), and in which rows that was."""
        tensors = self.named()
        bad = {name: not_finite_in(tensor, row_B) for name, tensor in tensors.items()}
        was_bad_B = torch.stack([of_rows(bad_BX).any(1) for bad_BX in bad.values()]).any(0)
        return self.of_named({name: x.masked_fill(bad[name], 0) for name, x in tensors.items()}), was_bad_B

    def rows(self, index_B: Tensor) -> "Memory":
        """The rows with these indices, which may repeat, in their order."""
        return self.map(lambda tensor: tensor.index_select(0, index_B))

    def to(self, device: torch.device) -> "Memory":
        """A copy on a device. Copies to the host are synchronous, so the host can read them at once."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=device.type != "cpu"))

    def detached(self) -> "Memory":
        """Without the graph of what it was computed from."""
        return self.map(Tensor.detach)

    def swapped_out(self) -> "Memory":
        """A copy in the host's RAM, page-locked: a GPU makes it without waiting, and must be synchronised before the
        host reads it."""

        def copied(tensor: Tensor) -> Tensor:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            return host.copy_(tensor, non_blocking=True)

        return self.map(copied)
