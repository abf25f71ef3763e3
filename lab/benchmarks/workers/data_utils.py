"""Our tokenisation: the vocabulary and the token file of a text. Argument: a text file."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from lab.benchmarks.workers.serve import serve
from txl.data_utils.corpus import Corpus, DataConfig


def prepare(folder: Path) -> Iterator[object]:
    """The vocabulary and the ids of the whole text, as a token file on the disk, without caches."""
    while True:
        with tempfile.TemporaryDirectory() as cache:
            yield (
                Corpus(DataConfig(data=str(folder), dataset="wt103", cache_dir=cache))
                .split("train")
                .shape
            )


def tokenise(folder: Path) -> Iterator[object]:
    """The ids of the whole text, as a token file on the disk."""
    with tempfile.TemporaryDirectory() as cache:
        vocab = Corpus(DataConfig(data=str(folder), dataset="wt103", cache_dir=cache)).vocab
    while True:
        with tempfile.TemporaryDirectory() as cache:
            yield (
                Corpus(DataConfig(data=str(folder), dataset="wt103", cache_dir=cache), vocab)
                .split("train")
                .shape
            )


def main() -> None:
    text = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.txt").symlink_to(text)
        tasks = {"prepare": lambda: prepare(folder), "tokenise": lambda: tokenise(folder)}
        serve("data_utils", tasks, torch.device("cpu"))


if __name__ == "__main__":
    main()
