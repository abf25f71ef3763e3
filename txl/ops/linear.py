"""Linear layers: each product by the library, and in the layout, that takes least time."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.ops import few_rows, onednn, packed
from txl.ops.numbers import is_autocast_on

CAST_PAYS = 64
"""Rows from which a product in 16 bits makes up for the cast of its weights. On an AMD EPYC, one
thread, a weight takes 1.0 ns to cast, and 25 or 9 ps a row to multiply in float32 or bfloat16.
"""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, (..., in) to (..., out)."""
    if few_rows.serves(x, weight):
        return few_rows.linear(x, weight, bias)
    return onednn.linear(x, weight, bias)


def product_with(layer: nn.Linear, n_row: int) -> Callable[[Tensor], Tensor]:
    """A layer's product of n_row rows, (R, I) to (R, O), with fixed weights: for use without
    gradients and autocast, so that nothing is asked in each call.
    """
    weight_OI = layer.weight
    bias_O = layer.bias
    if isinstance(layer, packed.PackedLinear) and layer.is_ordered:
        return lambda x_RI: packed.product(x_RI, weight_OI, bias_O)
    if few_rows.pays(weight_OI, n_row):
        return lambda x_RI: few_rows.linear(x_RI, weight_OI, bias_O)
    if onednn.serves(weight_OI.new_empty(n_row, weight_OI.shape[1]), weight_OI):
        return lambda x_RI: packed.product(x_RI, weight_OI, bias_O)
    return lambda x_RI: F.linear(x_RI, weight_OI, bias_O)


def linear_in_part(x: Tensor, part: Tensor, bias: Tensor | None = None) -> Tensor:
    """`linear` for a part of a table. Autocast caches the casts of parameters, not those of their
    parts; on a CPU, fewer than `CAST_PAYS` rows are multiplied in float32, which takes less time
    than to cast the weights.
    """
    is_short = (
        x.device.type == "cpu" and part.dtype == torch.float32 and x.shape[:-1].numel() < CAST_PAYS
    )
    if not is_short or not is_autocast_on(x.device):
        return linear(x, part, bias)
    with torch.autocast("cpu", enabled=False):
        return linear(x.float(), part, bias)


class Linear(nn.Linear):
    """`nn.Linear` computed by `linear`.

    Attributes:
        cast: the weight, and copies of it and of the bias that are multiplied in their place while
            a layer runs, see `txl.ops.cast`; empty: there are none.
    """

    cast: tuple[Tensor, ...] = ()

    def operands(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias as they are multiplied. Copies are those of one weight: where another takes
        its place for a call (`functional_call`), it is multiplied itself.
        """
        if not self.cast or self.cast[0] is not self.weight:
            return self.weight, self.bias
        _, weight, *bias = self.cast
        return weight, bias[0] if bias else None

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        return linear(input, *self.operands())
