"""Cross-entropy of a linear layer's softmax, in chunks of tokens.

Beyond `BUDGET` logits, tokens are processed in chunks whose logits the backward pass recomputes, so memory does not
grow with tokens x vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from txl.ops.few_rows import linear_in_part

BUDGET = {"cpu": 2**25, "cuda": 2**27}
"""Logits held at once (128 and 512 MiB in float32); the backward pass holds two more tensors of this size."""


def linear_cross_entropy(hidden_LE: Tensor, weight_VE: Tensor, bias_V: Tensor, target_L: Tensor) -> Tensor:
    """-log softmax(hidden_LE @ weight_VE.T + bias_V)[l, target_L[l]], in nats, (L,).

    The softmax is computed in float32 or wider, even if the logits are in half precision. L may be 0.
    """
    n_token = max(1, BUDGET.get(hidden_LE.device.type, BUDGET["cpu"]) // len(weight_VE))
    if len(hidden_LE) <= n_token:
        return _nats(hidden_LE, weight_VE, bias_V, target_L)
    pieces = zip(hidden_LE.split(n_token), target_L.split(n_token), strict=True)
    return torch.cat([checkpoint(_nats, h, weight_VE, bias_V, t, use_reentrant=False) for h, t in pieces])


def _nats(hidden_LE: Tensor, weight_VE: Tensor, bias_V: Tensor, target_L: Tensor) -> Tensor:
    logit_LV = linear_in_part(hidden_LE, weight_VE, bias_V)
    at_least_float32 = torch.promote_types(logit_LV.dtype, torch.float32)
    return F.cross_entropy(logit_LV.to(at_least_float32), target_L, reduction="none")
