"""A whole training step (forward, backward, clipping, Adam) of ours, as train.py runs it, beside other programs.

    python3 -m venv /tmp/hf && /tmp/hf/bin/pip install torch==2.13.0 "numpy<3" transformers==4.35.2
    python3 -m venv /tmp/xt && /tmp/xt/bin/pip install torch==2.13.0 "numpy<3" x-transformers
    git clone https://github.com/kimiyoung/transformer-xl /tmp/original
    python -m lab.benchmarks.step --shapes small wt103-base --peer /tmp/hf/bin/python \\
        --x-transformers /tmp/xt/bin/python --original /tmp/original [--pairs 7] [--json FILE]
    python -m lab.benchmarks.step --device cuda --dtype bfloat16 --shapes nvidia-base nvidia-large \\
        --batch_sizes 32 64 128

Prints tokens per second, the most memory held, and for ours the share of a large matrix product's speed (MFU).
"""

import argparse

from lab.benchmarks.peers import add_peer_flags, measured, say_machine, write_as_found
from lab.benchmarks.shapes import TRAINING, add_shape_flags, asked_for


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_shape_flags(parser, TRAINING, "small")
    add_peer_flags(parser)
    parser.add_argument("--steps", type=int, default=3, help="of each program in its turn [3]")
    parser.add_argument("--compile", action="store_true", help="ours: as train.py --compile")
    parser.add_argument("--cuda_graph", action="store_true", help="ours: as train.py --cuda_graph")
    args = parser.parse_args()
    say_machine()
    shapes = asked_for(args, TRAINING, compile=args.compile, cuda_graph=args.cuda_graph)
    write_as_found(args.json, measured(args, shapes, "train", args.steps))


if __name__ == "__main__":
    main()
