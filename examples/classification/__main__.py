"""Fine-tune a trained model to classify texts:

python -m examples.classification --init_from runs/demo
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import txl
from examples.classification.classifier import Classifier, Example, accuracy, train_epoch
from examples.classification.texts import docstrings, is_held_out, read_tsv
from txl.config import SEED, SIZE, Checked, build, option, require
from txl.programs.run import run
from txl.settings.flags import read_flags


@dataclass(frozen=True, kw_only=True)
class ClassifyConfig(Checked):
    """The model, the texts and the training."""

    init_from: str = option("runs/demo", "trained model: anything that txl.load takes")
    from_scratch: bool = option(
        False, "train its architecture from random weights, to see what its training is worth"
    )
    data: str | None = option(
        None,
        "file with lines of label, tab, text (not given: docstrings of Python's library, by package)",
    )
    n_epoch: int = option(5, "passes over the texts", **SIZE)
    batch_size: int = option(16, "texts of an update", **SIZE)
    longest: int = option(256, "tokens of a text that are read, from its end", **SIZE)
    lr: float = option(0.0003, "learning rate", above=0)
    seed: int = option(1, "random seed", **SEED)


def main(argv: Sequence[str]) -> None:
    config = build(ClassifyConfig, read_flags(argv, ClassifyConfig, description=__doc__ or ""))
    lm = txl.load(config.init_from)
    logging.getLogger("txl.data_utils").setLevel(logging.ERROR)  # unknown words of each text
    pairs = read_tsv(Path(config.data)) if config.data else docstrings()
    names = sorted({label for label, _ in pairs})
    require(
        len(names) > 1, f"--data {config.data}: has one label only; there is nothing to tell apart"
    )
    held_out, learnt = (
        [
            (lm.encode(text)[-config.longest :], names.index(label))
            for label, text in pairs
            if is_held_out(text) == out
        ]
        for out in (True, False)
    )
    require(
        bool(held_out and learnt), f"--data {config.data}: too few texts; give some dozens at least"
    )
    torch.manual_seed(config.seed)
    if config.from_scratch:
        for parameter in lm.model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, 0.0, 0.02)
    classifier = Classifier(lm, len(names))
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=config.lr, weight_decay=0.01)
    print(
        f"| {len(learnt)} texts to learn from, {len(held_out)} held out, {len(names)} classes: {', '.join(names)}"
    )
    print(f"| the most frequent class: {most_frequent(held_out):.1%} of the held out texts")
    for epoch in range(1, config.n_epoch + 1):
        loss = train_epoch(classifier, learnt, optimizer, config.batch_size, config.seed + epoch)
        print(
            f"| epoch {epoch} | loss {loss:.3f} nats | {accuracy(classifier, held_out):.1%} right",
            flush=True,
        )


def most_frequent(examples: Sequence[Example]) -> float:
    """The share of the most frequent class."""
    return Counter(label for _, label in examples).most_common(1)[0][1] / len(examples)


if __name__ == "__main__":
    run(main)
