"""Keys and values that several heads of queries share."""

import torch
from torch import Tensor


def per_query_head(n_head: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Keys and values, (B, K, L, H) each, as each of so many heads of queries reads them, (B, N, L,
    H): a copy where K is smaller.
    """
    n_group = n_head // tensors[0].shape[1]
    if n_group == 1:
        return tensors
    return tuple(x_BKLH.repeat_interleave(n_group, dim=1) for x_BKLH in tensors)


def folded(q_BNTH: Tensor, n_key_head: int) -> Tensor:
    """Queries whose heads share keys as further queries of one head, (B, K, G T, H), G = N / K; their
    results are reshaped to (B, N, T, H).
    """
    return q_BNTH.unflatten(1, (n_key_head, -1)).flatten(2, 3)


def folded_mask(mask: Tensor, n_group: int) -> Tensor:
    """What each of the T queries of a head sees or is given, (..., T, S), for the G T of `folded`."""
    return torch.cat([mask] * n_group, dim=-2)
