"""Attention with positive random features: linear time.

The weights are sums of exponentials, and their causal sums are stable for exponents of any size.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.config import FEW, ModelConfig, PartSettings, option
from txl.model.parts import require_no_dropatt, require_scoreless
from txl.model.span import Span
from txl.ops.numbers import at_least_float32
from txl.positions import PositionEncoding


class PerformerAttention(nn.Module):
    """Softmax attention with an unbiased, factorised estimate of the exponential (FAVOR+).

        out_t  = sum_(s<=t) w_ts v_s / sum_(s<=t) w_ts
        w_ts   = phi(x_t) . phi(y_s)      x = sqrt(scale) q,  y = sqrt(scale) k
        phi(x) = F^(-1/2) exp(-|x|^2 / 2) [exp(omega_1 . x) ... exp(omega_F . x)]

    with omega_i ~ N(0, 1), so that E[w_ts] = exp(scale * q_t . k_s).

    Source: Choromanski et al. 2021, lemma 1, sec. 2.3 and appendix B.1. The omega_i are orthogonal
    in groups of H (sec. 2.4), shared by all heads, and saved with the weights; only `redraw`
    changes them. Remembered keys are the start of the prefix. With `same_length`, sums run over a
    window instead of the prefix, and time grows with the window.

    Rotary positions are relative in expectation only: the estimate for a pair of tokens depends on
    its position in [memory, segment].

    Differs from google-research/performer: no constant is added to the features, which keeps the
    estimate unbiased. Exponents are relative to about the largest that a query sees, so keys of any
    norm work.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(PartSettings):
        n_feature: int = option(256, "random features per layer", **FEW)

    shared_qk = False
    impl = "auto"
    keep_mib = 0
    omega_FH: Tensor

    def __init__(self, config: ModelConfig, *, dropatt: float = 0.0) -> None:
        super().__init__()
        require_scoreless(config)
        require_no_dropatt(config, dropatt)
        n_feature = config.settings(self.Settings).n_feature
        self.register_buffer("omega_FH", orthogonal_normal(n_feature, config.d_head))

    def redraw(self, generator: torch.Generator) -> None:
        """Redraw the features; the result depends on the generator, not on the device."""
        self.omega_FH.copy_(orthogonal_normal(*self.omega_FH.shape, generator=generator))

    @classmethod
    def of_model(cls, config: ModelConfig, *, dropatt: float = 0.0) -> "PerformerAttention":
        """See `AttentionRule.of_model`."""
        return cls(config, dropatt=dropatt)

    @classmethod
    def n_product(cls, config: ModelConfig) -> int:
        """See `AttentionRule.n_product`."""
        return 2 * config.settings(cls.Settings).n_feature

    def forward(
        self,
        q_BNTH: Tensor,
        k_BNSH: Tensor,
        v_BNSH: Tensor,
        *,
        pos: PositionEncoding,
        feats: Tensor,
        span: Span,
    ) -> Tensor:
        # half precision is too coarse for exponents
        with torch.autocast(q_BNTH.device.type, enabled=False):
            dtype = at_least_float32(v_BNSH.dtype)
            omega_FH = self.omega_FH.to(dtype)
            root = pos.scale**0.5
            x_BNTH = root * q_BNTH.to(dtype)
            y_BNSH = root * k_BNSH.to(dtype)
            logx_BNTF = x_BNTH @ omega_FH.mT  # the other factors of phi(x) cancel
            logy_BNSF = y_BNSH @ omega_FH.mT - y_BNSH.square().sum(-1, keepdim=True) / 2
            return causal_ratio(logx_BNTF, logy_BNSF, v_BNSH.to(dtype), span).to(v_BNSH.dtype)


def orthogonal_normal(
    n_row: int, n_column: int, *, generator: torch.Generator | None = None
) -> Tensor:
    """Rows distributed as N(0, I), orthogonal in groups of `n_column`; (n_row, n_column).

    Choromanski et al. 2021, sec. 2.4: directions from a QR decomposition, lengths of independent
    normal vectors.
    """
    groups = []
    for first in range(0, n_row, n_column):
        square = torch.randn(n_column, n_column, generator=generator)
        q, r = torch.linalg.qr(square)
        # with this sign q is uniform over rotations
        groups.append((q * r.diagonal().sign()).mT[: n_row - first])
    length_F1 = torch.randn(n_row, n_column, generator=generator).norm(dim=1, keepdim=True)
    return torch.cat(groups) * length_F1


BLOCK = 128
"""Queries per block: keys within it are multiplied pair by pair, keys before it are summed as a
prefix.
"""


