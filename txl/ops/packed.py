"""Weights in bfloat16 in the order in which a CPU multiplies them.

PyTorch's product of bfloat16 copies the weights into that order in each call, which takes longer than the product of a
few rows does: 410 x 2,100 weights and one row 56 us in order, 151 otherwise, 136 in float32; 64 rows 299 and 383 (one
thread of an AMD EPYC with AVX512-BF16). The two operators are those by which code that torch.compile made multiplies
weights that do not change; where they are missing, weights stay as they are.
"""

import torch
from torch import Tensor, nn

from txl.ops.processor import HAS_FAST_BFLOAT16

_OPERATORS = torch.ops.mkldnn
CAN_PACK = HAS_FAST_BFLOAT16 and all(hasattr(_OPERATORS, n) for n in ("_reorder_linear_weight", "_linear_pointwise"))


def is_packed(weight: Tensor) -> bool:
    """True for the result of `packed`."""
    return weight.is_mkldnn


def packed(weight_OI: Tensor) -> nn.Parameter:
    """The weights (O, I), in order. They have shape, dtype and device, and come back by `to_dense`; else they are good
    for `linear` alone, without gradients."""
    return nn.Parameter(_OPERATORS._reorder_linear_weight(weight_OI.detach(), None), requires_grad=False)


def linear(x: Tensor, packed_OI: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias, (..., I) to (..., O), in bfloat16."""
    return product(x.to(packed_OI.dtype), packed_OI, bias)


def product(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, all of one dtype, by oneDNN. Weights in order, or with any strides."""
    return _OPERATORS._linear_pointwise(x, weight_OI, bias_O, "none", [], "")
