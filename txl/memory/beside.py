"""What memories share that keep what has left the window in another form, and read it beside attention."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from txl.config import Context
from txl.memory.base import BESIDE, MemoryRule, State
from txl.memory.span import Span


class BesideAttention(MemoryRule):
    """Hidden states as in `fifo`; of those before them something that a gate per head adds to the result of attention:

    A = g A_memory + (1 - g) A_local          g = sigmoid(b)
    """

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = BESIDE
    is_bounded = False
    reads_weights = True
    gate_N: nn.Parameter
    """b."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.gate_N)

    def joined(self, read_BNTH: Tensor, local_BNTH: Tensor) -> Tensor:
        """A."""
        share_N11 = self.gate_N.sigmoid()[:, None, None]
        return (share_N11 * read_BNTH + (1 - share_N11) * local_BNTH).to(local_BNTH.dtype)


def beyond_window(state: State, new_BTD: Tensor, context: Context) -> tuple[Tensor, Tensor]:
    """What of [memory, segment] leaves the window of mem_len tokens, (B, L, D), and the detached rest. The last ext_len
    tokens of the segment are neither."""
    n_new = max(0, new_BTD.shape[1] - context.ext_len)
    plain_BMD = torch.cat([state.hidden_BMD, new_BTD[:, :n_new]], dim=1)
    n_left = max(0, plain_BMD.shape[1] - context.mem_len)
    return plain_BMD[:, :n_left], plain_BMD[:, n_left:].detach().clone()


def same_document(span: Span, n_left: int) -> tuple[Tensor, Tensor]:
    """Whether what has left the window before, (B,), and each of the tokens that leave it now, (B, L), are of one
    document with the last of these, if any later token can see that."""
    assert span.first_BT is not None
    first_B = span.first_BT[:, max(0, n_left - 1 - span.n_mem)]
    return first_B < 0, torch.arange(n_left, device=first_B.device) >= first_B[:, None]