def causal_ratio(logx_BNTF: Tensor, logy_BNSF: Tensor, v_BNSH: Tensor, span: Span) -> Tensor:
    """sum_s w_ts v_s / sum_s w_ts with w_ts = sum_f exp(logx_tf + logy_sf), (B, N, T, H), over
    visible keys s.

    Computed block by block in linear memory. Exponents are relative to the block's largest, per
    feature, if every query of the block sees a key near it; else to the largest that each query
    sees, which is slower. The choice depends on the data; on a GPU, where checking would
    synchronise, it is always the slower one.
    """
    # the last column sums the weights
    v1_BNSH = torch.cat([v_BNSH, torch.ones_like(v_BNSH[..., :1])], dim=-1)
    size = math.ceil(span.n_new / math.ceil(span.n_new / BLOCK))
    if 0 < span.window < span.n_key:
        size = min(size, span.window)
    sums_BNJCH = None
    if logx_BNTF.device.type == "cpu" and not torch.compiler.is_compiling():
        blocks = _Blocks.of(logx_BNTF, logy_BNSF, v1_BNSH, span, size)
        if blocks.have_one_range():
            sums_BNJCH = blocks.read_at_one_peak()
        else:
            sums_BNJCH = None
    if sums_BNJCH is None:
        power_of_2 = 1 << (size.bit_length() - 1)
        sums_BNJCH = _Blocks.of(logx_BNTF, logy_BNSF, v1_BNSH, span, power_of_2).read_by_halves()
    sums_BNTH = sums_BNJCH.flatten(2, 3)[..., : span.n_new, :]
    return sums_BNTH[..., :-1] / sums_BNTH[..., -1:]


class _Blocks(NamedTuple):
    """J blocks of C queries and their keys: `far`, seen by all queries of the block, summed; `own`,
    C keys of which query c sees 0 to c; and with a window `leaving`, C keys of which query c sees c
    to C - 1.
    """

    logx_BNJCF: Tensor
    far_peak_BNJ1F: Tensor
    far_sum_BNJFH: Tensor
    """sum_s exp(logy_sf - far_peak_f) v_s over the keys before the block that
    all its queries see.
    """
    own_BNJCF: Tensor
    own_v_BNJCH: Tensor
    leaving_BNJCF: Tensor | None
    leaving_v_BNJCH: Tensor | None

    @classmethod
    def of(
        cls, logx_BNTF: Tensor, logy_BNSF: Tensor, v_BNSH: Tensor, span: Span, size: int
    ) -> "_Blocks":
        """Blocks of `size` queries. No query sees the padding of the last one."""
        after = -span.n_new % size
        logx_BNJCF = _padded(logx_BNTF, 0, after, 0).unflatten(-2, (-1, size))
        if 0 < span.window < span.n_key:
            before = span.window - span.n_mem
            logy_BNSF = _padded(logy_BNSF, before, after, _lowest(logy_BNSF))
            v_BNSH = _padded(v_BNSH, before, after, 0)
            return cls(logx_BNJCF, *_windowed(logy_BNSF, v_BNSH, span.window, size))
        memory_BNMF, logy_BNTF = logy_BNSF.split([span.n_mem, span.n_new], dim=-2)
        memory_v_BNMH, v_BNTH = v_BNSH.split([span.n_mem, span.n_new], dim=-2)
        own_BNJCF = _padded(logy_BNTF, 0, after, _lowest(logy_BNTF)).unflatten(-2, (-1, size))
        own_v_BNJCH = _padded(v_BNTH, 0, after, 0).unflatten(-2, (-1, size))
        prefix = _prefixes(memory_BNMF, memory_v_BNMH, own_BNJCF, own_v_BNJCH)
        return cls(logx_BNJCF, *prefix, own_BNJCF, own_v_BNJCH, None, None)

    def have_one_range(self) -> bool:
        """True if, for every feature, the block's largest exponent exceeds one that all queries see
        by at most 2/3 of the dtype's exponent range (58 in float32); the last third leaves room for
        sums.
        """
        seen_BNJ1F = torch.maximum(self.far_peak_BNJ1F, self.own_BNJCF[..., :1, :].detach())
        growth = (self._peak() - seen_BNJ1F).max()
        return bool(growth <= -2 / 3 * math.log(torch.finfo(growth.dtype).tiny))

    def read_at_one_peak(self) -> Tensor:
        """Weighted sums, (B, N, J, C, H), each row up to a factor, as masked products."""
        peak_BNJ1F = self._peak()
        logx_BNJCF = self.logx_BNJCF + peak_BNJ1F
        x_BNJCF = (logx_BNJCF - logx_BNJCF.detach().amax(-1, keepdim=True)).exp()
        sums_BNJCH = x_BNJCF @ (self.far_sum_BNJFH * (self.far_peak_BNJ1F - peak_BNJ1F).exp().mT)
        sums_BNJCH = (
            sums_BNJCH
            + (x_BNJCF @ (self.own_BNJCF - peak_BNJ1F).exp().mT).tril() @ self.own_v_BNJCH
        )
        if self.leaving_BNJCF is None or self.leaving_v_BNJCH is None:
            return sums_BNJCH
        return (
            sums_BNJCH
            + (x_BNJCF @ (self.leaving_BNJCF - peak_BNJ1F).exp().mT).triu() @ self.leaving_v_BNJCH
        )

    def read_by_halves(self) -> Tensor:
        """The same for exponents of any size. C is a power of 2.

        Exponents are relative to the largest that the query sees. Queries and keys are multiplied
        only in blocks where all queries see all keys, relative to the keys' peak.
        """
        own_peak_BNJCF = _running_peak(self.own_BNJCF)
        peak_BNJCF = torch.maximum(own_peak_BNJCF, self.far_peak_BNJ1F)
        leaving_BNJCF = leaving_peak_BNJCF = None
        if self.leaving_BNJCF is not None:
            leaving_BNJCF = self.leaving_BNJCF.flip(-2)
            leaving_peak_BNJCF = _running_peak(leaving_BNJCF)
            peak_BNJCF = torch.maximum(peak_BNJCF, leaving_peak_BNJCF.flip(-2))
        logx_BNJCF = self.logx_BNJCF - (self.logx_BNJCF.detach() + peak_BNJCF).amax(
            -1, keepdim=True
        )
        sums_BNJCH = (logx_BNJCF + self.far_peak_BNJ1F).exp() @ self.far_sum_BNJFH
        sums_BNJCH = sums_BNJCH + _triangle(
            logx_BNJCF, self.own_BNJCF, own_peak_BNJCF, self.own_v_BNJCH
        )
        if leaving_BNJCF is None or leaving_peak_BNJCF is None or self.leaving_v_BNJCH is None:
            return sums_BNJCH
        flipped_v_BNJCH = self.leaving_v_BNJCH.flip(-2)
        return sums_BNJCH + _triangle(
            logx_BNJCF.flip(-2), leaving_BNJCF, leaving_peak_BNJCF, flipped_v_BNJCH
        ).flip(-2)

    def _peak(self) -> Tensor:
        """The largest exponent of each block's keys, (B, N, J, 1, F)."""
        peak_BNJ1F = torch.maximum(
            self.far_peak_BNJ1F, self.own_BNJCF.detach().amax(-2, keepdim=True)
        )
        if self.leaving_BNJCF is None:
            return peak_BNJ1F
        return torch.maximum(peak_BNJ1F, self.leaving_BNJCF.detach().amax(-2, keepdim=True))


