"""What ids tell of themselves: their range, how many are distinct, and whether they are of another type than they are
read as."""

from typing import NamedTuple

import numpy as np

from .tokenizers.integers import LARGEST

_BLOCK = 1 << 22
_FEWEST = 16
"""Fewer numbers tell nothing of their type."""
_HIGH, _LOW = 16, 4096
"""Numbers whose upper halves lie below the one and some lower half above the other are of 32 bits."""
_FAR_ABOVE = 4


class Signs(NamedTuple):
    """What was found in ids.

    Attributes:
        least, largest, n_distinct: of the ids; those that no vocabulary has do not count as distinct.
        first_negative: the index of the first id below 0; -1: there is none.
        type: the name of a type that ids which are read as uint16 seem to be of; empty: they are what they seem.
    """

    least: int
    largest: int
    n_distinct: int
    first_negative: int
    type: str

    @property
    def is_sparse(self) -> bool:
        """The largest id lies far above the number of distinct ids."""
        return self.largest + 1 >= _FAR_ABOVE * self.n_distinct


def signs_of(ids: np.ndarray, *, is_plain: bool) -> Signs:
    """Read all ids, a block at a time.

    Args:
        is_plain: nothing says of which type they are.
    """
    seen = np.zeros(LARGEST + 1, dtype=bool)
    least, largest, first_negative = int(ids[0]), int(ids[0]), -1
    for begin in range(0, len(ids), _BLOCK):
        block = np.asarray(ids[begin : begin + _BLOCK])
        low, high = int(block.min()), int(block.max())
        if low < 0 <= least:
            first_negative = begin + int(np.argmax(block < 0))
        least, largest = min(least, low), max(largest, high)
        seen[block if low >= 0 and high <= LARGEST else block[(block >= 0) & (block <= LARGEST)]] = True
    type_ = _wider_type(ids) if is_plain and len(ids) >= _FEWEST else ""
    return Signs(least, largest, int(seen.sum()), first_negative, type_)


def _wider_type(ids: np.ndarray) -> str:
    """The type that ids which are read as uint16 seem to be of; empty if none."""
    is_float32, is_float64, is_swapped = len(ids) % 2 == 0, len(ids) % 4 == 0, True
    most_4, most_swapped_4 = np.zeros(4, dtype=np.int64), np.zeros(4, dtype=np.int64)
    for begin in range(0, len(ids), _BLOCK):
        block = np.asarray(ids[begin : begin + _BLOCK])
        is_float32 = is_float32 and _are_whole(block.view("<f4"))
        is_float64 = is_float64 and _are_whole(block.view("<f8"))
        is_swapped = is_swapped and not (block & 0xFF).any()
        for i in range(4):
            most_4[i] = max(most_4[i], block[i::4].max(initial=0))
            most_swapped_4[i] = max(most_swapped_4[i], block[i::4].byteswap().max(initial=0))
    if not most_4.any():
        return ""
    if is_float32 or is_float64:
        return "float32" if is_float32 else "float64"
    return _of_halves(most_4, "") or _of_halves(most_swapped_4[::-1], "_be") or ("uint16_be" if is_swapped else "")


def _of_halves(most_4: np.ndarray, suffix: str) -> str:
    """The type of numbers of which these are the largest parts of 16 bits, the lowest part first."""
    is_small = most_4 < _HIGH
    if not most_4[2:].any() and is_small[1]:
        return f"int64{suffix}"
    if not most_4[1::2].any() or (is_small[1::2].all() and (most_4[0::2] > _LOW).any()):
        return f"int32{suffix}"
    return f"int64{suffix}" if not most_4[3] else ""


def _are_whole(numbers: np.ndarray) -> bool:
    """True for whole numbers that may be ids."""
    with np.errstate(invalid="ignore"):
        return bool(((numbers >= 0) & (numbers <= LARGEST) & (numbers == np.floor(numbers))).all())
