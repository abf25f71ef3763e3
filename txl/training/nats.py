"""What is minimised, as a module."""

from torch import Tensor, nn

from txl.config import Context
from txl.memory import Memory
from txl.model.transformer import TransformerXL


class Nats(nn.Module):
    """The loss of each target, its nats and the memory, as a forward pass, which is what DistributedDataParallel wraps.

    Loss and nats differ by what label smoothing adds.
    """

    def __init__(self, model: TransformerXL, label_smoothing: float) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing

    def forward(
        self, input_BT: Tensor, target_BT: Tensor, memory: Memory | None, context: Context
    ) -> tuple[Tensor, Tensor, Memory]:
        if not self.label_smoothing:
            nll_BT, memory = self.model.nll(input_BT, target_BT, memory, context)
            return nll_BT, nll_BT.detach(), memory
        hidden_BTD, memory = self.model(input_BT, memory, context)
        hidden_BTD = hidden_BTD[:, -target_BT.shape[1] :]
        nll_BT = self.model.softmax.nll(hidden_BTD, target_BT)
        added_BT = self.model.softmax.smoothing(hidden_BTD, target_BT)
        return nll_BT + self.label_smoothing * added_BT, nll_BT.detach(), memory
