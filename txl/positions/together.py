"""Position features of all layers in one product, for encodings of the form of `RelSinusoid`."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from txl.positions.base import RelativeTerms


def terms_of_layers(encodings: Sequence[Any], feats: Tensor) -> list[RelativeTerms] | None:
    """The terms of each layer's logits, of features (S, D) that all share: W_r R by one product.

    Biases that all layers share get one gradient, not a sum of many. None for weights in shards,
    which are whole only while their layer runs.
    """
    first, last = encodings[0], encodings[-1]
    if hasattr(first.r_net.weight, "full_tensor"):
        return None
    if last.u_NH is first.u_NH:
        shared = (x_NH.expand(len(encodings), -1, -1).unbind() for x_NH in (first.u_NH, first.v_NH))
        biases = zip(*shared, strict=True)
    else:
        biases = [(pos.u_NH, pos.v_NH) for pos in encodings]
    r_SE = F.linear(feats, torch.cat([pos.r_net.weight for pos in encodings]))
    r_LSNH = rearrange(r_SE, "s (l n h) -> l s n h", l=len(encodings), n=len(first.u_NH))
    return [RelativeTerms(r, *own) for r, own in zip(r_LSNH.unbind(), biases, strict=True)]
