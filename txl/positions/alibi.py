"""Attention with linear biases."""

import torch
from torch import Tensor

from txl.config import ModelConfig
from txl.memory import Span
from txl.positions.base import PositionEncoding, spread


class Alibi(PositionEncoding):
    """Logits fall linearly with the distance, at a rate of its own for each head.

    logit_ts = H^(-1/2) q_t.k_s - m_n (t - s)          m_n = 2^(-8 n / N), n = 1 ... N

    Source: Press et al. 2022 (arXiv 2108.12409), sec. 3. Where N is no power of two, as in the authors' code: the rates
    of the power of two below it, then every other rate of twice as many heads. No weights.
    Works with: softmax.
    Cost: N T S additions per layer.
    Beyond the trained length: works, it is made for that; what is far weighs less and less.
    """

    by_distance = True

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        self.n_head = config.n_head

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        """The term of each distance, (S, N), never in less than float32: long distances are no numbers there."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        distance_S = span.distances_S(like.device).to(dtype)
        return -distance_S[:, None] * slopes(self.n_head, like.device, dtype)

    def score(self, q_BNTH: Tensor, k_BNSH: Tensor, feats: Tensor, span: Span) -> Tensor:
        return spread(feats, span.n_new)


def slopes(n_head: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """How fast the logits of each head fall per token, (N,)."""
    power = 1 << (n_head.bit_length() - 1)
    exponents = torch.arange(1, power + 1, device=device, dtype=dtype) * (8 / power)
    between = (2 * torch.arange(n_head - power, device=device, dtype=dtype) + 1) * (4 / power)
    return 2 ** -torch.cat([exponents, between])
