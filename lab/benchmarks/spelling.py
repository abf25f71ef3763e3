"""How much of a text comes back when its words are printed as running text and tokenised again.

python -m lab.benchmarks.spelling data/wikitext-103/valid.txt [FILE ...]
"""

import argparse
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

from txl.data_utils.wikitext import Detokeniser, tokenise


def changes(words: list[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Words of a line that do not come back, and what comes instead."""
    again = tokenise("".join(map(Detokeniser(), words)))
    if again != words:
        for kind, a, b, c, d in SequenceMatcher(None, words, again, autojunk=False).get_opcodes():
            if kind != "equal":
                yield words[a:b], again[c:d]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="tokenised as WikiText is"
    )
    for path in parser.parse_args().files:
        lines = [
            line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
        ]
        changed = [list(changes(words)) for words in lines]
        n_word, n_lost = sum(map(len, lines)), sum(len(was) for line in changed for was, _ in line)
        print(f"{path}: {1 - n_lost / n_word:.3%} of {n_word:,} tokens come back", end=", ")
        print(f"{changed.count([]) / len(lines):.2%} of {len(lines):,} lines are the same")


if __name__ == "__main__":
    main()
