"""Whether a memory helps on a text, as far as one short training can tell."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from txl.config import Context
from txl.evaluation.bootstrap import Interval, blocks_of, paired_bootstrap
from txl.evaluation.gain import Gain, gains_of
from txl.evaluation.rows import Row

Word = Literal["helps", "not shown", "too early to tell", "too short to tell"]
SMALLEST_GAIN = 0.005
"""Nats a token by seeing further, below which a gain is none: seeds of a short training differ by
nearly as much.
"""
LEAST_TOKENS = 30_000
"""Of a training text: a shorter one is learnt by heart in seconds, and then a memory is worse than
none.
"""
LEAST_LEARNT = 1.0
"""Nats a token below those of a model that knows only how frequent each token is."""
_SAID = {
    "helps": "memory helps",
    "not shown": "not shown that memory helps",
    "too early to tell": "too early to tell (the model has learnt little; give it more --minutes)",
    "too short to tell": "too short to tell (give more text)",
}


@dataclass(frozen=True)
class Verdict:
    """What a memory is worth to one model on one text.

    Attributes:
        word: whether it helps by seeing further.
        gain: of the memory of the training in place of none.
        beyond: of a memory that is longer than that; None: none was read.
        further: nats a token saved by seeing further, with its interval.
        learnt: nats a token that the model is below one that knows only how frequent each token is.
    """

    word: Word
    gain: Gain
    beyond: Gain | None
    further: Interval
    learnt: float

    def sentence(self) -> str:
        """The verdict and its figures in one sentence."""
        if self.gain.in_all is None:
            return f"{_SAID[self.word]}: {self.gain.blocks}"
        return f"{_SAID[self.word]}: {self.gain.claim()}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        own = {"word": self.word, "sentence": self.sentence(), "learnt_nats": self.learnt}
        if self.beyond is None:
            beyond = None
        else:
            beyond = self.beyond.as_dict()
        return {
            **own,
            "further_nats": asdict(self.further),
            "gain": self.gain.as_dict(),
            "beyond": beyond,
        }


def judge(
    rows: Sequence[Row],
    sizes: Mapping[str, np.ndarray],
    *,
    starts: np.ndarray | None,
    trained: Context,
    reset: str,
    train_ids: np.ndarray,
) -> Verdict:
    """What the memory of the training is worth, and one beyond it.

    Args:
        rows: of one split, with their `tokens`; read both ways without a memory, with that of the
            training, and with a longer one, if any.
        sizes, starts, trained, reset: as in `gains_of`.
        train_ids: the training text.
    """
    given: dict[str, Any] = {"starts": starts, "trained": trained, "reset": reset}
    read = {(row.borders, row.context.mem_len): row for row in rows}
    both = sorted(mem_len for borders, mem_len in read if borders == "aside")
    longer = [mem_len for mem_len in both if mem_len > trained.mem_len]

    def gain(shorter: int, longer: int) -> Gain:
        compared = []
        for borders in ("cut", "aside"):
            for mem_len in (shorter, longer):
                compared.append(read[borders, mem_len])
        (found,) = gains_of(compared, sizes, **given)
        return found

    with_memory = read["aside", trained.mem_len]
    further = saved_between(
        read["aside", 0], with_memory, trained.mem_len, starts=starts, reset=reset
    )
    learnt = _nats_by_frequency(train_ids, _tokens(with_memory)) - with_memory.score.nats_per_token
    of_training = gain(0, trained.mem_len)
    beyond = None
    if longer:
        beyond = gain(trained.mem_len, longer[-1])
    is_short = len(train_ids) < LEAST_TOKENS or of_training.in_all is None
    word = _word(further, learnt, is_short=is_short)
    return Verdict(word, of_training, beyond, further, learnt)


def saved_between(
    one: Row, other: Row, mem_len: int, *, starts: np.ndarray | None, reset: str = "never"
) -> Interval:
    """Nats a token that the second reading of a split saves over the first, which may be of another
    model.

    Args:
        mem_len: tokens of the longest memory of the two.
        starts, reset: as in `gains_of`.
    """
    saved_N = _nats(one) - _nats(other)
    blocks = blocks_of(len(saved_N), mem_len, starts=starts, are_read_alone=reset == "document")
    return paired_bootstrap(saved_N, blocks)


def _word(further: Interval, learnt: float, *, is_short: bool) -> Word:
    if is_short:
        return "too short to tell"
    if further.low > 0 and further.mean > SMALLEST_GAIN:
        return "helps"
    if learnt < LEAST_LEARNT:
        return "too early to tell"
    return "not shown"


def _nats_by_frequency(train_ids: np.ndarray, ids_N: np.ndarray) -> float:
    """Nats a token of a model that predicts each token as often as it stands in
    the training text.
    """
    n_token = 1 + max(int(train_ids.max()), int(ids_N.max()))
    count_V = np.bincount(train_ids.astype(np.int64), minlength=n_token) + 0.5
    return math.log(count_V.sum()) - float(np.log(count_V[ids_N[1:]]).mean())


def _nats(row: Row) -> np.ndarray:
    assert row.tokens is not None
    return row.tokens.nats_N.astype(np.float64)


def _tokens(row: Row) -> np.ndarray:
    assert row.tokens is not None
    return row.tokens.ids_N
