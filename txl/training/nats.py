"""The training loss as a module."""

from torch import Tensor, nn

from txl.config import Context
from txl.model.transformer import AnyMemory, TransformerXL


class Nats(nn.Module):
    """Its forward pass returns loss and nats of each target and the memory; DistributedDataParallel wraps it.

    The loss is the nats plus the term of label smoothing. Its gradient must be the same for every target.
    """

    def __init__(self, model: TransformerXL, label_smoothing: float) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing

    def forward(
        self,
        input_BT: Tensor,
        target_BT: Tensor,
        memory: AnyMemory | None,
        context: Context,
        since_BT: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, AnyMemory]:
        nll_BT, hidden_BTD, new_memory = self.model.nll_and_hidden(
            input_BT, target_BT, memory, context, since_BT, same_weight=True
        )
        if not self.label_smoothing:
            return nll_BT, nll_BT.detach(), new_memory
        added_BT = self.model.softmax.smoothing(hidden_BTD, target_BT)
        return nll_BT + self.label_smoothing * added_BT, nll_BT.detach(), new_memory
