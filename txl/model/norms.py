"""The norm of a decoder's hidden states, queries and keys."""

import torch.nn.functional as F
from torch import Tensor, nn

from txl.ops.numbers import widened


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * w over the last axis; float32 or wider in and out.

    Source: Zhang and Sennrich 2019 (arXiv 1910.07467), eq. 4.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., D). As LayerNorm under autocast, in float32 for x in half precision."""
        return F.rms_norm(widened(x), self.normalized_shape, widened(self.weight), self.eps)
