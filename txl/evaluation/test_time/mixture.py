"""A model's probabilities mixed with those of words seen before, which are found by their hidden states."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from txl.config import Context
from txl.model.transformer import AnyMemory, TransformerXL


class Source(Protocol):
    """Where words seen before come from."""

    def fresh_state(self, batch_size: int) -> Any:
        """The state before the first segment."""
        ...

    def mixed(self, nll_BT: Tensor, hidden_BTD: Tensor, target_BT: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The nats of each target once the source has had its say, and its state after the segment.

        Args:
            nll_BT: the nats so far.
            hidden_BTD: the last hidden states, those that the targets are predicted from.
        """
        ...


class Remembered(NamedTuple):
    """The state of the text: what the model remembers, and each source."""

    memory: AnyMemory
    states: tuple[Any, ...]


class Mixture:
    """A predictor: the model, with the probabilities of each source mixed in, one after the other.

    The model reads each segment once, with keys and values as its memory: its weights do not change.
    """

    def __init__(self, model: TransformerXL, sources: Sequence[Source]) -> None:
        self.model, self.sources = model, tuple(sources)

    def fresh_memory(self, batch_size: int) -> Remembered:
        """Nothing remembered."""
        states = tuple(source.fresh_state(batch_size) for source in self.sources)
        return Remembered(self.model.fresh_memory(batch_size), states)

    def nll(
        self, input_BT: Tensor, target_BT: Tensor, memory: Remembered, context: Context
    ) -> tuple[Tensor, Remembered]:
        """Nats of each target (B, T), and the state after the segment."""
        hidden_BTD, after = self.model(input_BT, memory.memory, context)
        hidden_BTD = hidden_BTD[:, -target_BT.shape[1] :]
        nll_BT = self.model.softmax.nll(hidden_BTD, target_BT)
        states = []
        with torch.autocast(nll_BT.device.type, enabled=False):  # near states are told apart by their last bits
            for source, state in zip(self.sources, memory.states, strict=True):
                nll_BT, state = source.mixed(nll_BT, hidden_BTD, target_BT, state)
                states.append(state)
        return nll_BT, Remembered(after, tuple(states))


def mixed_nll(nll: Tensor, score_K: Tensor, is_target_K: Tensor, share: float) -> Tensor:
    """-log((1 - share) p + share q), where q is the part of softmax(score) that falls on the target.

    Args:
        nll: -log p, (...).
        score_K: (..., K), -inf for what does not take part; where nothing does, q is p.
        is_target_K: which of the K are the word that is asked for, (..., K).
    """
    total = score_K.logsumexp(-1)
    log_q = score_K.masked_fill(~is_target_K, -torch.inf).logsumexp(-1) - total
    log_share, log_rest = torch.tensor([share, 1 - share], dtype=nll.dtype, device=nll.device).log()
    return torch.where(total.isneginf(), nll, -torch.logaddexp(log_rest - nll, log_share + log_q))
