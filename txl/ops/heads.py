"""Keys and values that several heads of queries share."""

from torch import Tensor


def per_query_head(n_head: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Keys and values, (B, K, L, H) each, as each of so many heads of queries reads them, (B, N, L,
    H): a copy where K is smaller.
    """
    n_group = n_head // tensors[0].shape[1]
    if n_group == 1:
        return tensors
    return tuple(x_BKLH.repeat_interleave(n_group, dim=1) for x_BKLH in tensors)
