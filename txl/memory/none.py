"""No memory: each segment is read alone."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from txl.config import Context
from txl.memory.base import MemoryRule, State
from txl.memory.key_values import KeyValues
from txl.memory.span import Span


class NoMemory(MemoryRule):
    """Nothing is kept, as in Al-Rfou et al. 2018 (arXiv 1808.04444).

    Differs from `fifo` with mem_len 0 in what it says: a longer memory is refused, in evaluation and generation too.
    """

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "mem_len": (0,),
        "recurrence": ("below",),
        "same_length": (False,),
    }
    projected = KeyValues()

    def kept(self, state: State, new_BTD: Tensor, span: Span, context: Context, layer: Any) -> State:
        return state
