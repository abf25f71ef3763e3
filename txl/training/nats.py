"""The training loss as a module."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from txl.config import Context
from txl.memory import Memory
from txl.model.transformer import TransformerXL


class Nats(nn.Module):
    """Its forward pass returns loss and nats of each target and the memory; DistributedDataParallel wraps it.

    The loss is the nats plus the term of label smoothing and that of the memory. Its gradient must be the same for
    every target. The segment is read in `n_part` parts: what a memory computes flows from part to part with its
    gradient, and is detached at the end.
    """

    def __init__(self, model: TransformerXL, label_smoothing: float, n_part: int = 1) -> None:
        super().__init__()
        self.model, self.label_smoothing, self.n_part = model, label_smoothing, n_part

    def forward(
        self,
        input_BT: Tensor,
        target_BT: Tensor,
        memory: Memory | None,
        context: Context,
        since_BT: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Memory]:
        losses, nlls, own = [], [], []
        since = [None] * self.n_part if since_BT is None else since_BT.chunk(self.n_part, dim=1)
        parts = zip(input_BT.chunk(self.n_part, dim=1), target_BT.chunk(self.n_part, dim=1), since, strict=False)
        for input_part, target_part, since_part in parts:
            loss_BT, hidden_BTD, new = self.model.nll_and_hidden(
                input_part, target_part, memory, context, since_part, same_weight=True
            )
            nlls.append(loss_BT.detach())
            if self.label_smoothing:
                loss_BT = loss_BT + self.label_smoothing * self.model.softmax.smoothing(hidden_BTD, target_part)
            assert isinstance(new, Memory)  # gradients are needed
            memory = new
            if memory.loss is not None:
                own.append(memory.loss)
                loss_BT = loss_BT + memory.loss
            losses.append(loss_BT)
        assert memory is not None
        of_memory = torch.stack(own).detach().mean() if own else None
        return torch.cat(losses, dim=1), torch.cat(nlls, dim=1), replace(memory.detached(), loss=of_memory)
