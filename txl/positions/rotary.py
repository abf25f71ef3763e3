"""Rotary position embedding."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from txl.config import SIZE, ModelConfig, PartSettings, option, require
from txl.model.span import Span
from txl.ops.numbers import at_least_float32
from txl.positions.base import PositionEncoding


class Rotary(PositionEncoding):
    """Queries and keys are rotated by an angle proportional to the position, so q.k depends on the
    distance.

    logit_ts = H^(-1/2) (Rot_t q_t).(Rot_s k_s) = H^(-1/2) q_t.(Rot_(s-t) k_s)
    Rot_p rotates the pair of channels (c, c + H/2) by the angle p w_c, w_c = base^(-2c/H), scaled;
    of the first H channels of a head only, if rope_part is below 1

    Source: Su et al. 2021, RoFormer (arXiv 2104.09864), sec. 3.2, eq. 14 to 16; scalings: see
    `scaled`.
    Differs from the paper: a channel's partner is half a head away instead of adjacent, which only
    permutes the channels of W_q and W_k.
    Keys are remembered unrotated and rotated to their current positions at each read. No weights.
    Works with: softmax, performer, lsh.
    Cost: 4 (T + S) N H multiplications per layer.
    Beyond the trained length: works, with untrained angles. `clamp_len` is refused: rotating
    queries and keys separately cannot clamp a distance.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(PartSettings):
        rope_base: float = option(10000.0, "base of the frequencies of rotary positions", above=0)
        rope_part: float = option(
            1.0, "share of a head's channels that are rotated", above=0, maximum=1
        )
        rope_scaling: Literal["none", "linear", "llama3"] = option(
            "none",
            "change of these frequencies for texts longer than those of the first training: linear:"
            " all are divided by rope_factor; llama3: the slow ones are",
        )
        rope_factor: float = option(
            1.0, "see rope_scaling", when=("rope_scaling", "linear", "llama3"), above=0
        )
        rope_low: float = option(
            1.0,
            "slow frequencies turn fewer times than this in rope_trained_len",
            when=("rope_scaling", "llama3"),
            above=0,
        )
        rope_high: float = option(
            4.0,
            "frequencies that turn more often than this stay as they are",
            when=("rope_scaling", "llama3"),
            above=0,
        )
        rope_trained_len: int = option(
            8192,
            "tokens of the first training's texts",
            when=("rope_scaling", "llama3"),
            **SIZE,
        )

        def require_fits(self, config: ModelConfig) -> None:
            """See `PartSettings.require_fits`."""
            require(
                self.rope_low < self.rope_high,
                f"--rope_low {self.rope_low}: must be below --rope_high {self.rope_high}",
            )

    clamps = False

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        settings = config.settings(self.Settings)
        n_turned = int(config.d_head * settings.rope_part)
        require(
            n_turned % 2 == 0 and n_turned > 0,
            f"--d_head {config.d_head}: --position rotary rotates pairs of channels; use an"
            " even one",
        )
        exponent_C = torch.arange(0, n_turned, 2, dtype=torch.float32, device="cpu") / n_turned
        self.freq_C = scaled(1.0 / settings.rope_base**exponent_C, settings)
        """w, (H/2,), rounded to float32 for every dtype, as in other programs; on the CPU. No
        buffer: `model.bfloat16()` would round it.
        """
        self._wide_C = self.freq_C.double()
        self._freq_on: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        """Cosines and sines of each key's place, (S, 2, H/2), for all layers."""
        return self.turns(span.key_positions_S(like.device), at_least_float32(like.dtype))

    def turns(self, place_L: Tensor, dtype: torch.dtype) -> Tensor:
        """Cosines and sines of places, (L, 2, H/2), from angles in float64: at place 10^9 they are
        as exact as at the first.
        """
        wide = torch.float64
        if place_L.device.type == "mps":
            wide = torch.float32
        angle_LC = place_L[:, None].to(wide) * self.frequencies(place_L.device, wide)
        return torch.stack([angle_LC.cos(), angle_LC.sin()], dim=1).to(dtype)

    def frequencies(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """`freq_C` there, (H/2,). To another device it is copied once: a copy waits for it, and none
        may be recorded in a CUDA graph. On the CPU nothing is kept, which an export would warn of.
        """
        if device.type == "cpu":
            return self._wide_C.to(dtype)
        where = device, dtype
        if where not in self._freq_on:
            self._freq_on[where] = self.freq_C.to(device, dtype)
        return self._freq_on[where]

    def transform_qk(
        self, q_BNTH: Tensor, k_BNSH: Tensor, feats: Tensor, span: Span
    ) -> tuple[Tensor, Tensor]:
        return turned(q_BNTH, feats[span.n_mem : span.n_key]), turned(k_BNSH, feats[: span.n_key])


def scaled(freq_C: Tensor, settings: Rotary.Settings) -> Tensor:
    """Frequencies for texts longer than those of the first training.

    linear      w / factor (Chen et al. 2023, arXiv 2306.15595, eq. 3)
    llama3      of a frequency that turns n times within trained_len: w / factor for n < low, w for
                n > high, and between them (1 - s) w / factor + s w with s = (n - low) / (high - low)
                (Grattafiori et al. 2024, arXiv 2407.21783, and the authors' code)
    """
    factor = settings.rope_factor
    low = settings.rope_low
    high = settings.rope_high
    n_turn_C = settings.rope_trained_len / (2 * math.pi / freq_C)
    if settings.rope_scaling == "none":
        return freq_C
    if settings.rope_scaling == "linear":
        return freq_C / factor
    share_C = ((n_turn_C - low) / (high - low)).clamp(0, 1)
    return (1 - share_C) * freq_C / factor + share_C * freq_C


def turned(x_BNLH: Tensor, feats_L2C: Tensor) -> Tensor:
    """Rot x, in the dtype of x; of each token with its cosines and sines. Channels beyond those of
    the sines stay as they are.
    """
    cos_LC, sin_LC = feats_L2C.unbind(1)
    n_pair = cos_LC.shape[-1]
    a = x_BNLH[..., :n_pair]
    b = x_BNLH[..., n_pair : 2 * n_pair]
    parts = [a * cos_LC - b * sin_LC, a * sin_LC + b * cos_LC]
    if 2 * n_pair < x_BNLH.shape[-1]:
        parts.append(x_BNLH[..., 2 * n_pair :])
    return torch.cat(parts, dim=-1).to(x_BNLH.dtype)
