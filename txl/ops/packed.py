"""Linear layers with fixed weights, in the order in which a CPU multiplies bfloat16.

PyTorch's product of bfloat16 copies the weights into that order in each call, which takes longer
than the product of a few rows does: 410 x 2,100 weights and one row 56 us in order, 151 otherwise,
136 in float32; 64 rows 299 and 383 (one thread of an AMD EPYC with AVX512-BF16). The two operators
are those by which code that torch.compile made multiplies weights that do not change; where they
are missing, weights stay as they are.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from txl.ops.processor import HAS_FAST_BFLOAT16

_NAMES = ("_reorder_linear_weight", "_linear_pointwise")
_HAS_OPERATORS = all(hasattr(torch.ops.mkldnn, name) for name in _NAMES)
CAN_PACK = HAS_FAST_BFLOAT16 and _HAS_OPERATORS


def ordered(weight_OI: Tensor) -> Tensor:
    """The weights (O, I) in the order in which `product` reads them: shape, dtype and device stay,
    the numbers come back by `to_dense`. Good for nothing else.
    """
    return torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach(), None)


def product(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, (..., I) to (..., O), all of one dtype, by oneDNN. Weights in order, or
    with any strides.
    """
    return torch.ops.mkldnn._linear_pointwise(x, weight_OI, bias_O, "none", [], "")


class PackedLinear(nn.Linear):
    """A linear layer whose fixed weights are in order.

    Its `state_dict` holds plain weights. Cast or moved, it keeps plain weights and multiplies as
    `nn.Linear` does.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight_OI.shape
        self.weight = nn.Parameter(ordered(weight_OI), requires_grad=False)
        if bias_O is None:
            self.bias = None
        else:
            self.bias = nn.Parameter(bias_O.detach(), requires_grad=False)
        self.is_ordered = True

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        if not self.is_ordered:
            return super().forward(input)
        return product(input.to(self.weight.dtype), self.weight, self.bias)

    def plain_weight(self) -> Tensor:
        """The weights (O, I) as everybody reads them; a copy if they are in order."""
        return self.weight.detach().to_dense()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if self.bias is None:
            bias_O = None
        else:
            bias_O = self.bias.detach().clone()
        copy = type(self)(self.plain_weight(), bias_O)
        memo[id(self)] = copy
        return copy

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.weight = nn.Parameter(self.plain_weight(), requires_grad=False)
        self.is_ordered = False
        return super()._apply(fn, recurse)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self.plain_weight()
