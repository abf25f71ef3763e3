"""The definition, by index: the reference that all other implementations are tested against."""

import torch
import torch.nn.functional as F
from torch import Tensor

from txl.ops.rel_attention.tiles import Operands


def naive(
    *operands: *Operands,
    scale: float,
    window: int = -1,
    dropout: float = 0.0,
    first_BT: Tensor | None = None,
) -> Tensor:
    """See `txl.ops.rel_attention.rel_attention`.

    Materialises r as (T, S, N, H): for small sizes.
    """
    q_BNTH, k_BNSH, v_BNSH, r_SNH, u_NH, w_NH = operands
    T = q_BNTH.shape[2]
    S = k_BNSH.shape[2]
    dtype = q_BNTH.dtype
    wide = torch.promote_types(dtype, u_NH.dtype)  # under autocast only the biases are in float32
    q_BNTH, k_BNSH, v_BNSH, r_SNH = (x.to(wide) for x in operands[:4])
    at = torch.arange(S, device=q_BNTH.device)
    distance_TS = at[S - T :, None] - at[None, :]
    r_TSNH = r_SNH[(S - 1 - distance_TS).clamp(0, S - 1)]
    content_BNTS = torch.einsum("bnth,bnsh->bnts", q_BNTH + u_NH[:, None], k_BNSH)
    place_BNTS = torch.einsum("bnth,tsnh->bnts", q_BNTH + w_NH[:, None], r_TSNH)
    visible_TS = distance_TS >= 0
    if window > 0:
        visible_TS = visible_TS & (distance_TS < window)
    if first_BT is None:
        visible = visible_TS
    else:
        visible = visible_TS & (at >= first_BT[:, None, :, None])
    logit_BNTS = (scale * (content_BNTS + place_BNTS)).masked_fill(~visible, -torch.inf)
    return (F.dropout(logit_BNTS.softmax(-1), dropout) @ v_BNSH).to(dtype)
