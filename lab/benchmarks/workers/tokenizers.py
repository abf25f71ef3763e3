"""Hugging Face's tokenizers: white space and a vocabulary, multi-threaded. Argument: a text file."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, __version__
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from lab.benchmarks.workers.serve import serve


def tokenise(path: Path) -> Iterator[object]:
    """The ids of the whole text, in memory."""
    counts = Counter(path.read_text(encoding="utf-8").split())
    words = ["<unk>", "<eos>", *(word for word, _ in counts.most_common())]
    tokenizer = Tokenizer(
        WordLevel({word: i for i, word in enumerate(dict.fromkeys(words))}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = WhitespaceSplit()
    while True:
        with path.open(encoding="utf-8") as file:
            lines = tokenizer.encode_batch(list(file))
        yield [[*line.ids, 1] for line in lines]


if __name__ == "__main__":
    serve(
        f"tokenizers {__version__}",
        {"tokenise": lambda: tokenise(Path(sys.argv[1]))},
        torch.device("cpu"),
    )
