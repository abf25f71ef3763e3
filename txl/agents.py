"""Transformer-XL for vectors in place of words: agents, time series, anything read segment by
segment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from txl.config import Context, ModelConfig, UsageError
from txl.inference.frozen import AnyMemory, fresh_memory, projected, read
from txl.inference.key_values import KeyValueMemory
from txl.model.streams import Memory, joined, of_named
from txl.model.transformer import Body
from txl.positions import PositionEncoding

_EVER = 2**30
"""An age beyond every memory, which kernels can hold in 32 bits."""


@dataclass(frozen=True, eq=False)
class AgentMemory:
    """What `MemoryTransformer` remembers: plain tensors with one row an environment. Immutable.

    Attributes:
        memory: what the layers remember.
        age_B: vectors of each row's episode before the first that the next segment reads, (B,);
            None: no row has ever started anew.
        n_step_B: vectors of the segment that each row was last read in, (B,), where the position
            encoding depends on it; None: it does not, or nothing has been read.
    """

    memory: AnyMemory
    age_B: Tensor | None = None
    n_step_B: Tensor | None = None

    def rows(self, index_B: Tensor) -> "AgentMemory":
        """The rows with these indices, which may repeat, in their order."""
        counts = {}
        for name, count_B in self._counts().items():
            counts[name] = count_B[index_B]
        return AgentMemory._of_counts(self.memory.rows(index_B), counts)

    def to(self, device: torch.device | str) -> "AgentMemory":
        """A copy on a device."""
        counts = {}
        for name, count_B in self._counts().items():
            counts[name] = count_B.to(device)
        return AgentMemory._of_counts(self.hidden.to(torch.device(device)), counts)

    def detached(self) -> "AgentMemory":
        """Without the graph of what it was computed from, before a step that has a backward pass of
        its own.
        """
        if isinstance(self.memory, KeyValueMemory):
            memory = self.memory
        else:
            memory = self.memory.detached()
        return replace(self, memory=memory)

    @property
    def hidden(self) -> Memory:
        """The memory of hidden states.

        Raises `ValueError` if it is projected, see `MemoryTransformer.projected`.
        """
        if isinstance(self.memory, KeyValueMemory):
            raise ValueError(
                "projected keys and values serve one rollout; keep the memory that it began with"
            )
        return self.memory

    def tensors(self) -> dict[str, Tensor]:
        """All that it is, by name, for a file or a buffer; `of` makes it again.

        Raises:
            ValueError: if it is projected, see `MemoryTransformer.projected`.
        """
        return self.hidden.named() | self._counts()

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "AgentMemory":
        """The memory of these `tensors`."""
        counts = {}
        for name, tensor in tensors.items():
            if name in ("age", "n_step"):
                counts[name] = tensor
        rest = {}
        for name, tensor in tensors.items():
            if name not in counts:
                rest[name] = tensor
        return cls._of_counts(of_named(rest), counts)

    @classmethod
    def stacked(cls, parts: Sequence["AgentMemory"]) -> "AgentMemory":
        """The rows of several memories of as many steps, in their order.

        Raises:
            ValueError: if they remember different numbers of steps, see `streams.joined`, or one is
                projected.
        """
        memory = joined([part.hidden for part in parts])
        is_aged = any(part.age_B is not None for part in parts)
        if is_aged:
            ages_B = torch.cat([part.ages_B for part in parts])
        else:
            ages_B = None
        n_steps = []
        for part in parts:
            if part.n_step_B is not None:
                n_steps.append(part.n_step_B)
        return cls(memory, ages_B, torch.cat(n_steps) if len(n_steps) == len(parts) else None)

    def _counts(self) -> dict[str, Tensor]:
        """What it holds besides the memory of the layers, by name."""
        counts = {"age": self.age_B, "n_step": self.n_step_B}
        return {name: count_B for name, count_B in counts.items() if count_B is not None}

    @classmethod
    def _of_counts(cls, memory: AnyMemory, counts: Mapping[str, Tensor]) -> "AgentMemory":
        return cls(memory, counts.get("age"), counts.get("n_step"))

    @property
    def ages_B(self) -> Tensor:
        """`age_B`; where no row has started anew, all that is remembered belongs to its episode:
        older than any.
        """
        if self.age_B is not None:
            return self.age_B
        layer = self.memory.layers[0]
        if isinstance(layer, Tensor):
            device = layer.device
        else:
            device = layer.k_BNMH.device
        return torch.full((self.memory.batch_size,), _EVER, device=device)


class MemoryTransformer(Body):
    """The layers of Transformer-XL, for vectors: an agent's observations, for instance.

        config = ModelConfig(n_layer=4, d_model=128, n_head=4, d_head=32, d_inner=512)
        body = MemoryTransformer(config)
        hidden_BTD, memory = body(x_BTD, memory, context, reset_BT)

    One step at a time gives the numbers that whole segments give if `context.same_length` is set:
    every vector then sees the mem_len last ones, itself included, wherever segments end. Encodings
    that place hidden states count from where the memory begins; with these all segments must be of
    one length.
    Weights are as PyTorch draws them for linear layers, wide enough for a few layers without a rate
    to warm up.
    """

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0, dropatt: float = 0.0) -> None:
        super().__init__()
        self.add_layers(config, dropout=dropout, dropatt=dropatt)
        for module in self.modules():
            if isinstance(module, PositionEncoding):
                module.reset_parameters()

    def forward(
        self,
        x_BTD: Tensor,
        memory: AgentMemory | None,
        context: Context,
        reset_BT: Tensor | None = None,
    ) -> tuple[Tensor, AgentMemory]:
        """Read a segment of vectors.

        Args:
            x_BTD: the vectors, (B, T, d_model).
            memory: what was returned for the segment before; None: the first one.
            reset_BT: True where a row starts anew: that vector and those after it see nothing
                before it, (B, T). None: no row starts anew in this segment.
        Returns:
            The hidden states of the last layer, (B, T, d_model), and the memory for the next
            segment.
        Raises:
            ValueError: if a shape is wrong, resets are not booleans, or the memory is that of
                another model or of other rows.
            UsageError: if position encoding, attention rule or memory do not support the context or
                resets, or the encoding no segments of another length than the one before.
        """
        self._require_fit(x_BTD, memory, reset_BT)
        if memory is None:
            if reset_BT is None:
                ages_B = None
            else:
                ages_B = torch.zeros(len(x_BTD), dtype=torch.int64, device=x_BTD.device)
            memory = AgentMemory(self.empty_memory(len(x_BTD), like=x_BTD), ages_B)
        since_BT = None
        if reset_BT is not None or memory.age_B is not None:
            since_BT = _since(memory.ages_B, reset_BT, n_new=x_BTD.shape[1])
        hidden_BTD, after = self._read(x_BTD, memory.memory, context, since_BT)
        if since_BT is None:
            age_B = None
        else:
            next_BT = torch.cat([since_BT, since_BT[:, -1:] + 1], dim=1)
            # the last ext_len vectors are not remembered, and are read again
            age_B = next_BT[:, max(0, x_BTD.shape[1] - context.ext_len)]
        return hidden_BTD, AgentMemory(after, age_B, self._n_step_B(x_BTD))

    def _read(
        self, x_BTD: Tensor, memory: AnyMemory, context: Context, since_BT: Tensor | None
    ) -> tuple[Tensor, AnyMemory]:
        if isinstance(memory, Memory):
            return self.read(x_BTD, memory, context, since_BT)
        needs_gradients = x_BTD.requires_grad or any(p.requires_grad for p in self.parameters())
        if torch.is_grad_enabled() and needs_gradients:
            raise ValueError(
                "a memory of keys and values takes no gradient; use torch.no_grad(), or start with"
                " memory=None"
            )
        return read(self, x_BTD, memory, context, since_BT)

    @torch.no_grad()
    def projected(self, memory: AgentMemory | None, batch_size: int | None = None) -> AgentMemory:
        """The memory with keys and values projected, for steps without gradients and with fixed
        weights, which take less time; the same one where the encoding or the memory's rule does not
        allow it. What a learner starts from, or what is stored, is the memory with which a rollout
        began.

        Args:
            memory: None: an empty one, for `batch_size` rows.
        """
        if memory is None:
            return AgentMemory(fresh_memory(self, batch_size or 1))
        if not isinstance(memory.memory, Memory):
            return memory
        return replace(memory, memory=projected(self, memory.memory))

    def _n_step_B(self, x_BTD: Tensor) -> Tensor | None:
        """`AgentMemory.n_step_B` after this segment."""
        if not self.layers[0].attn.pos.places_hidden_states():
            return None
        return torch.full((len(x_BTD),), x_BTD.shape[1], device=x_BTD.device)

    def _require_one_length(self, memory: AgentMemory, n_new: int) -> None:
        """Raise `UsageError` where the encoding gives other numbers in segments
        of another length.
        """
        if memory.n_step_B is None or bool((memory.n_step_B == n_new).all()):
            return
        before = sorted(set(memory.n_step_B.tolist()))
        raise UsageError(
            f"--position {self.config.position}: a segment of {n_new} steps after one of"
            f" {' and '.join(map(str, before))}: it counts places from where the memory begins, so"
            " that a step depends on the length of its segment; read segments of one length, or"
            f" use an encoding of distances, such as {ModelConfig.position}"
        )

    def _require_fit(
        self, x_BTD: Tensor, memory: AgentMemory | None, reset_BT: Tensor | None
    ) -> None:
        shape = tuple(x_BTD.shape)
        d_model = self.config.d_model
        if len(shape) != 3 or shape[2] != d_model:
            raise ValueError(f"vectors of shape {shape}: must be (rows, steps, {d_model})")
        if shape[1] == 0:
            raise ValueError(f"vectors of shape {shape}: must have at least one step")
        if reset_BT is not None and reset_BT.dtype != torch.bool:
            raise ValueError(
                f"reset of {reset_BT.dtype}: must be True where a row starts anew; give"
                " reset.bool()"
            )
        if reset_BT is not None and reset_BT.shape != x_BTD.shape[:2]:
            raise ValueError(
                f"reset of shape {tuple(reset_BT.shape)}: must be {shape[:2]}, as the vectors"
                f" {shape}"
            )
        if memory is None:
            return
        if isinstance(memory.memory, Memory):
            own, (n_layer, width) = (
                memory.memory,
                (len(memory.memory.layers), memory.memory.layers[0].shape[-1]),
            )
            if (own.batch_size, n_layer, width) != (shape[0], len(self.layers), d_model):
                theirs = f"{own.batch_size} rows, {n_layer} layers of size {width}"
                raise ValueError(
                    f"memory of {theirs}: must have {shape[0]} rows, {len(self.layers)} of size"
                    f" {d_model}"
                )
        elif memory.memory.batch_size != shape[0]:
            raise ValueError(
                f"memory of {memory.memory.batch_size} rows: must have {shape[0]}, as the vectors"
                f" {shape}"
            )
        self._require_one_length(memory, shape[1])


def _since(age_B: Tensor, reset_BT: Tensor | None, *, n_new: int) -> Tensor:
    """How many vectors before each one belong to its episode, (B, T)."""
    t_T = torch.arange(n_new, device=age_B.device)
    since_BT = age_B[:, None] + t_T
    if reset_BT is None:
        return since_BT
    last_BT = torch.where(reset_BT.to(t_T.device), t_T, -1).cummax(dim=1).values
    return torch.where(last_BT >= 0, t_T - last_BT, since_BT)
