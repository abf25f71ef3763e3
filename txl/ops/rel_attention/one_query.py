"""Attention of one query a row, as in generation and where agents act: nothing is shifted, so no
blocks are needed.
"""

from torch import Tensor

from txl.ops.numbers import at_least_float32
from txl.ops.rel_attention.tiles import Operands, hide_before


def one_query(
    *operands: *Operands, scale: float, window: int, clamp_len: int, first_B1: Tensor | None
) -> Tensor:
    """The output, (B, N, 1, H), without dropout and gradients; arguments as for `rel_attention`.

    On a CPU half precision is computed in float32: PyTorch's products of half precision first copy
    their operands.
    """
    q_BN1H, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH = operands
    dtype = q_BN1H.dtype
    if q_BN1H.device.type == "cpu":
        wide = at_least_float32(dtype)
    else:
        wide = dtype
    n_key = len(r_SNH)
    if window > 0:
        k_BNSH = k_BNSH[:, :, -window:]
        v_BNSH = v_BNSH[:, :, -window:]
        r_SNH = r_SNH[-window:]
    if clamp_len > 0:
        n_alike = max(0, len(r_SNH) - clamp_len - 1)
    else:
        n_alike = 0
    q_BN1H, k_BNSH, v_BNSH, r_SNH = (x.to(wide) for x in (q_BN1H, k_BNSH, v_BNSH, r_SNH))
    u_N1H, w_N1H = (bias_NH.to(wide)[:, None] for bias_NH in (u_NH, w_NH))
    logit_BN1S = (q_BN1H + u_N1H) * scale @ k_BNSH.mT
    qw_NBH = ((q_BN1H + w_N1H) * scale)[:, :, 0].transpose(0, 1)
    # r once for all rows
    place_BN1R = (qw_NBH @ r_SNH[n_alike:].permute(1, 2, 0)).transpose(0, 1)[:, :, None]
    logit_BN1S[..., n_alike:] += place_BN1R
    logit_BN1S[..., :n_alike] += place_BN1R[..., :1]
    if first_B1 is not None:
        hide_before(logit_BN1S, first_B1[:, None, :, None] - (n_key - len(r_SNH)))
    return (logit_BN1S.softmax(-1) @ v_BNSH).to(dtype)