def _prefixes(
    memory_BNMF: Tensor, memory_v_BNMH: Tensor, own_BNJCF: Tensor, own_v_BNJCH: Tensor
) -> tuple[Tensor, Tensor]:
    """The peak, (B, N, J, 1, F), and the sum, (B, N, J, F, H), of all keys before each block."""
    first_peak_BN1F, sum_BNFH = _summed(memory_BNMF, memory_v_BNMH)
    n_block = own_BNJCF.shape[-3]
    peaks_BNJF = torch.cat([first_peak_BN1F, own_BNJCF.detach().amax(-2)], dim=-2).cummax(-2).values
    before_BNJ1F = peaks_BNJF[..., :-1, None, :]
    after_BNJ1F = peaks_BNJF[..., 1:, None, :]
    done_BNJCF, _ = own_BNJCF.split([n_block - 1, 1], dim=-3)
    done_v_BNJCH, _ = own_v_BNJCH.split([n_block - 1, 1], dim=-3)
    added_BNJFH = (done_BNJCF - after_BNJ1F[..., :-1, :, :]).exp().mT @ done_v_BNJCH
    kept_BNJF1 = (before_BNJ1F - after_BNJ1F)[..., :-1, :, :].exp().mT
    sums = [sum_BNFH]
    for kept_BNF1, added_BNFH in zip(kept_BNJF1.unbind(-3), added_BNJFH.unbind(-3), strict=True):
        sums.append(sums[-1] * kept_BNF1 + added_BNFH)
    return before_BNJ1F, torch.stack(sums, dim=-3)


