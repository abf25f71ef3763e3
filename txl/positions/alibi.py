"""Attention with linear biases."""

import torch
from torch import Tensor

from txl.config import ModelConfig
from txl.model.span import Span
from txl.ops.numbers import at_least_float32
from txl.positions.base import PositionEncoding, rows_to_pairs


class Alibi(PositionEncoding):
    """Logits decrease linearly with distance, with one slope per head.

        logit_ts = H^(-1/2) q_t.k_s - m_n (t - s)          m_n = 2^(-8 n / N), n = 1 ... N

    Source: Press et al. 2022 (arXiv 2108.12409), sec. 3. If N is not a power of two, as in the
    authors' code: the slopes for the next lower power of two, then every other slope for twice as
    many heads. No weights.
    Works with: softmax.
    Cost: N T S additions per layer.
    Beyond the trained length: works, by design; distant keys get less weight.
    """

    by_distance = True

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        self.n_head = config.n_head

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        """The term of each distance, (S, N), in float32 or wider: half precision cannot represent
        long distances.
        """
        dtype = at_least_float32(like.dtype)
        distance_S = span.distances_S(like.device).to(dtype)
        return -distance_S[:, None] * slopes(self.n_head, like.device, dtype)

    def score(self, q_BNTH: Tensor, k_BNSH: Tensor, feats: Tensor, span: Span) -> Tensor:
        return rows_to_pairs(feats, span.n_new)


def slopes(n_head: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The slope of each head, (N,)."""
    power = 1 << (n_head.bit_length() - 1)
    exponents = torch.arange(1, power + 1, device=device, dtype=dtype) * (8 / power)
    between = (2 * torch.arange(n_head - power, device=device, dtype=dtype) + 1) * (4 / power)
    return 2 ** -torch.cat([exponents, between])
