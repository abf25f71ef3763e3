"""No memory: each segment is read alone."""

from collections.abc import Mapping
from typing import Any, ClassVar

from txl.memory.fifo import Fifo


class NoMemory(Fifo):
    """Nothing is kept, as in Al-Rfou et al. 2018 (arXiv 1808.04444).

    Differs from `fifo` with mem_len 0 in what it says: a longer memory is refused, in evaluation and generation too.
    """

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "mem_len": (0,),
        "recurrence": ("below",),
        "same_length": (False,),
    }
