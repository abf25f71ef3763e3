"""A plain loop over the lines of a text: counts the words, then encodes them. Argument: a text file."""

import sys
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from lab.benchmarks.workers.serve import serve


def prepare(path: Path) -> Iterator[object]:
    """The vocabulary and the ids of the whole text, in memory."""
    while True:
        counts: Counter[str] = Counter()
        with path.open(encoding="utf-8") as file:
            for line in file:
                counts.update(line.split())
        index = {
            word: i for i, word in enumerate(["<eos>", *(word for word, _ in counts.most_common())])
        }
        ids = array("I")
        with path.open(encoding="utf-8") as file:
            for line in file:
                ids.extend([index[word] for word in line.split()])
                ids.append(0)
        yield len(ids)


if __name__ == "__main__":
    serve("a plain loop", {"prepare": lambda: prepare(Path(sys.argv[1]))}, torch.device("cpu"))
