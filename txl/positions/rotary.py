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
    Rot_p rotates the pair of channels (c, c + H/2) by the angle p w_c, w_c = base^(-2c/H), scaled,
    and multiplies it by rope_attention; of the first H channels of a head only, if rope_part is
    below 1

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
        rope_scaling: Literal["none", "linear", "llama3", "yarn", "longrope"] = option(
            "none",
            "change of these frequencies for texts longer than those of the first training: linear:"
            " all are divided by rope_factor; llama3, yarn: the slow ones are; longrope: each by a"
            " factor of its own",
        )
        rope_factor: float = option(
            1.0,
            "see rope_scaling",
            when=("rope_scaling", "linear", "llama3", "yarn", "longrope"),
            above=0,
        )
        rope_low: float = option(
            1.0,
            "slow frequencies turn fewer times than this in rope_trained_len",
            when=("rope_scaling", "llama3", "yarn"),
            above=0,
        )
        rope_high: float = option(
            4.0,
            "frequencies that turn more often than this stay as they are (of yarn mostly 32)",
            when=("rope_scaling", "llama3", "yarn"),
            above=0,
        )
        rope_trained_len: int = option(
            8192,
            "tokens of the first training's texts",
            when=("rope_scaling", "llama3", "yarn", "longrope"),
            **SIZE,
        )
        rope_attention: float | None = option(
            None,
            "factor of turned queries and keys (not given: by rope_factor, as in the paper)",
            when=("rope_scaling", "yarn", "longrope"),
            above=0,
        )
        rope_truncate: bool = option(
            True,
            "the channels at which frequencies begin and end to be slow are whole numbers",
            when=("rope_scaling", "yarn"),
        )
        rope_short: tuple[float, ...] = option(
            (),
            "divisors of the frequencies in a context of up to rope_trained_len tokens",
            when=("rope_scaling", "longrope"),
            above=0,
        )
        rope_long: tuple[float, ...] = option(
            (), "the same in a longer one", when=("rope_scaling", "longrope"), above=0
        )

        def require_fits(self, config: ModelConfig) -> None:
            """See `PartSettings.require_fits`."""
            require(
                self.rope_low < self.rope_high,
                f"--rope_low {self.rope_low}: must be below --rope_high {self.rope_high}",
            )
            require(
                self.rope_scaling != "yarn" or self.rope_base > 1,
                f"--rope_base {self.rope_base}: must be above 1 with --rope_scaling yarn",
            )
            require(
                self.rope_scaling != "longrope" or self.rope_trained_len > 1,
                "--rope_trained_len 1: must be above 1 with --rope_scaling longrope",
            )
            n_pair = _n_turned(config.d_head, self) // 2
            for name in ("rope_short", "rope_long"):
                n_given = len(getattr(self, name))
                require(
                    self.rope_scaling != "longrope" or n_given == n_pair,
                    f"--{name}: has {n_given} numbers; give {n_pair}, one for each pair of channels",
                )

    clamps = False

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        settings = config.settings(self.Settings)
        n_turned = _n_turned(config.d_head, settings)
        require(
            n_turned % 2 == 0 and n_turned > 0,
            f"--d_head {config.d_head}: --position rotary rotates pairs of channels; use an"
            " even one",
        )
        exponent_C = torch.arange(0, n_turned, 2, dtype=torch.float32, device="cpu") / n_turned
        self.freq_C = scaled(settings.rope_base**exponent_C, settings, is_long=False)
        """w, (H/2,), rounded to float32 for every dtype, as in other programs; on the CPU. No
        buffer: `model.bfloat16()` would round it.
        """
        self._factor = factor_of_turned(settings)
        self._most_short: float = math.inf
        self._wide_C = {False: self.freq_C.double()}
        if settings.rope_scaling == "longrope":
            self._most_short = settings.rope_trained_len
            self._wide_C[True] = scaled(
                settings.rope_base**exponent_C, settings, is_long=True
            ).double()
        self._freq_on: dict[tuple[bool, torch.device, torch.dtype], Tensor] = {}

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        """Cosines and sines of each key's place, (S, 2, H/2), for all layers."""
        place_S = span.key_positions_S(like.device)
        return self.turns(place_S, at_least_float32(like.dtype), span.reach)

    def turns(self, place_L: Tensor, dtype: torch.dtype, reach: int) -> Tensor:
        """Cosines and sines of places, (L, 2, H/2), by which queries and keys are turned.

        Args:
            reach: of the context, which tells longrope's frequencies.
        """
        turn_L2C = self.turns_again(place_L, dtype, reach)
        if self._factor == 1:
            return turn_L2C
        return turn_L2C * self._factor

    def turns_again(self, place_L: Tensor, dtype: torch.dtype, reach: int) -> Tensor:
        """The same of what has been turned and has its factor, from angles in float64: at place 10^9
        they are as exact as at the first.
        """
        wide = torch.float64
        if place_L.device.type == "mps":
            wide = torch.float32
        freq_C = self.frequencies(place_L.device, wide, reach)
        angle_LC = place_L[:, None].to(wide) * freq_C
        return torch.stack([angle_LC.cos(), angle_LC.sin()], dim=1).to(dtype)

    def frequencies(self, device: torch.device, dtype: torch.dtype, reach: int = 0) -> Tensor:
        """`freq_C` there, (H/2,), or longrope's for a longer reach. To another device it is copied
        once: a copy waits for it, and none may be recorded in a CUDA graph. On the CPU nothing is
        kept, which an export would warn of.
        """
        wide_C = self._wide_C[reach > self._most_short]
        if device.type == "cpu":
            return wide_C.to(dtype)
        where = wide_C is self._wide_C[False], device, dtype
        if where not in self._freq_on:
            self._freq_on[where] = wide_C.float().to(device, dtype)
        return self._freq_on[where]

    def transform_qk(
        self, q_BNTH: Tensor, k_BNSH: Tensor, feats: Tensor, span: Span
    ) -> tuple[Tensor, Tensor]:
        return turned(q_BNTH, feats[span.n_mem : span.n_key]), turned(k_BNSH, feats[: span.n_key])


