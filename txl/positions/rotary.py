"""Rotary position embedding."""

import torch
from torch import Tensor

from txl.config import ModelConfig, require
from txl.model.span import Span
from txl.ops.numbers import at_least_float32, sinusoid
from txl.positions.base import PositionEncoding


class Rotary(PositionEncoding):
    """Queries and keys are rotated by an angle proportional to the position, so q.k depends on the
    distance.

    logit_ts = H^(-1/2) (Rot_t q_t).(Rot_s k_s) = H^(-1/2) q_t.(Rot_(s-t) k_s)
    Rot_p rotates the pair of channels (c, c + H/2) by the angle p 10000^(-2c/H)

    Source: Su et al. 2021, RoFormer (arXiv 2104.09864), sec. 3.2, eq. 14 to 16.
    Differs from the paper: a channel's partner is half a head away instead of adjacent, which only
    permutes the channels of W_q and W_k.
    Keys are remembered unrotated and rotated to their current positions at each read. No weights.
    Works with: softmax, performer, lsh.
    Cost: 4 (T + S) N H multiplications per layer.
    Beyond the trained length: works, with untrained angles. `clamp_len` is refused: rotating
    queries and keys separately cannot clamp a distance.
    """

    clamps = False

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        require(
            config.d_head % 2 == 0,
            f"--d_head {config.d_head}: --position rotary rotates pairs of channels; use an"
            " even one",
        )

    def transform_qk(self, q_BNTH: Tensor, k_BNSH: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        device = q_BNTH.device
        return _turned(q_BNTH, span.query_positions_T(device)), _turned(
            k_BNSH, span.key_positions_S(device)
        )


def _turned(x_BNLH: Tensor, position_L: Tensor) -> Tensor:
    sin_LC, cos_LC = sinusoid(position_L, x_BNLH.shape[-1], at_least_float32(x_BNLH.dtype)).chunk(
        2, dim=-1
    )
    a, b = x_BNLH.chunk(2, dim=-1)
    return torch.cat([a * cos_LC - b * sin_LC, a * sin_LC + b * cos_LC], dim=-1).to(x_BNLH.dtype)
