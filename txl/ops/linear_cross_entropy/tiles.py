"""What happens to a tile of logits between two matrix products, in plain PyTorch. `fused` has the same in Triton.

A tile holds the logits of T tokens over U consecutive words, without the bias. `target_T` counts from the tile's first
word; a target outside 0 ... U - 1 belongs to another tile.
"""

import torch
from torch import Tensor


def add_statistics(logit_TU: Tensor, bias_U: Tensor, target_T: Tensor, lse_T: Tensor, target_logit_T: Tensor) -> None:
    """Take the tile into the running log-sum-exp, and the targets' logits where they lie in it; both in place.

    The logits may be overwritten.
    """
    logit_TU = logit_TU.to(lse_T.dtype).add_(bias_U)
    torch.logaddexp(lse_T, logit_TU.logsumexp(1), out=lse_T)
    is_here, column_T1 = _columns(target_T, logit_TU.shape[1])
    target_logit_T.add_(logit_TU.gather(1, column_T1).squeeze(1).masked_fill_(~is_here, 0.0))


def logit_gradient(logit_TU: Tensor, bias_U: Tensor, target_T: Tensor, lse_T: Tensor, grad_T: Tensor) -> Tensor:
    """grad_T * (softmax - one at the target), in the numbers of the logits, which may be overwritten."""
    prob_TU = logit_TU.to(lse_T.dtype).add_(bias_U).sub_(lse_T[:, None]).exp_()
    is_here, column_T1 = _columns(target_T, prob_TU.shape[1])
    prob_TU.scatter_add_(1, column_T1, -is_here.to(prob_TU.dtype)[:, None])
    return prob_TU.mul_(grad_T[:, None]).to(logit_TU.dtype)


def _columns(target_T: Tensor, n_word: int) -> tuple[Tensor, Tensor]:
    """Which targets lie in the tile, and a column for each, (T, 1)."""
    is_here = (target_T >= 0) & (target_T < n_word)
    return is_here, target_T.clamp(0, n_word - 1)[:, None]
