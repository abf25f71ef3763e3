"""No memory: each segment is read alone."""

from txl.model.memory import Fifo
from txl.model.rule import Traits


class NoMemory(Fifo):
    """Nothing is kept, as in Al-Rfou et al. 2018 (arXiv 1808.04444).

    Differs from `fifo` with mem_len 0 in what it says: a longer memory is refused, in evaluation
    and generation too.
    """

    traits = Traits(
        {"mem_len": (0,), "recurrence": ("below",), "same_length": (False,)},
        is_bounded=True,
        is_queue=True,
    )
