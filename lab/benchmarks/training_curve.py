"""What a size of `run_wt103.sh` learns in minutes: loss against tokens and seconds, and perplexities.

    python -m lab.benchmarks.training_curve --data FOLDER [--size nv_base] [--minutes 8] [--json FILE] [-- flags]

The text is a folder in WikiText-103's format, whose train.txt may be in parts that xz has
compressed: train.0.txt.xz, train.1.txt.xz. The schedule follows the clock (`train.py --minutes`).
Evaluations on the way read the first 100 segments of the valid split. At the end the test split is
read over memories of `MEM_LENS` tokens, plain and strided (`eval.py --borders both`). The results
are named after the text: only with WikiText-103's own are they comparable with published ones.
"""

import argparse
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from lab.benchmarks.peers import say_machine, write
from lab.benchmarks.shapes import TINY_FLAGS

ROOT = Path(__file__).parents[2]
MEM_LENS = (0, 160, 640, 1600)
ON_THE_WAY = {"log_interval": 50, "eval_interval": 500, "max_eval_steps": 100, "sample_length": 0}
TRIED = {"log_interval": 2, "eval_interval": 4, "max_step": 4, "eval_tgt_len": 8}
"""With --tiny."""


def curve(path: Path) -> list[dict[str, Any]]:
    """The measurements of a run, in order."""
    if not path.is_file():
        return []
    records = [json.loads(line) for line in path.read_text().splitlines()]
    start = next((record["time/unix_s"] for record in records if "time/unix_s" in record), 0.0)
    return [
        record | {"seconds": record["time/unix_s"] - start}
        for record in records
        if record["kind"] != "start"
    ]


def unpacked(folder: Path, into: Path) -> Path:
    """A folder with train.txt, valid.txt and test.txt as they are, or put together from parts."""
    if (folder / "train.txt").is_file():
        return folder
    into.mkdir()
    with (into / "train.txt").open("wb") as whole:
        for part in sorted(folder.glob("train*.txt.xz")):
            with lzma.open(part) as text:
                shutil.copyfileobj(text, whole)
    for split in ("valid.txt", "test.txt"):
        shutil.copy(folder / split, into)
    return into


def counts(folder: Path) -> dict[str, Any]:
    """Words of each split, types of the training text, and the share of <unk> in them."""
    found: dict[str, Any] = {}
    for split in ("train", "valid", "test"):
        words: Counter[str] = Counter()
        with (folder / f"{split}.txt").open(encoding="utf-8") as lines:
            for line in lines:
                words.update(line.split())
        found[split] = {
            "words": words.total(),
            "types": len(words),
            "unk": words["<unk>"] / max(1, words.total()),
        }
    return found


def flags_of(settings: dict[str, Any]) -> list[str]:
    """As words of a command line."""
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def program(name: str, size: str, *flags: str) -> int:
    """`run_wt103.sh NAME SIZE FLAGS`; its exit status."""
    command = ["bash", str(ROOT / "run_wt103.sh"), name, size, *flags]
    return subprocess.run(
        command, env=os.environ | {"PYTHON": sys.executable}, check=False
    ).returncode


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", default="data/wikitext-103", help="folder of the text [data/wikitext-103]"
    )
    parser.add_argument("--size", default="nv_base", help="of run_wt103.sh [nv_base]")
    parser.add_argument("--minutes", type=float, default=8.0, help="of training [8]")
    parser.add_argument(
        "--tiny", action="store_true", help="a few steps of a model of no weight on another text"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("flags", nargs="*", help="of train.py, after --")
    args = parser.parse_args()
    say_machine()
    with tempfile.TemporaryDirectory() as temporary:
        results = measured(args, Path(temporary))
    write(args.json, results)
    raise SystemExit(results["status"])


def measured(args: argparse.Namespace, temporary: Path) -> dict[str, Any]:
    """The curve and the table of one training."""
    run = temporary / "run"
    results: dict[str, Any] = {"size": args.size, "minutes": args.minutes}
    if args.tiny:
        text = ["--data", str(temporary / "text"), "--dataset", "pydoc"]
        model = [*TINY_FLAGS.split(), "--no_adaptive", *flags_of(ON_THE_WAY | TRIED)]
    else:
        folder = unpacked(Path(args.data), temporary / "text")
        results["text"] = counts(folder)
        text = ["--data", str(folder), "--dataset", "wt103"]
        model = [*flags_of(ON_THE_WAY | {"minutes": args.minutes}), "--compile", *args.flags]
    results["flags"] = model
    status = program("train", args.size, "--work_dir", str(run), *text, *model)
    points = curve(run / "metrics.jsonl")
    for point in points:
        if point["kind"] == "valid":
            print(
                f"| {point['tokens']:,} tokens, {point['seconds']:.0f} s:"
                f" valid perplexity {point['valid/ppl']:.2f}"
            )
    if status == 0:
        lengths = ["--borders", "both", "--no_same_length", "--mem_len", *map(str, MEM_LENS)]
        table = temporary / "table.json"
        status = program(
            "eval", args.size, "--work_dir", str(run), *text, *lengths, "--json", str(table)
        )
        if table.is_file():
            results["evaluation"] = json.loads(table.read_text())
    return results | {"curve": points, "status": status}


if __name__ == "__main__":
    main()
