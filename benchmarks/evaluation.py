"""Evaluation (64 tokens at memory 640, batch 1) and generation (one token at a time at memory 640) of the wt103-base
shape in float32, beside Hugging Face's TransfoXL, in one run, asked in turn.

    python3 -m venv /tmp/peer && /tmp/peer/bin/pip install torch==2.13.0 "numpy<3" transformers==4.35.2
    python -m benchmarks.evaluation --peer /tmp/peer/bin/python [--pairs 7]
"""

import argparse
import platform
import sys

from benchmarks.peers import Peer, compare, summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="python of an environment with transformers 4.35.2")
    parser.add_argument("--pairs", type=int, default=7)
    args = parser.parse_args()
    ours = Peer(sys.executable, "txl_worker.py")
    theirs = Peer(args.peer, "huggingface_worker.py")
    print(f"{platform.machine()}; {ours.about}; {theirs.about}")
    for task, n_token in (("evaluate", 256), ("generate", 8)):
        print(summary(task, n_token, *compare(ours, theirs, task, pairs=args.pairs)), flush=True)
    ours.close()
    theirs.close()


if __name__ == "__main__":
    main()
