"""Shared by the PyTorch implementations: operands with heads first, the relative shift as a view,
masking.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

Operands = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""q, k, v, r, u, w as `rel_attention` takes them."""

LARGEST_FUSED_HEAD = 128
"""Sizes of heads that the kernels of `fused` take."""


class Heads(NamedTuple):
    """The operands with heads first, so that one product with r serves all rows of the batch.

    q is stored twice, scaled, with u and with w added; r has one row per distance, farthest first.
    """

    qu_NBTH: Tensor
    qw_NBTH: Tensor
    k_NBSH: Tensor
    v_NBSH: Tensor
    r_NSH: Tensor

    @classmethod
    def of(cls, *operands: *Operands, scale: float) -> "Heads":
        q_BNTH, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH = operands
        q_NBTH = q_BNTH.transpose(0, 1)
        qu_NBTH, qw_NBTH = (_biased(q_NBTH, bias_NH, scale) for bias_NH in (u_NH, w_NH))
        return cls(
            qu_NBTH, qw_NBTH, heads_first(k_BNSH), heads_first(v_BNSH), r_SNH.transpose(0, 1)
        )


class Gradients(Heads):
    """Gradients of `Heads`, accumulated block by block."""

    def of_operands(self, u_NH: Tensor, w_NH: Tensor, scale: float) -> Operands:
        """Gradients of q, k, v, r, u, w in their original layouts. Overwrites its own tensors."""
        dqu_NBTH = self.qu_NBTH.mul_(scale)
        dqw_NBTH = self.qw_NBTH.mul_(scale)
        du_NH = dqu_NBTH.sum((1, 2), dtype=u_NH.dtype)
        dw_NH = dqw_NBTH.sum((1, 2), dtype=w_NH.dtype)
        dq_NBTH = dqu_NBTH.add_(dqw_NBTH)
        dq_BNTH, dk_BNSH, dv_BNSH = (d.transpose(0, 1) for d in (dq_NBTH, self.k_NBSH, self.v_NBSH))
        return dq_BNTH, dk_BNSH, dv_BNSH, self.r_NSH.transpose(0, 1), du_NH, dw_NH


def needs_grad(*operands: *Operands) -> bool:
    """True if autograd needs the gradient of any operand."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in operands)


def like_operands(dout_BNTH: Tensor, *saved: Any) -> tuple[Tensor, ...]:
    """Empty tensors with the shapes, layouts and dtypes of `Gradients.of_operands`, for
    torch.compile.
    """
    q_BNTH, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH, *_ = saved
    heads_first = (x.transpose(0, 1) for x in (q_BNTH, k_BNSH, v_BNSH, r_SNH))
    dq, dk, dv, dr = (x.new_empty(x.shape).transpose(0, 1) for x in heads_first)
    return dq, dk, dv, dr, u_NH.new_empty(u_NH.shape), w_NH.new_empty(w_NH.shape)


def _biased(q_NBTH: Tensor, bias_NH: Tensor, scale: float) -> Tensor:
    """(q + bias) * scale, contiguous, in the dtype of q."""
    biased_NBTH = torch.empty(q_NBTH.shape, dtype=q_NBTH.dtype, device=q_NBTH.device)
    return torch.add(q_NBTH, bias_NH.to(q_NBTH.dtype)[:, None, None], out=biased_NBTH).mul_(scale)


def heads_first(x_BNLH: Tensor) -> Tensor:
    """(N, B, L, H), laid out so that (heads, rows) flatten to a view; copied unless B is 1."""
    x_NBLH = x_BNLH.transpose(0, 1)
    if x_NBLH.shape[1] == 1:
        return x_NBLH
    return x_NBLH.contiguous()


def skewed(x_ZTL: Tensor, n_key: int) -> Tensor:
    """A view with out[z, t, s] = x[z, t, T - 1 - t + s]: `rel_shift` (Dai et al. 2019, appendix B)
    without a copy.

    In flat memory that is element t * (L - 1) + (T - 1) + s: a row stride of L - 1. Needs
    contiguous x with L >= n_key. Past the end of a row the view reads the start of the next: these
    are future pairs, which must be masked. Writing through the view needs rows that do not overlap:
    L > n_key, or T = 1.
    """
    Z, T, L = x_ZTL.shape
    return x_ZTL.as_strided((Z, T, n_key), (T * L, L - 1, 1), x_ZTL.storage_offset() + T - 1)


def hide_before(logit_TS: Tensor, first_T1: Tensor) -> None:
    """Set the logits (..., T, S) of keys before the first visible one of each query, (..., T, 1),
    to -inf, in place.
    """
    # a GPU would be waited for
    can_ask = logit_TS.device.type == "cpu" and not torch.compiler.is_compiling()
    if can_ask and first_T1.max() <= 0:
        return
    at_S = torch.arange(logit_TS.shape[-1], device=logit_TS.device)
    logit_TS.masked_fill_(at_S < first_T1, -torch.inf)


def hide(logit_ZTS: Tensor, n_ahead: int, window: int) -> None:
    """Set the logits of masked pairs to -inf, in place, touching only the two corners that hold
    any.

    Args:
        n_ahead: distance from the first query to the first key.
    """
    _, T, S = logit_ZTS.shape
    at_T = torch.arange(T, device=logit_ZTS.device)[:, None]
    first_hidden = max(0, n_ahead + 1)  # the first future key of the first query
    if first_hidden < S:
        at_S = torch.arange(first_hidden, S, device=logit_ZTS.device)
        logit_ZTS[..., first_hidden:].masked_fill_(at_S > at_T + n_ahead, -torch.inf)
    # up to the last key outside the window of the last query
    last_hidden = min(S, n_ahead + T - window)
    if window > 0 and last_hidden > 0:
        at_S = torch.arange(last_hidden, device=logit_ZTS.device)
        logit_ZTS[..., :last_hidden].masked_fill_(at_S <= at_T + n_ahead - window, -torch.inf)
