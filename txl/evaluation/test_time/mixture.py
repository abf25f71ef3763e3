"""A model's probabilities interpolated with those of words retrieved by their hidden states; and the
continuous cache, which retrieves recent words.

Source of the cache: Grave et al. 2017 (arXiv 1612.04426, section 3). h_i is the last hidden state
after reading x_1 ... x_i. To predict x_{t+1}, the cache holds the pairs (h_i, x_{i+1}) of the last
`cache_size` tokens, i < t, and

    (1) p_cache(w) is proportional to sum_i 1[w = x_{i+1}] exp(theta h_t . h_i)
    (2) p(w) = (1 - lambda) p_model(w) + lambda p_cache(w)

With an empty cache p = p_model. The paper's variant with one normalisation over vocabulary and
cache is not supported: it needs logits of all words on one scale, which an adaptive softmax does
not have.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from txl.config import Context
from txl.evaluation.config import CacheConfig
from txl.evaluation.test_time.dynamic import DynamicEvaluation
from txl.inference.frozen import Frozen
from txl.model.transformer import TransformerXL


class Source(Protocol):
    """A retrieval method: where words seen before come from."""

    def fresh_state(self, batch_size: int) -> Any:
        """The state before the first segment."""
        ...

    def mixed(
        self, nll_BT: Tensor, hidden_BTD: Tensor, target_BT: Tensor, state: Any
    ) -> tuple[Tensor, Any]:
        """The nats of each target after interpolation, and the source's state after the segment.

        Args:
            nll_BT: nats before interpolation.
            hidden_BTD: last hidden states, from which the targets are predicted.
        """
        ...


class Remembered(NamedTuple):
    """The state after a segment: the predictor's and each source's."""

    memory: Any
    states: tuple[Any, ...]


class Mixture:
    """A predictor that interpolates the probabilities of a model, which may adapt to the text, with
    those of each source, one after the other.

    What a source stored under earlier weights is compared with hidden states under the current
    ones; weights learn from the model's own loss.
    """

    def __init__(self, predictor: Frozen | DynamicEvaluation, sources: Sequence[Source]) -> None:
        self.predictor, self.sources = predictor, tuple(sources)

    def fresh_memory(self, batch_size: int) -> Remembered:
        """The state before the first segment."""
        states = tuple(source.fresh_state(batch_size) for source in self.sources)
        return Remembered(self.predictor.fresh_memory(batch_size), states)

    def nll(
        self, input_BT: Tensor, target_BT: Tensor, memory: Remembered, context: Context
    ) -> tuple[Tensor, Remembered]:
        """Nats of each target (B, T), and the state after the segment."""
        nll_BT, hidden_BTD, after = self.predictor.nll_and_hidden(
            input_BT, target_BT, memory.memory, context
        )
        states = []
        # similar states differ in their last bits only
        with torch.autocast(nll_BT.device.type, enabled=False):
            for source, state in zip(self.sources, memory.states, strict=True):
                nll_BT, state = source.mixed(nll_BT, hidden_BTD, target_BT, state)
                states.append(state)
        return nll_BT, Remembered(after, tuple(states))

    def learn(self, memory: Remembered, counted_BT: Tensor | None) -> Remembered:
        """See `DynamicEvaluation.learn`; a model by itself learns nothing."""
        if isinstance(self.predictor, DynamicEvaluation):
            return memory._replace(memory=self.predictor.learn(memory.memory, counted_BT))
        return memory


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


class Pairs(NamedTuple):
    """Hidden states of recent tokens (B, C, D), and the word after each (B, C)."""

    hidden_BCD: Tensor
    next_BC: Tensor


class ContinuousCache:
    """A source of `Mixture`. Each stream has its own cache of the last `cache_size` tokens.

    The result does not depend on how the text is cut into segments.
    """

    def __init__(self, model: TransformerXL, config: CacheConfig) -> None:
        self.model = model
        self.size = config.cache_size
        self.theta = config.cache_theta
        self.share = config.cache_lambda

    def fresh_state(self, batch_size: int) -> Pairs:
        """An empty cache."""
        weight = self.model.layers[0].attn_norm.weight
        hidden_BCD = weight.new_empty(batch_size, 0, self.model.config.d_model)
        return Pairs(
            hidden_BCD, torch.empty(batch_size, 0, dtype=torch.int64, device=weight.device)
        )

    def mixed(
        self, nll_BT: Tensor, hidden_BTD: Tensor, target_BT: Tensor, state: Pairs
    ) -> tuple[Tensor, Pairs]:
        """(2) for every target, and the cache for the next segment."""
        n_new = target_BT.shape[1]
        n_old = state.next_BC.shape[1]
        hidden_BSD = torch.cat([state.hidden_BCD, hidden_BTD], dim=1)
        next_BS = torch.cat([state.next_BC, target_BT], dim=1)
        place_S = torch.arange(n_old + n_new, device=next_BS.device)
        age_TS = place_S[n_old:, None] - place_S[None, :]
        inside_TS = (age_TS > 0) & (age_TS <= self.size)
        score_BTS = (self.theta * hidden_BTD @ hidden_BSD.mT).masked_fill(~inside_TS, -torch.inf)
        nll_BT = mixed_nll(
            nll_BT, score_BTS, next_BS[:, None, :] == target_BT[:, :, None], self.share
        )
        return nll_BT, Pairs(hidden_BSD[:, -self.size :], next_BS[:, -self.size :])
