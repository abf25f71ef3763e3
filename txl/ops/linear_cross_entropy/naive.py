"""The definition: softmax cross entropy of all logits at once."""

import torch
import torch.nn.functional as F
from torch import Tensor


def linear_cross_entropy(hidden_LE: Tensor, weight_VE: Tensor, bias_V: Tensor, target_L: Tensor) -> Tensor:
    """-log softmax(hidden_LE @ weight_VE.T + bias_V)[l, target_L[l]], in nats, (L,). Holds L x V logits."""
    return F.cross_entropy(F.linear(hidden_LE, weight_VE, bias_V), target_L, reduction="none")


def grouped_linear_cross_entropy(
    hidden_LE: Tensor,
    weight_VE: Tensor,
    bias_V: Tensor,
    target_L: Tensor,
    lengths: list[int],
    sizes: list[int],
    more_weight_CE: Tensor | None = None,
    more_bias_C: Tensor | None = None,
) -> Tensor:
    """The same for groups side by side: group g has `lengths[g]` tokens and the next `sizes[g]` rows of the table.

    The first group's logits go on with those of `more_weight_CE`, `more_bias_C`. Targets count within their group.
    """
    weights, biases = list(weight_VE.split(sizes)), list(bias_V.split(sizes))
    if more_weight_CE is not None and more_bias_C is not None:
        weights[0] = torch.cat([weights[0], more_weight_CE])
        biases[0] = torch.cat([biases[0], more_bias_C])
    parts = zip(hidden_LE.split(lengths), weights, biases, target_L.split(lengths), strict=True)
    return torch.cat([linear_cross_entropy(*part) for part in parts])
