"""The training loss as a module; label smoothing of the adaptive softmax."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.config import Context
from txl.model.adaptive import AdaptiveSoftmax
from txl.model.streams import Memory
from txl.model.transformer import Output, TransformerXL
from txl.ops.numbers import total

Batch = tuple[Tensor, Tensor, Tensor | None]
"""(input, target, tokens before each input token in its document or None), as the text library
yields them.
"""


class Nats(nn.Module):
    """Its forward pass returns loss and nats of each target, the memory, and what that adds to the
    loss, detached; DistributedDataParallel wraps it.

    The loss is the nats plus the term of label smoothing and that of the memory. Its gradient must
    be the same for every target. The segment is read in `n_part` parts: what a memory computes
    flows from part to part with its gradient, and is detached at the end.
    """

    def __init__(self, model: TransformerXL, label_smoothing: float, n_part: int = 1) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.n_part = n_part

    def forward(
        self,
        input_BT: Tensor,
        target_BT: Tensor,
        memory: Memory | None,
        context: Context,
        since_BT: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Memory, Tensor | None]:
        losses = []
        nlls = []
        own = []
        softmax = self.model.softmax
        if since_BT is None:
            since = [None] * self.n_part
        else:
            since = since_BT.chunk(self.n_part, dim=1)
        parts = zip(
            input_BT.chunk(self.n_part, dim=1),
            target_BT.chunk(self.n_part, dim=1),
            since,
            strict=False,
        )
        for input_part, target_part, since_part in parts:
            tables = self.model.reused_tables()
            out: Output = self.model(input_part, memory, context, since_part, tables)
            memory = out.memory
            hidden_BTD = out.hidden_BTD[:, -target_part.shape[1] :]
            loss_BT = softmax.nll(hidden_BTD, target_part, tables, same_weight=True)
            nlls.append(loss_BT.detach())
            if self.label_smoothing:
                loss_BT = loss_BT + self.label_smoothing * smoothing(
                    softmax, hidden_BTD, target_part
                )
            of_memory = total(state.loss for state in memory.states)
            if of_memory is not None:
                own.append(of_memory.detach())
                loss_BT = loss_BT + of_memory
            losses.append(loss_BT)
        assert memory is not None
        if own:
            mean = torch.stack(own).mean()
        else:
            mean = None
        memory = Memory(tuple(state._replace(loss=None) for state in memory.states))
        if any(tensor.requires_grad for state in memory.states for tensor in state.extra.values()):
            memory = memory.detached()
        return torch.cat(losses, dim=1), torch.cat(nlls, dim=1), memory, mean


def smoothing(softmax: AdaptiveSoftmax, hidden: Tensor, target: Tensor) -> Tensor:
    """The loss that label smoothing adds to each target, per unit of smoothing; arguments and order
    as in `AdaptiveSoftmax.nll`.

    With smoothing e the target distribution over C classes is 1 - e on the target plus e / C on
    every class (Szegedy et al. 2016, sec. 7). Its cross-entropy exceeds the nats by e (target logit
    - mean logit); this returns the difference without e, which needs no other logits. The head's
    softmax and a tail cluster's are each smoothed over their own classes.
    """
    clusters, tail = softmax.by_cluster(hidden, target)
    gaps = []
    for hidden_LE, weights, biases, target_L in clusters:
        column_L = target_L.clamp(min=0)  # what it adds where there is no word is left out
        weight_CE = torch.cat(weights)
        bias_C = torch.cat(biases)
        apart_LE = F.embedding(column_L, weight_CE) - weight_CE.mean(0)
        gaps.append((hidden_LE * apart_LE).sum(-1) + bias_C[column_L] - bias_C.mean())
    head_L, *tails = gaps
    return tail.added(head_L, tails).view(target.shape)
