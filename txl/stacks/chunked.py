"""A feed-forward network in chunks of tokens, so that the inner states of only one chunk are in
memory.
"""

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from txl.model.feed_forward import FeedForward


def compute_in_chunks(ff: FeedForward, n_token: int) -> None:
    """Compute so many tokens of a segment at a time, 0 for all (Kitaev et al. 2020, sec. 3). The
    backward pass recomputes each chunk.
    """
    if n_token == 0:
        vars(ff).pop("forward", None)
    else:
        ff.forward = partial(_in_chunks, ff, n_token)


def _in_chunks(ff: FeedForward, n_token: int, input: Tensor) -> Tensor:
    if input.shape[1] <= n_token:
        return FeedForward.forward(ff, input)
    return torch.cat([_one(ff, part_BCD) for part_BCD in input.split(n_token, dim=1)], dim=1)


def _one(ff: FeedForward, part_BCD: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return FeedForward.forward(ff, part_BCD)
    return checkpoint(FeedForward.forward, ff, part_BCD, use_reentrant=False)
