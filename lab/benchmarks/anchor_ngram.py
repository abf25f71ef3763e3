"""A Kneser-Ney 5-gram beside a study's models: it counts the tokens that they read, and is scored as they are.

    python -m lab.benchmarks.anchor_ngram --data data/wikipedia-8m --kenlm build/kenlm/build/bin
        [--n_tokens 1999872 6000640] [--json FILE]

KenLM's `lmplz` estimates it, by interpolated modified Kneser-Ney without pruning; `query` scores. To build them:

    apt-get install cmake g++ libboost-program-options-dev libboost-system-dev libboost-thread-dev libboost-test-dev
    pip download --no-deps --no-binary kenlm --no-build-isolation -d build kenlm==0.3.0
    mkdir build/kenlm && tar -xzf build/kenlm-0.3.0.tar.gz -C build/kenlm --strip-components 1
    cmake -S build/kenlm -B build/kenlm/build && cmake --build build/kenlm/build --target lmplz query

The text and its vocabulary are those that train.py has of the same --data, --dataset and --max_size. Tokens are written
as their numbers, so that <unk> and <eos> are words like others, and a line end is no border: what stands before it is
seen. What is counted is what train.py reads in so many tokens with --batch_size streams: the beginning of each; with
--batch_size 1, the beginning of the text. Words of the vocabulary that are not in it share what KenLM leaves to unknown
words (`--vocab_pad`), so that the probabilities of the vocabulary add up to 1. Valid and test are read whole, each in
one go, and every token but the first is scored, as eval.py does.
"""

import argparse
import math
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lab.benchmarks.peers import positive, say_machine, write_as_found
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.segments import require_streams
from txl.errors import UsageError
from txl.runtime.log import perplexity

LIBRARY = "KenLM: lmplz and query"
SMOOTHING = "interpolated modified Kneser-Ney, not pruned"
UNKNOWN = "<unk>"
"""KenLM's own word for all that it has not counted."""
SURE = 1e-3
"""By how much probabilities may fail to add up to 1, by rounding and for KenLM's own </s>."""
DISCOUNTS = ("0.5", "1", "1.5")
"""Those that lmplz takes where a text is too small to estimate them."""


class KenLMError(RuntimeError):
    """A program of KenLM failed, or gave what is no distribution."""


def counted(ids: np.ndarray, n_token: int, batch_size: int) -> np.ndarray:
    """What a training with so many streams reads first, n_token tokens in all: (B, n). Raises
    `UsageError` if the text has fewer."""
    streams = require_streams(ids, batch_size)
    if n_token > streams.size:
        raise UsageError(f"--n_tokens {n_token}: the training text has {streams.size:,}")
    return streams[:, : n_token // batch_size]


def as_line(ids: Iterable[int]) -> str:
    """Tokens as KenLM reads them."""
    return " ".join(map(str, ids)) + "\n"


def estimate(folder: Path, streams: np.ndarray, arpa: Path, *, order: int, n_word: int) -> None:
    """Write the n-grams of streams, with a vocabulary of n_word words. Raises `KenLMError`."""
    pad = str(n_word + 1)  # and </s>
    command = [folder / "lmplz", "-o", str(order), "--vocab_pad", pad, "-S", "2G"]
    command += ["-T", arpa.parent / "sort", "--arpa", arpa, "--discount_fallback", *DISCOUNTS]
    asked = "".join(as_line(row.tolist()) for row in streams)
    run(command, asked)


def read_unigrams(arpa: Path, n_word: int) -> tuple[list[int], float]:
    """How many n-grams of each order there are, and what the unigrams of the vocabulary add up to."""
    n_grams = []
    seen: dict[str, float] = {}
    with arpa.open() as lines:
        for line in lines:
            if line.startswith("ngram "):
                n_grams.append(int(line.partition("=")[2]))
            elif line.startswith("\\2-grams"):
                break
            elif "\t" in line:
                log10, word, *_ = line.rstrip("\n").split("\t")
                seen[word] = 10 ** float(log10)
    n_seen = sum(map(str.isdecimal, seen))
    total = sum(p for word, p in seen.items() if word.isdecimal())
    return n_grams, total + (n_word - n_seen) * seen[UNKNOWN]


def nats_of(folder: Path, arpa: Path, ids: np.ndarray) -> dict[str, float]:
    """The loss on a split: tokens that are scored, nats of each, perplexity. Raises `KenLMError`."""
    answer = run([folder / "query", "-n", "-v", "word", arpa], as_line(ids.tolist()))
    words = [part for part in answer.split("\t") if "=" in part]  # number=place length log10
    log10s = [float(word.split(" ")[2]) for word in words]
    if len(log10s) != len(ids):
        raise KenLMError(f"query scored {len(log10s)} words of {len(ids)}")
    nats = -math.log(10) * math.fsum(log10s[1:]) / (len(ids) - 1)
    return {"tokens": len(ids) - 1, "nats_per_token": nats, "perplexity": perplexity(nats)}


def run(command: list[Any], asked: str) -> str:
    """What a program prints. Raises `KenLMError` with its last line if it fails."""
    done = subprocess.run(
        list(map(str, command)), input=asked, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise KenLMError(f"{Path(command[0]).name}: {last}")
    return done.stdout


def measured(corpus: Corpus, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each number of tokens, printed as it is found."""
    n_word = len(corpus.vocab)
    for n_token in args.n_tokens:
        streams = counted(corpus.split("train"), n_token, args.batch_size)
        with tempfile.TemporaryDirectory() as scratch:
            arpa = Path(scratch) / "n-grams.arpa"
            begin = time.perf_counter()
            estimate(args.kenlm, streams, arpa, order=args.order, n_word=n_word)
            seconds = time.perf_counter() - begin
            n_grams, total = read_unigrams(arpa, n_word)
            if abs(total - 1) > SURE:
                raise KenLMError(f"the probabilities of the words add up to {total}")
            row: dict[str, Any] = {"tokens": streams.size, "order": args.order, "n_grams": n_grams}
            row |= {"words_counted": len(np.unique(streams)), "sum_of_unigrams": total}
            row["seconds"] = seconds
            for split in ("valid", "test"):
                row[split] = nats_of(args.kenlm, arpa, corpus.split(split))
        print(
            f"| {row['tokens']:,} tokens, {sum(n_grams):,} n-grams in {seconds:.0f} s,"
            f" valid {row['valid']['perplexity']:.2f}, test {row['test']['perplexity']:.2f}",
            flush=True,
        )
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, metavar="FOLDER")
    parser.add_argument("--dataset", default="text", help="[text]")
    parser.add_argument("--max_size", type=positive, default=20000, help="[20000]")
    parser.add_argument("--kenlm", type=Path, required=True, metavar="FOLDER", help="of lmplz")
    parser.add_argument("--n_tokens", type=positive, nargs="+", default=[1_999_872, 6_000_640])
    parser.add_argument("--batch_size", type=positive, default=16, help="streams [16]")
    parser.add_argument("--order", type=positive, default=5, help="[5]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    args = parser.parse_args()
    for name in ("lmplz", "query"):
        if not (args.kenlm / name).is_file():
            parser.error(f"--kenlm {args.kenlm}: has no {name}; build it as --help says")
    try:
        config = DataConfig(data=args.data, dataset=args.dataset, max_size=args.max_size)
        corpus = Corpus(config, needed=("train", "valid", "test"))
        say_machine()
        write_as_found(
            args.json,
            measured(corpus, args),
            library=LIBRARY,
            smoothing=SMOOTHING,
            n_token=len(corpus.vocab),
            batch_size=args.batch_size,
        )
    except (UsageError, KenLMError) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
