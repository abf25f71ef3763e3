"""Does an imported model give the 2019 code's figures, digit by digit? Its train.py trains a model, its eval.py
evaluates it, and ours evaluates the same untouched model.pt:

    python -m benchmarks.imported --original CHECKOUT --text FOLDER [--steps 40]

FOLDER holds train.txt, valid.txt and test.txt without words that train.txt lacks.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = (
    "--n_layer 2 --d_model 32 --n_head 2 --d_head 16 --d_inner 64 --dropout 0.1 --lr 0.001".split()
)
TRAINING = "--tgt_len 16 --mem_len 16 --eval_tgt_len 16 --batch_size 4 --log-interval 20 --eval-interval 20".split()
CONTEXTS = (
    "--tgt_len 16 --mem_len 16",
    "--tgt_len 8 --mem_len 40",
    "--tgt_len 16 --mem_len 64 --clamp_len 20",
    "--tgt_len 5 --mem_len 30 --same_length",
    "--tgt_len 12 --mem_len 48 --same_length --clamp_len 16",
    "--tgt_len 24 --mem_len 0",
)


def output(*command: object) -> str:
    """What a command prints; the program ends with the command's error if it fails."""
    out = subprocess.run(
        [sys.executable, "-m", *map(str, command)], capture_output=True, text=True, check=False
    )
    if out.returncode:
        sys.exit(out.stderr.strip() or f"{command}: status {out.returncode}")
    return out.stdout


def perplexity(text: str, pattern: str) -> str:
    """The figure as printed, to three digits."""
    return re.findall(pattern, text, re.MULTILINE)[0]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--original", type=Path, required=True, help="a checkout of kimiyoung/transformer-xl"
    )
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    theirs = ("benchmarks.workers.original_script", args.original.resolve())
    data = ("--data", args.text.resolve(), "--dataset", "wt103")
    n_different = 0
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        output(
            *theirs,
            "train.py",
            *data,
            *MODEL,
            *TRAINING,
            "--max_step",
            args.steps,
            "--work_dir",
            work / "theirs",
        )
        (model,) = work.glob("theirs-wt103/*/model.pt")
        output("txl.convert", model, work / "ours", "--vocab", args.text / "cache.pt", *data)
        for context in CONTEXTS:
            flags = ["--batch_size", 4, "--split", "test", *context.split()]
            there = output(*theirs, "eval.py", *data, "--work_dir", model.parent, *flags)
            here = output(
                "txl", "eval", "--work_dir", work / "ours", "--convention", "original", *flags
            )
            figures = (
                perplexity(there, r"test ppl\s+([\d.]+)"),
                perplexity(here, r"^test(?:\s+\S+){4}\s+([\d.]+)"),
            )
            # the last digit may round either way
            n_different += abs(float(figures[0]) - float(figures[1])) > 0.0015
            print(f"| {context} | {figures[0]} | {figures[1]} |", flush=True)
    return 1 if n_different else 0


if __name__ == "__main__":
    sys.exit(main())
