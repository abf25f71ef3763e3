"""What memories share that keep what has left the window in another form, and read it beside
attention.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from txl.config import Context, ModelConfig, PartSettings, option
from txl.model.memory import Reading, State
from txl.model.rule import MemoryRule, Traits
from txl.model.span import Span
from txl.model.streams import grown

BESIDE: dict[str, tuple[Any, ...]] = {
    "recurrence": ("below",),
    "reversible": (False,),
    "same_length": (False,),
    "convention": ("txl",),
    "attention_by_distance": (False,),
}
"""What works with rules that keep what has left the window in another form."""


class BesideAttention(MemoryRule):
    """Hidden states as in `fifo`; of those before them something that a gate per head adds to the
    result of attention:

        sigmoid   A = g A_memory + (1 - g) A_local          g = sigmoid(b)
        tanh      A = A_local + tanh(b) A_memory

    b begins at 0. By sigmoid that is half of each, which ruins weights that were trained without
    the memory; by tanh it changes nothing, and b has a gradient.
    Source: of sigmoid the papers of the memories; of tanh Alayrac et al. 2022 (arXiv 2204.14198),
    sec. 2.2, there a number per layer.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(PartSettings):
        memory_gate: Literal["sigmoid", "tanh"] = option(
            "sigmoid",
            "how what is read is added to the result of attention; tanh: begins with nothing of it,"
            " for weights that were trained without (the default there)",
        )

    traits = Traits(BESIDE)
    when_added: ClassVar[Mapping[str, Any]] = {"memory_gate": "tanh"}
    gate_N: nn.Parameter
    """b."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.begins_with_nothing = config.settings(self.Settings).memory_gate == "tanh"
        self.gate_N = nn.Parameter(torch.empty(config.n_head))

    def reset_parameters(self) -> None:
        """Initialise what is not drawn as other weights are."""
        nn.init.zeros_(self.gate_N)

    @classmethod
    def full(cls, config: ModelConfig, context: Context, batch_size: int, *, like: Tensor) -> State:
        return grown(cls.empty(config, batch_size, like=like), context.mem_len)

    def forward(
        self, layer: Any, h_BTD: Tensor, state: State, reading: Reading
    ) -> tuple[Tensor, State]:
        then = partial(self.beside, state.extra, reading.span)
        out_BTD = layer.attend(h_BTD, state.hidden_BMD, reading.feats, reading.span, then)
        return out_BTD, self.kept(state, h_BTD, reading.span, reading.context, layer)

    @abstractmethod
    def beside(
        self, extra: Mapping[str, Tensor], span: Span, q_BNTH: Tensor, local_BNTH: Tensor
    ) -> Tensor:
        """The result of attention with what is read of `State.extra`, (B, N, T, H).

        Args:
            q_BNTH: queries without positions; see `folded` where heads share keys.
            local_BNTH: the result of attention to hidden states and the segment.
        """

    @abstractmethod
    def kept(
        self, state: State, new_BTD: Tensor, span: Span, context: Context, layer: Any
    ) -> State:
        """The state after a segment that the layer read as `new`."""

    def joined(self, read_BNTH: Tensor, local_BNTH: Tensor) -> Tensor:
        """A."""
        gate_N11 = self.gate_N[:, None, None]
        if self.begins_with_nothing:
            return (local_BNTH + gate_N11.tanh() * read_BNTH).to(local_BNTH.dtype)
        share_N11 = gate_N11.sigmoid()
        return (share_N11 * read_BNTH + (1 - share_N11) * local_BNTH).to(local_BNTH.dtype)


def beyond_window(state: State, new_BTD: Tensor, context: Context) -> tuple[Tensor, Tensor]:
    """What of [memory, segment] leaves the window of mem_len tokens, (B, L, D), and the detached
    rest. The last ext_len tokens of the segment are neither.
    """
    n_new = max(0, new_BTD.shape[1] - context.ext_len)
    plain_BMD = torch.cat([state.hidden_BMD, new_BTD[:, :n_new]], dim=1)
    n_left = max(0, plain_BMD.shape[1] - context.mem_len)
    return plain_BMD[:, :n_left], plain_BMD[:, n_left:].detach().clone()


def same_document(span: Span, n_left: int) -> tuple[Tensor, Tensor]:
    """Whether what has left the window before, (B,), and each of the tokens that leave it now, (B,
    L), are of one document with the last of these, if any later token can see that.
    """
    assert span.first_BT is not None
    first_B = span.first_BT[:, max(0, n_left - 1 - span.n_mem)]
    return first_B < 0, torch.arange(n_left, device=first_B.device) >= first_B[:, None]
