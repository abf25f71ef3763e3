"""Evaluation over a full memory, of ours, as eval.py runs it, beside other programs; and how it grows with the memory.

    python -m lab.benchmarks.evaluation --peer PYTHON --original FOLDER [--shapes wt103-base] [--pairs 7] [--json FILE]
    python -m lab.benchmarks.evaluation --mem_lens 640 1600 6400 25600 100000 --pairs 3
    python -m lab.benchmarks.evaluation --device cuda --dtype bfloat16 --batch_sizes 1 16 32

The other programs' environments: see step.py. Each program keeps its own memory flowing from segment to segment.
"""

import argparse
import dataclasses

from lab.benchmarks.peers import add_peer_flags, measured, say_machine, write_as_found
from lab.benchmarks.shapes import READING, add_shape_flags, asked_for


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_shape_flags(parser, READING, "wt103-base")
    add_peer_flags(parser)
    parser.add_argument(
        "--segments",
        type=int,
        default=16,
        help="of each program in its turn; a multiple of the 1,024 tokens that ours computes losses of together [16]",
    )
    parser.add_argument("--mem_lens", nargs="+", type=int, help="in place of the shapes' own")
    args = parser.parse_args()
    say_machine()
    shapes = {
        f"{label} memory {mem_len}": dataclasses.replace(shape, mem_len=mem_len)
        for label, shape in asked_for(args, READING).items()
        for mem_len in args.mem_lens or [shape.mem_len]
    }
    write_as_found(args.json, measured(args, shapes, "evaluate", args.segments))


if __name__ == "__main__":
    main()
