"""Label smoothing of the adaptive softmax."""

import torch
import torch.nn.functional as F
from torch import Tensor

from txl.model.adaptive import AdaptiveSoftmax


def smoothing(softmax: AdaptiveSoftmax, hidden: Tensor, target: Tensor) -> Tensor:
    """The loss that label smoothing adds to each target, per unit of smoothing; arguments and order
    as in `AdaptiveSoftmax.nll`.

    With smoothing e the target distribution over C classes is 1 - e on the target plus e / C on
    every class (Szegedy et al. 2016, sec. 7). Its cross-entropy exceeds the nats by e (target logit
    - mean logit); this returns the difference without e, which needs no other logits. The head's
    softmax and a tail cluster's are each smoothed over their own classes.
    """
    clusters, order_P = softmax.by_cluster(hidden, target)
    gaps = []
    for hidden_LE, weights, biases, column_L in clusters:
        weight_CE = torch.cat(weights)
        bias_C = torch.cat(biases)
        apart_LE = F.embedding(column_L, weight_CE) - weight_CE.mean(0)
        gaps.append((hidden_LE * apart_LE).sum(-1) + bias_C[column_L] - bias_C.mean())
    head_L, *tails = gaps
    if softmax.n_tail:
        head_L = head_L.index_add(0, order_P, torch.cat(tails))
    return head_L.view(target.shape)