def _windowed(logy_BNLF: Tensor, v_BNLH: Tensor, window: int, size: int) -> tuple[Tensor, ...]:
    """All fields of `_Blocks` but the first.

    The keys are `window` ones, then T: query t sees t + 1 to t + window.
    """
    n_new = logy_BNLF.shape[-2] - window
    own_BNJCF = logy_BNLF[..., window:, :].unflatten(-2, (-1, size))
    own_v_BNJCH = v_BNLH[..., window:, :].unflatten(-2, (-1, size))
    leaving_BNJCF = logy_BNLF[..., :n_new, :].unflatten(-2, (-1, size))
    leaving_v_BNJCH = v_BNLH[..., :n_new, :].unflatten(-2, (-1, size))
    leaving_BNJCF = _padded(leaving_BNJCF[..., 1:, :], 0, 1, _lowest(logy_BNLF))  # the first key is
    # outside its own query's window
    leaving_v_BNJCH = _padded(leaving_v_BNJCH[..., 1:, :], 0, 1, 0)
    between = []
    for x in (logy_BNLF, v_BNLH):
        between.append(x[..., size : x.shape[-2] - size, :])
    far_BNJKF, far_v_BNJKH = (x.unfold(-2, window - size, size).mT for x in between)
    return *_summed(far_BNJKF, far_v_BNJKH), own_BNJCF, own_v_BNJCH, leaving_BNJCF, leaving_v_BNJCH


def _summed(logy_BNKF: Tensor, v_BNKH: Tensor) -> tuple[Tensor, Tensor]:
    """The peak of the keys K, (B, N, 1, F), and sum_k exp(logy_kf - peak_f) v_k, (B, N, F, H)."""
    if not logy_BNKF.shape[-2]:
        shape_BN1F = (*logy_BNKF.shape[:-2], 1, logy_BNKF.shape[-1])
        return logy_BNKF.new_full(shape_BN1F, _lowest(logy_BNKF)), logy_BNKF.mT @ v_BNKH
    peak_BN1F = logy_BNKF.detach().amax(-2, keepdim=True)
    return peak_BN1F, (logy_BNKF - peak_BN1F).exp().mT @ v_BNKH


def _triangle(
    logx_BNJCF: Tensor, logy_BNJCF: Tensor, peak_BNJCF: Tensor, v_BNJCH: Tensor
) -> Tensor:
    """Weighted sums of the keys 0 to c for query c: its own key, then for the second half of each
    stretch of 2, 4,
    ... C queries the keys of the first half.
    """
    sums_BNJCH = (logx_BNJCF + logy_BNJCF).exp().sum(-1, keepdim=True) * v_BNJCH
    half = 1
    while half < logx_BNJCF.shape[-2]:
        stretches = (-1, 2, half)
        peak_BNJI1F = peak_BNJCF.unflatten(-2, stretches)[..., 0, -1:, :]
        _, logx_BNJICF = logx_BNJCF.unflatten(-2, stretches).unbind(-3)
        logy_BNJICF, _ = logy_BNJCF.unflatten(-2, stretches).unbind(-3)
        v_BNJICH, _ = v_BNJCH.unflatten(-2, stretches).unbind(-3)
        w_BNJICC = (logx_BNJICF + peak_BNJI1F).exp() @ (logy_BNJICF - peak_BNJI1F).exp().mT
        first_BNJICH, second_BNJICH = sums_BNJCH.unflatten(-2, stretches).unbind(-3)
        sums_BNJCH = torch.stack(
            [first_BNJICH, second_BNJICH + w_BNJICC @ v_BNJICH], dim=-3
        ).flatten(-4, -2)
        half *= 2
    return sums_BNJCH


@torch.no_grad()
def _running_peak(logy_BNJCF: Tensor) -> Tensor:
    """The maximum of rows 0 to c; C is a power of 2.

    `cummax`, which also returns indices, is slower.
    """
    peak_BNJCF = logy_BNJCF.clone()
    half = 1
    while half < peak_BNJCF.shape[-2]:
        first_BNJICF, second_BNJICF = peak_BNJCF.unflatten(-2, (-1, 2, half)).unbind(-3)
        second_BNJICF.copy_(torch.maximum(second_BNJICF, first_BNJICF[..., -1:, :]))
        half *= 2
    return peak_BNJCF


def _padded(x_BNSH: Tensor, before: int, after: int, value: float) -> Tensor:
    """Padded with rows of a value; cropped if `before` is negative."""
    if before or after:
        return F.pad(x_BNSH, (0, 0, before, after), value=value)
    return x_BNSH


def _lowest(x: Tensor) -> float:
    """The lowest finite number; differences of -inf would be NaN."""
    return torch.finfo(x.dtype).min
