"""Train a model to copy or reverse sequences of words, and decode some:

python -m examples.seq2seq --task reverse
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from examples.seq2seq.decoding import beam_search, greedy
from examples.seq2seq.learning import N_SPECIAL, pairs, train
from examples.seq2seq.model import Seq2Seq
from txl.config import SEED, SIZE, Checked, ModelConfig, build, option, require
from txl.programs.run import run
from txl.settings.flags import read_flags

BATCH_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class Lesson(Checked):
    """The task, training and decoding.

    Raises:
        UsageError: on values outside their range.
    """

    task: Literal["copy", "reverse"] = option("copy", "how the target follows from the source")
    n_word: int = option(20, "vocabulary size", **SIZE)
    max_len: int = option(10, "longest sequence, in words", **SIZE)
    n_update: int = option(1000, "updates, each on 64 new sequences", **SIZE)
    warmup_step: int = option(200, "warm-up updates of the learning rate", **SIZE)
    smoothing: float = option(0.1, "label smoothing", minimum=0, below=1)
    width: int = option(4, "beam width", **SIZE)
    seed: int = option(1, "random seed", **SEED)

    def __post_init__(self) -> None:
        super().__post_init__()
        needed, there = (
            self.bytes_needed(),
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        )
        require(
            needed < there,
            f"--n_word {self.n_word} --max_len {self.max_len} --width {self.width}: need {needed / 2**30:.0f} GiB, "
            f"this machine has {there / 2**30:.0f}; use smaller ones",
        )

    def bytes_needed(self) -> int:
        """Estimate for training and decoding: logits, attention probabilities, and four numbers per weight."""
        length, n_word = self.max_len + 1, N_SPECIAL + self.n_word
        training = 3 * BATCH_SIZE * length * n_word + 3 * 6 * 4 * BATCH_SIZE * length**2
        decoding = 3 * BATCH_SIZE * self.width * (n_word + length)
        return 4 * (max(training, decoding) + 4 * 64 * n_word)


def main(argv: Sequence[str]) -> None:
    lesson = build(Lesson, read_flags(argv, Lesson, description=__doc__ or ""))
    torch.manual_seed(lesson.seed)
    model = Seq2Seq(small_config(lesson.n_word), dropout=0.1)
    sizes = {
        "n_word": lesson.n_word,
        "batch_size": BATCH_SIZE,
        "min_len": 1,
        "max_len": lesson.max_len,
    }
    losses = train(
        model,
        pairs(lesson.task, seed=lesson.seed, **sizes),
        n_update=lesson.n_update,
        warmup_step=lesson.warmup_step,
        smoothing=lesson.smoothing,
    )
    for update, nats in enumerate(losses, start=1):
        if update % 100 == 0 or update == lesson.n_update:
            print(f"| update {update:5d} | loss {nats:.3f} nats", flush=True)
    model.eval()
    source_BS, target_BT = next(pairs(lesson.task, seed=lesson.seed + 1, **sizes))
    n_step = target_BT.shape[1]
    greedy_BT = greedy(model, source_BS, max_len=n_step)
    beam_BT, _ = beam_search(model, source_BS, max_len=n_step, width=lesson.width)
    for name, found_BT in (("greedy", greedy_BT), ("beam", beam_BT)):
        print(
            f"| {name}: {share_right(found_BT, target_BT):.1%} of {len(target_BT)} sequences right"
        )
    for source, found in list(zip(source_BS.tolist(), greedy_BT.tolist(), strict=True))[:3]:
        print(f"  {words(source)}  ->  {words(found)}")


def small_config(n_word: int) -> ModelConfig:
    """A model that learns to copy within a minute."""
    return ModelConfig(
        n_token=N_SPECIAL + n_word,
        n_layer=2,
        n_head=4,
        d_head=16,
        d_model=64,
        d_inner=128,
        position="sinusoid_input",
    )


def share_right(found_BT: torch.Tensor, target_BT: torch.Tensor) -> float:
    """The share of sequences that are right in every word, END included; none found may be longer than the targets."""
    wider = torch.zeros_like(target_BT)
    wider[:, : found_BT.shape[1]] = found_BT
    return float((wider == target_BT).all(dim=1).float().mean())


def words(tokens: list[int]) -> str:
    """The words' numbers, without what begins, ends and fills up."""
    return " ".join(str(token - N_SPECIAL) for token in tokens if token >= N_SPECIAL)


if __name__ == "__main__":
    # what help and errors call it, instead of __main__.py
    sys.argv[0] = "python -m examples.seq2seq"
    run(main)
