"""Generation one token at a time over a full memory, of ours, as generate.py runs it, beside other programs.

    python -m lab.benchmarks.generation --peer PYTHON [--shapes wt103-base] [--pairs 7] [--json FILE]

The other programs' environments: see step.py. The original cannot generate.
"""

import argparse

from lab.benchmarks.peers import add_peer_flags, measured, say_machine, write_as_found
from lab.benchmarks.shapes import READING, add_shape_flags, asked_for


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_shape_flags(parser, READING, "wt103-base")
    add_peer_flags(parser)
    parser.add_argument("--tokens", type=int, default=8, help="of each program in its turn [8]")
    args = parser.parse_args()
    for name in ("original", "batch_sizes"):
        if getattr(args, name) is not None:
            parser.error(
                f"--{name}: the 2019 code generates nothing, and one text is generated here; leave it out"
            )
    say_machine()
    write_as_found(args.json, measured(args, asked_for(args, READING), "generate", args.tokens))


if __name__ == "__main__":
    main()
