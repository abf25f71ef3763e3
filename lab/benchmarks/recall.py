"""Whether a model still knows a key that it read so many tokens before.

    python -m lab.benchmarks.recall MODEL --text FILE [--distances 1000 4000 16000] [--texts 8] [--mem_len N]
        [--row NAME] [--json FILE]

MODEL is what eval.py takes as --work_dir. Each text says a key of five digits for each distance and asks for all of
them at its end, the one furthest away first; what stands between is FILE. A key is recalled if each of its digits is
the likeliest token after those before it. Also printed: nats per digit (2.303 for digits drawn at random).
"""

import argparse
import dataclasses
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

import txl
from lab.benchmarks.peers import positive, say_machine, write_as_found
from txl.data_utils.free_text import read_text
from txl.inference.reader import Reader
from txl.inference.words import WordProbabilities

NAMES = ("Anna", "Boris", "Clara", "David", "Frank", "Grace", "Henry")


class Question(NamedTuple):
    """Where in a text the digits of an answer stand, and how far before them the key was said."""

    distance: int
    digits: range


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--text", required=True, metavar="FILE")
    parser.add_argument("--distances", type=positive, nargs="+", default=[1000, 4000, 16000])
    parser.add_argument("--texts", type=positive, default=8, help="read at once [8]")
    parser.add_argument("--mem_len", type=int, help="in place of the model's own")
    parser.add_argument("--compressed_len", type=int)
    parser.add_argument("--lookup_len", type=int)
    parser.add_argument("--row", default="", help="what the rows of --json are called")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    args = parser.parse_args()
    if len(args.distances) > len(NAMES):
        parser.error(f"--distances: give at most {len(NAMES)}")
    say_machine()
    write_as_found(args.json, recalled(args), text=args.text)


def recalled(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each distance."""
    lm = txl.load(args.model, device=args.device)
    lengths = {name: getattr(args, name) for name in ("mem_len", "compressed_len", "lookup_len")}
    context = dataclasses.replace(
        lm.context, **{name: length for name, length in lengths.items() if length is not None}
    )
    filler = lm.encode(read_text(args.text))
    draw = random.Random(args.seed)
    texts = [text_of(lm, filler, sorted(args.distances), draw) for _ in range(args.texts)]
    if len({len(ids) for ids, _ in texts}) > 1:
        sys.exit(
            f"{args.model}: its tokenizer takes some names apart, so that texts differ in length"
        )
    token_BT = torch.tensor([ids for ids, _ in texts])
    questions = texts[0][1]
    begin = min(question.digits.start for question in questions)
    reader = Reader(lm.model.eval(), context, args.texts)
    words = WordProbabilities.of(lm.model)
    with torch.inference_mode(), lm.computing():
        for part_BT in token_BT[:, : begin - 1].split(context.tgt_len, dim=1):
            reader.read(part_BT)
        hidden_BTD = reader.read(token_BT[:, begin - 1 : -1])
        logprob_BTV = torch.stack([words.all(h_BD) for h_BD in hidden_BTD.unbind(1)], 1).cpu()
    target_BT = token_BT[:, begin:]
    right_BT = logprob_BTV.argmax(-1) == target_BT
    nats_BT = -logprob_BTV.gather(-1, target_BT[..., None])[..., 0]
    print("| tokens before | keys recalled | nats a digit |\n|---|---|---|")
    for question in questions:
        digits = slice(question.digits.start - begin, question.digits.stop - begin)
        row = {
            "row": args.row or str(args.model),
            "distance": question.distance,
            "keys": args.texts,
            "recalled": int(right_BT[:, digits].all(1).sum()),
            "nats_per_digit": float(nats_BT[:, digits].double().mean()),
            "mem_len": context.mem_len,
            "compressed_len": context.compressed_len,
            "lookup_len": context.lookup_len,
        }
        print(
            f"| {row['distance']} | {row['recalled']} of {row['keys']} | {row['nats_per_digit']:.3f} |"
        )
        yield row


class Encodes(Protocol):
    """What texts are made with: a language model."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ...


def text_of(
    lm: Encodes, filler: list[int], distances: list[int], draw: random.Random
) -> tuple[list[int], list[Question]]:
    """The ids of a text and its questions, the furthest first; alike in length for all draws."""
    keys = ["".join(draw.choices("0123456789", k=5)) for _ in distances]
    names = draw.sample(NAMES, len(distances))
    said = [lm.encode(f" The pass key of {n} is {k}. ") for n, k in zip(names, keys, strict=True)]
    asked = [lm.encode(f" The pass key of {n} is {k}.") for n, k in zip(names, keys, strict=True)]
    at = draw.randrange(len(filler))
    tail: list[int] = []
    ends = []
    for answered in reversed(asked):
        tail += answered
        ends.append(len(tail))
    n_before_tail = max(distances) + 1000
    ids = (filler[at:] + filler * (n_before_tail // len(filler) + 1))[:n_before_tail]
    questions = []
    for distance, one, end in zip(distances, said, reversed(ends), strict=True):
        end += n_before_tail
        place = end - distance - len(one)  # its digits so far before those of its answer
        if place + len(one) > n_before_tail:
            sys.exit(f"--distances {distance}: is among the questions; give {len(tail)} or more")
        ids[place : place + len(one)] = one
        questions.append(Question(distance, range(end - 6, end - 1)))  # before the full stop
    questions.reverse()
    return ids + tail, questions


if __name__ == "__main__":
    main()
