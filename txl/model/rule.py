"""The interface of memories: what a layer remembers of earlier segments, and how it reads it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from txl.config import Context, ModelConfig
from txl.registry import reads

if TYPE_CHECKING:
    from txl.model.memory import Reading, State

Run = Callable[[Any, Tensor, "tuple[State, ...]", "Reading"], "tuple[Tensor, tuple[State, ...]]"]
"""How layers read a segment: (layers, h_BTD, states, reading) to the last layer's output and the
states for the next segment."""


@dataclass(frozen=True)
class Traits:
    """What a memory promises, and what it works with.

    Attributes:
        works_with: fields of configurations that must have one of these values.
        is_bounded: what is kept depends on mem_len tokens of each layer only, and neither on where
            the reading began nor on where segments end.
        is_queue: what is kept of a token does not depend on where segments end, which only says how
            many tokens are kept.
        keeps_places: as much stands before the segment in every row; encodings that count positions
            from its beginning need that.
        masks_documents: what is kept of one document is not read in another of the same row.
        weighs_keys: it gives attention factors, see `Span.log_weight_BTS`.
        learns_to_write: what it keeps gets a gradient only from what the same step reads later, so
            that a step in one part does not teach it.
        compresses: it keeps `Context.compressed_len` states besides those of mem_len tokens.
        looks_up: it keeps `Context.lookup_len` tokens besides those.
        idle: by which flag it remembers nothing of what makes it more than others, and what to do;
            empty: it does.
    """

    works_with: Mapping[str, tuple[Any, ...]]
    is_bounded: bool = False
    is_queue: bool = False
    keeps_places: bool = True
    masks_documents: bool = True
    weighs_keys: bool = False
    learns_to_write: bool = False
    compresses: bool = False
    looks_up: bool = False
    idle: Callable[[Context], str] = lambda context: ""


class MemoryRule(nn.Module):
    """What a layer remembers of earlier segments, and how it reads it: a part of the layer, with
    weights of its own if it needs some. To add one, see docs/extending.md.

    A checkpoint stores every tensor of a `State`. What is kept of one row never depends on others.
    Settings of its own are the dataclass `Settings` inside the class, see
    `txl.config.PartSettings`.
    """

    traits: ClassVar[Traits] = Traits(works_with={"reversible": (False,)})
    when_added: ClassVar[Mapping[str, Any]] = {}
    """Settings, other than the defaults, with which it is added to weights that were trained
    without it."""
    when_missing: ClassVar[Mapping[str, Any]] = {}
    """Settings, other than the defaults, of models that were saved before there were such."""
    run: Any = None
    """In place of one layer after the other, a `Run`; asked of the first layer's rule."""

    @classmethod
    def reads(cls) -> frozenset[str]:
        """The settings it reads: its own, and `compressed_len` and `lookup_len` where they apply."""
        follow = {"compressed_len": cls.traits.compresses, "lookup_len": cls.traits.looks_up}
        return reads(cls) | {name for name, is_read in follow.items() if is_read}

    @classmethod
    def of_layer(cls, config: ModelConfig, layer: int) -> "type[MemoryRule]":
        """The rule of a layer, counted from 0."""
        return cls

    @classmethod
    def empty(cls, config: ModelConfig, batch_size: int, *, like: Tensor) -> "State":
        """The state before the first segment, with dtype and device of `like`."""
        raise NotImplementedError

    @classmethod
    def full(
        cls, config: ModelConfig, context: Context, batch_size: int, *, like: Tensor
    ) -> "State":
        """The state, of zeros, once it has grown as long as it may."""
        raise NotImplementedError

    @classmethod
    def n_kept(cls, state: "State") -> int:
        """How many keys a layer attends to besides those of the segment."""
        return state.hidden_BMD.shape[1]

    def forward(
        self, layer: Any, h_BTD: Tensor, state: "State", reading: "Reading"
    ) -> "tuple[Tensor, State]":
        """The output of the layer for a segment, (B, T, D), by `Layer.attend`, and the state for
        the next segment. The last `ext_len` tokens are not kept: the next segment reads them again.
        """
        raise NotImplementedError
