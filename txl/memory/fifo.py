"""The memory of Transformer-XL: hidden states, first in first out."""

from typing import Any

import torch
from torch import Tensor

from txl.config import Context
from txl.memory.base import MemoryRule, State
from txl.memory.key_values import KeyValues
from txl.memory.span import Span


class Fifo(MemoryRule):
    """The detached hidden states that the layer read for the last tokens.

    m' = SG([m, h])_(-M:)          M = mem_len, SG stops the gradient

    Source: Dai et al. 2019, sec. 3.2.
    Differs from kimiyoung/transformer-xl, which calls `_update_mems` with two arguments swapped: there a memory shorter
    than ext_len keeps tokens that the next segment reads again.
    """

    is_queue = True
    projected = KeyValues()

    @classmethod
    def remembers(cls, context: Context) -> bool:
        return context.mem_len > 0

    def kept(self, state: State, new_BTD: Tensor, span: Span, context: Context, layer: Any) -> State:
        return State(kept_tokens(state.hidden_BMD, new_BTD, mem_len=context.mem_len, ext_len=context.ext_len))


def kept_tokens(old_BMD: Tensor, new_BTD: Tensor, *, mem_len: int, ext_len: int = 0) -> Tensor:
    """The last `mem_len` tokens of [memory, segment], detached, without the last `ext_len` of the segment. The result
    does not reference its inputs' storage."""
    n_old, n_new = old_BMD.shape[1], max(0, new_BTD.shape[1] - ext_len)
    begin = max(0, n_old + n_new - mem_len)
    return torch.cat([old_BMD[:, begin:], new_BTD.detach()[:, max(0, begin - n_old) : n_new]], dim=1)
