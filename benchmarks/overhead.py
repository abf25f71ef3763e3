"""What torchrun costs: a training step under a 1-process torchrun against plain python, and with logging at every step
against logging once.

    python -m benchmarks.overhead [--pairs 5] [--steps 300]

Runs are interleaved (A B A B ...); a run's figure is the speed it reports at its end, which leaves out start,
evaluation and checkpoints. The ratio is taken pair by pair; above 1 means that the second one is slower.
"""

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.peers import positive

ROOT = Path(__file__).parents[1]
MODEL = "--n_layer 4 --d_model 128 --n_head 4 --d_head 32 --d_inner 512 --tgt_len 32 --mem_len 128 --batch_size 16"
PLAIN = [sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1"]


def tokens_per_second(launcher: Sequence[str], folder: Path, steps: int, *flags: str) -> float:
    """The speed of one training."""
    quiet = ["--max_eval_steps", "1", "--eval_interval", "1000000", "--max_step", str(steps)]
    command = [
        *launcher,
        str(ROOT / "train.py"),
        "--data",
        str(folder / "text"),
        "--dataset",
        "pydoc",
        *MODEL.split(),
    ]
    command += [*quiet, "--work_dir", str(folder / "run"), "--overwrite", *flags]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ).stdout
    return float(re.findall(r"\| (\d+) tok/s \|", out)[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=positive, default=5)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    once = ("--log_interval", str(args.steps))
    cases = {
        "torchrun, against python": ((PLAIN, once), (TORCHRUN, once)),
        "logging every step, against once": ((PLAIN, once), (PLAIN, ("--log_interval", "1"))),
    }
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.processor() or platform.machine()}"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens_per_second(PLAIN, folder, 20, *once)  # writes the text and warms the disk
        for label, (a, b) in cases.items():
            pairs = [
                (
                    tokens_per_second(a[0], folder, args.steps, *a[1]),
                    tokens_per_second(b[0], folder, args.steps, *b[1]),
                )
                for _ in range(args.pairs)
            ]
            ratios = [first / second for first, second in pairs]
            speeds = ", ".join(f"{first:.0f}:{second:.0f}" for first, second in pairs)
            print(
                f"{label}: median {statistics.median(ratios):.3f} (min {min(ratios):.3f}, max {max(ratios):.3f}) "
                f"over {args.pairs} pairs of {args.steps} steps; tok/s {speeds}"
            )


if __name__ == "__main__":
    main()