def _n_turned(d_head: int, settings: Rotary.Settings) -> int:
    """The channels of a head that are turned."""
    return int(d_head * settings.rope_part)


def factor_of_turned(settings: Rotary.Settings) -> float:
    """Of turned queries and keys, so that its square multiplies their logits.

    Source: Peng et al. 2023, sec. 3.4; of longrope the authors' code.
    """
    factor = settings.rope_factor
    if settings.rope_scaling not in ("yarn", "longrope"):
        return 1.0
    if settings.rope_attention is not None:
        return settings.rope_attention
    if factor <= 1:
        return 1.0
    if settings.rope_scaling == "yarn":
        return 0.1 * math.log(factor) + 1
    return math.sqrt(1 + math.log(factor) / math.log(settings.rope_trained_len))


def scaled(period_C: Tensor, settings: Rotary.Settings, *, is_long: bool) -> Tensor:
    """Frequencies w for texts longer than those of the first training; `period_C` is 1 / w.

    What becomes of them, by `rope_scaling`:

        linear      w / factor (Chen et al. 2023, arXiv 2306.15595, eq. 3)
        llama3      of a frequency that turns n times within trained_len: w / factor for n < low, w for
                    n > high, and between them (1 - s) w / factor + s w with s = (n - low) / (high - low)
                    (Grattafiori et al. 2024, arXiv 2407.21783, and the authors' code)
        yarn        as llama3 with s linear in the channel, see `_share_kept` (Peng et al. 2023, arXiv
                    2309.00071, sec. 3.2, and the authors' code; in the paper s is linear in n)
        longrope    w / short_c in a context that reaches trained_len tokens at most, else w / long_c
                    (Ding et al. 2024, arXiv 2402.13753, sec. 3)
    """
    freq_C = 1.0 / period_C
    factor = settings.rope_factor
    low = settings.rope_low
    high = settings.rope_high
    if settings.rope_scaling == "none":
        return freq_C
    if settings.rope_scaling == "linear":
        return freq_C / factor
    if settings.rope_scaling == "longrope":
        divisors = settings.rope_long if is_long else settings.rope_short
        return 1.0 / (torch.tensor(divisors, device="cpu") * period_C)
    if settings.rope_scaling == "yarn":
        share_C = _share_kept(len(period_C), settings)
        return 1.0 / (factor * period_C) * (1 - share_C) + freq_C * share_C
    n_turn_C = settings.rope_trained_len / (2 * math.pi / freq_C)
    share_C = ((n_turn_C - low) / (high - low)).clamp(0, 1)
    return (1 - share_C) * freq_C / factor + share_C * freq_C


def _share_kept(n_pair: int, settings: Rotary.Settings) -> Tensor:
    """Of yarn's frequencies the share that stays, (n_pair,): 1 up to the channel that turns `high`
    times within trained_len, 0 from the one on that turns `low` times, linear between them.
    """

    def channel(n_turn: float) -> float:
        period = settings.rope_trained_len / (n_turn * 2 * math.pi)
        return 2 * n_pair * math.log(period) / (2 * math.log(settings.rope_base))

    first = channel(settings.rope_high)
    last = channel(settings.rope_low)
    if settings.rope_truncate:
        first = math.floor(first)
        last = math.ceil(last)
    first = max(first, 0)
    last = min(last, 2 * n_pair - 1)
    if first == last:
        last += 0.001
    channel_C = torch.arange(n_pair, dtype=torch.float32, device="cpu")
    return 1 - ((channel_C - first) / (last - first)).clamp(0, 1)


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
