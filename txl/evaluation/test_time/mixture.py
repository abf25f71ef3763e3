"""A model's probabilities interpolated with those of words retrieved by their hidden states."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from txl.config import Context
from txl.model.transformer import AnyMemory, TransformerXL


class Source(Protocol):
    """A retrieval method: where words seen before come from."""

    def fresh_state(self, batch_size: int) -> Any:
        """The state before the first segment."""
        ...

    def mixed(self, nll_BT: Tensor, hidden_BTD: Tensor, target_BT: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The nats of each target after interpolation, and the source's state after the segment.

        Args:
            nll_BT: nats before interpolation.
            hidden_BTD: last hidden states, from which the targets are predicted.
        """
        ...


class Remembered(NamedTuple):
    """The state after a segment: the model's memory and each source's state."""

    memory: AnyMemory
    states: tuple[Any, ...]


class Mixture:
    """A predictor that interpolates the model's probabilities with those of each source, one after the other."""

    def __init__(self, model: TransformerXL, sources: Sequence[Source]) -> None:
        self.model, self.sources = model, tuple(sources)

    def fresh_memory(self, batch_size: int) -> Remembered:
        """The state before the first segment."""
        states = tuple(source.fresh_state(batch_size) for source in self.sources)
        return Remembered(self.model.fresh_memory(batch_size), states)

    def nll(
        self, input_BT: Tensor, target_BT: Tensor, memory: Remembered, context: Context
    ) -> tuple[Tensor, Remembered]:
        """Nats of each target (B, T), and the state after the segment."""
        nll_BT, hidden_BTD, after = self.model.nll_and_hidden(input_BT, target_BT, memory.memory, context)
        nll_BT, states = mixed_with(self.sources, memory.states, nll_BT, hidden_BTD, target_BT)
        return nll_BT, Remembered(after, states)


def mixed_with(
    sources: Sequence[Source], states: tuple[Any, ...], nll_BT: Tensor, hidden_BTD: Tensor, target_BT: Tensor
) -> tuple[Tensor, tuple[Any, ...]]:
    """`Source.mixed` for one source after the other: nats of each target, and their states after the segment."""
    after = []
    with torch.autocast(nll_BT.device.type, enabled=False):  # similar states differ in their last bits only
        for source, state in zip(sources, states, strict=True):
            nll_BT, state = source.mixed(nll_BT, hidden_BTD, target_BT, state)
            after.append(state)
    return nll_BT, tuple(after)


def mixed_nll(nll: Tensor, score_K: Tensor, is_target_K: Tensor, share: float) -> Tensor:
    """-log((1 - share) p + share q), where q is the total softmax(score) of the target.

    Args:
        nll: -log p, (...).
        score_K: (..., K), -inf for entries to ignore; if all are ignored, q = p.
        is_target_K: which of the K entries are the target, (..., K).
    """
    total = score_K.logsumexp(-1)
    log_q = score_K.masked_fill(~is_target_K, -torch.inf).logsumexp(-1) - total
    log_share, log_rest = torch.tensor([share, 1 - share], dtype=nll.dtype, device=nll.device).log()
    return torch.where(total.isneginf(), nll, -torch.logaddexp(log_rest - nll, log_share + log_q))
