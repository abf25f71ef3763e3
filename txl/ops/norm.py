"""Norms of hidden states as plain functions, for use without gradients and autocast."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def norm_with(norm: nn.LayerNorm | nn.RMSNorm) -> Callable[[Tensor], Tensor]:
    """What a norm over the last axis computes with its fixed weights, (..., D) to (..., D), up to
    rounding. RMSNorm is made of four operations that take half the time of PyTorch's on one row.
    """
    if isinstance(norm, nn.RMSNorm):
        return _rms_norm_with(norm)
    shape = norm.normalized_shape
    weight = norm.weight
    bias = norm.bias
    eps = norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


def _rms_norm_with(norm: nn.RMSNorm) -> Callable[[Tensor], Tensor]:
    """x w / sqrt(mean(x^2) + eps) = x (w sqrt(D)) / sqrt(|x|^2 + eps D)."""
    size = norm.weight.numel()
    eps = norm.eps
    if eps is None:
        eps = torch.finfo(norm.weight.dtype).eps
    weight_D = norm.weight.detach() * size**0.5
    least = weight_D.new_tensor((eps * size) ** 0.5)
    return lambda x: x * weight_D / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot(least)
