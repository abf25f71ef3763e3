"""A pretrained decoder through our code, after so many tokens of a text."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch

import txl
from lab.benchmarks.workers.serve import drawn, serve
from txl.config import Context
from txl.inference.reader import Reader
from txl.inference.words import WordProbabilities


def started(how: dict[str, Any]) -> tuple[Any, Reader]:
    """The model, and a reader of a text of mem_len tokens, all of which it sees."""
    lm = txl.load(how["folder"], dtype=how["dtype"], device=how["device"])
    context = Context(tgt_len=how["tgt_len"], mem_len=how["mem_len"])
    reader = Reader(lm.model.eval(), context, 1)
    with lm.computing():
        for part_1T in drawn(lm.model.config.n_token, how["mem_len"]).split(how["tgt_len"], dim=1):
            reader.read(part_1T)
    return lm, reader


def write(how: dict[str, Any]) -> Iterator[object]:
    """A token at a time, the likeliest."""
    lm, reader = started(how)
    words = WordProbabilities.of(lm.model)
    next_11 = torch.zeros(1, 1, dtype=torch.int64)
    while True:
        with torch.inference_mode(), lm.computing():
            logprob_1V = words.all(reader.read(next_11)[:, -1])
        next_11 = logprob_1V.argmax(-1)[None]
        yield next_11


def score(how: dict[str, Any]) -> Iterator[object]:
    """A segment at a time."""
    lm, reader = started(how)
    token_1T = drawn(lm.model.config.n_token, how["tgt_len"])
    while True:
        with torch.inference_mode(), lm.computing():
            hidden_1TD = reader.read(token_1T)
            yield lm.model.softmax.nll(hidden_1TD, token_1T)


def main() -> None:
    how = json.loads(sys.argv[1])
    tasks = {"generate": lambda: write(how), "score": lambda: score(how)}
    serve("txl", tasks, torch.device(how["device"]))


if __name__ == "__main__":
    main()
