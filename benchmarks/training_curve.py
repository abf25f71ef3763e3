"""How far `run_wt103.sh train base` comes in a given time: loss and perplexity against tokens and seconds.

    python -m benchmarks.training_curve --data FOLDER --minutes 9 [--json FILE] [-- flags of train.py]

The text is a folder in WikiText-103's format. Evaluations read the first 100 segments of the valid split.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers import say_machine, write
from benchmarks.same_loss import TINY

ROOT = Path(__file__).parents[1]


def curve(path: Path) -> list[dict[str, Any]]:
    """The measurements of a run, in order."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    start = next((record["time/unix_s"] for record in records if "time/unix_s" in record), 0.0)
    return [
        record | {"seconds": record["time/unix_s"] - start}
        for record in records
        if record["kind"] != "start"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", default="data/wikitext-103", help="folder of the text [data/wikitext-103]"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="of training [9]")
    parser.add_argument(
        "--tiny", action="store_true", help="a few steps of a model of no weight on another text"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("flags", nargs="*", help="of train.py, after --")
    args = parser.parse_args()
    say_machine()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        flags = ["--data", args.data, "--max_hours", str(args.minutes / 60), "--log_interval", "50"]
        flags += [
            "--eval_interval",
            "500",
            "--max_eval_steps",
            "100",
            "--sample_length",
            "0",
            *args.flags,
        ]
        if args.tiny:
            flags += [
                "--data",
                f"{folder}/text",
                "--dataset",
                "pydoc",
                *TINY.split(),
                "--no_adaptive",
            ]
            flags += [
                "--eval_tgt_len",
                "8",
                "--max_step",
                "4",
                "--log_interval",
                "2",
                "--eval_interval",
                "4",
            ]
        command = [
            "bash",
            str(ROOT / "run_wt103.sh"),
            "train",
            "base",
            "--work_dir",
            str(run),
            *flags,
        ]
        status = subprocess.run(
            command, env=os.environ | {"PYTHON": sys.executable}, check=False
        ).returncode
        points = curve(run / "metrics.jsonl") if (run / "metrics.jsonl").is_file() else []
        write(args.json, {"minutes": args.minutes, "flags": flags, "curve": points})
    for point in points:
        if point["kind"] == "valid":
            print(
                f"| {point['tokens']:,} tokens, {point['seconds']:.0f} s: valid perplexity {point['valid/ppl']:.2f}"
            )
    raise SystemExit(status if not points else 0)


if __name__ == "__main__":
    main()
