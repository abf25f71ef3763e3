"""Draw faults with cosmic-ray and print those that no test notices; which of them nobody could notice, people judge:

python -m tests.mutants.drawn [--each 9] [--seed 25] [FILE ...]

Needs `pip install cosmic-ray==8.7.0`. A fault is tried with the tests that mutants.toml names for its file.
"""

import argparse
import ast
import difflib
import random
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tests.mutants.__main__ import copy_of_the_repository, killer, mutants

FILES = """txl/positions/base.py txl/inference/key_value.py txl/inference/key_values.py txl/memory/compressive.py
txl/model/adaptive.py txl/ops/rel_attention/dense.py txl/ops/linear_cross_entropy.py txl/training/optim.py
txl/training/schedules.py
txl/training/step.py txl/evaluation/score.py txl/evaluation/reading.py
txl/data_utils/segments.py txl/data_utils/cache.py
txl/generation/next_word.py txl/checkpoint/load.py txl/checkpoint/record.py txl/convert/pickles.py""".split()
NOT_DRAWN = re.compile(
    "Variable|Decorator|TrueWithFalse|Pow|Shift|BitXor|BitOr_|(Add|Sub|Mul|Div|Mod)_Bit|Invert|UAdd"
    "|Is(Not)?_(Lt|Gt|Eq|NotEq)|(?<!_Is)_IsNot$|(?<!IsNot)_Is$"
)
"""What ends in a TypeError wherever it is run, stands in annotations, or is frozen=True and strict=True."""


def drawn(text: str, n: int, draw: random.Random) -> Iterator[str]:
    """The file's text with one fault, n times."""
    from cosmic_ray.ast import ast_nodes, get_ast  # --help does without it
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    nodes, at_line = list(ast_nodes(get_ast(text))), defaultdict(list)
    for name in operator_names():
        if not NOT_DRAWN.search(name):
            operator = get_operator(name)()
            places = (place for node in nodes for place in operator.mutation_positions(node))
            for occurrence, ((line, _), _) in enumerate(places):
                at_line[line].append((operator, occurrence))
    found = (
        mutate_code(text, *draw.choice(at_line[line]))
        for line in draw.sample(sorted(at_line), len(at_line))
    )
    return islice(filter(parses, found), n)


def parses(text: str) -> bool:
    """Whether Python reads it: the star of a signature is taken for a product."""
    try:
        return bool(ast.parse(text))
    except SyntaxError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--each", type=int, default=9)
    parser.add_argument("--seed", type=int, default=25)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_of_the_repository(Path(folder))
        for name in args.files:
            hints = Counter(
                word for m in mutants() if m["file"] == name for word in m["tests"].split()
            )
            right, noticed = (copy / name).read_text(), []
            for wrong in drawn(right, args.each, random.Random(f"{args.seed} {name}")):
                (copy / name).write_text(wrong)
                noticed.append(
                    killer(copy, [tests for tests, _ in hints.most_common()], limit_s=300)
                    is not None
                )
                if not noticed[-1]:
                    change = difflib.unified_diff(
                        right.split("\n"), wrong.split("\n"), name, name, n=1, lineterm=""
                    )
                    print(*change, sep="\n")
            (copy / name).write_text(right)
            print(f"{name}: {len(noticed)} drawn, {sum(noticed)} noticed", flush=True)


if __name__ == "__main__":
    main()
