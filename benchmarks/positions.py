"""Train every position encoding with the same budget and evaluate at 1, 2, 4, 8 and 16 times the training length.

    python -m benchmarks.positions [--encodings rotary alibi ...] [--steps 2000] [--data FOLDER --dataset text]
                                   [--out runs/positions] [flags of train.py, each for the encodings that read it]

The length is what a token can see: tgt_len + mem_len in training. Evaluations keep tgt_len and lengthen the memory.
All encodings get the same sizes, seed, batches and updates; their weights differ in number by what their tables hold.
Writes positions.md (the table), positions.png and positions.json to --out, where the runs are kept too: the same
command goes on where it was stopped, and trains nothing twice.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from txl.config import UsageError, require
from txl.files import written_whole
from txl.model.settings import readers
from txl.positions import POSITION_ENCODINGS
from txl.runtime.log import perplexity
from txl.training.metrics import RECORDS, provenance

ROOT = Path(__file__).parents[1]
TIMES = (1, 2, 4, 8, 16)
MODEL = (
    "--n_layer 4 --d_model 128 --n_head 4 --d_head 32 --d_inner 512 --dropout 0.1 --batch_size 16 --lr 0.001 "
    "--warmup_step 100 --log_interval 100"
).split()


def main(argv: Sequence[str] | None = None) -> int:
    args, flags = arguments(argv)
    out = Path(args.out)
    rows = []
    for position in args.encodings:
        try:
            row = measured(position, out / "runs" / position, args, flags)
        except UsageError as error:
            row = {"position": position, "error": str(error)}
        rows.append(row)
        print(line(row), flush=True)
    write(out, rows, args, flags)
    print(f"\n{out}/positions.md, positions.png, positions.json")
    return 1 if any("error" in row for row in rows) else 0


def arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Our flags, and those of train.py."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.positions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--encodings", nargs="+", choices=POSITION_ENCODINGS, default=list(POSITION_ENCODINGS))
    parser.add_argument("--steps", type=int, default=2000, help="updates for each encoding [2000]")
    parser.add_argument("--data", default="data/pydoc", help="folder of the text [data/pydoc, written if missing]")
    parser.add_argument("--dataset", default="pydoc", help="kind of text, as train.py has it [pydoc]")
    parser.add_argument("--split", choices=("valid", "test"), default="test", help="the text to evaluate on [test]")
    parser.add_argument("--tgt_len", type=int, default=32, help="tokens of a segment [32]")
    parser.add_argument("--mem_len", type=int, default=32, help="tokens of memory in training [32]")
    parser.add_argument("--times", type=int, nargs="+", default=TIMES, help="lengths, in training lengths [1 2 4 8 16]")
    parser.add_argument("--out", default="runs/positions", help="folder of the runs and results [runs/positions]")
    return parser.parse_known_args(argv)


def memories(args: argparse.Namespace) -> list[int]:
    """The memory length for each context length."""
    trained = args.tgt_len + args.mem_len
    return [times * trained - args.tgt_len for times in args.times]


def measured(position: str, run: Path, args: argparse.Namespace, flags: Sequence[str]) -> dict[str, Any]:
    """Train an encoding and evaluate it at all lengths.

    Raises:
        UsageError: if a program refuses or fails, with what it said.
    """
    lengths = ["--tgt_len", str(args.tgt_len), "--mem_len", str(args.mem_len), "--eval_tgt_len", str(args.tgt_len)]
    text = ["--data", args.data, "--dataset", args.dataset, "--work_dir", str(run)]
    budget = ["--max_step", str(args.steps), "--eval_interval", str(args.steps)]
    called("train.py", *MODEL, *lengths, *text, *budget, "--position", position, "--resume", *read_by(position, flags))
    scores, mem_lens = run / "lengths.json", memories(args)
    where = ["--work_dir", str(run), "--split", args.split, "--json", str(scores)]
    called("eval.py", *where, "--mem_len", *map(str, mem_lens))

    records = [json.loads(record) for record in (run / RECORDS).read_text().splitlines()]
    starts = [record for record in records if record["kind"] == "start"]
    valid = [record["valid/nll_nats"] for record in records if record["kind"] == "valid"]
    by_memory = {row["mem_len"]: row for row in json.loads(scores.read_text())["rows"]}
    return {
        "position": position,
        "parameters": starts[-1]["parameters"],
        "valid_perplexity": perplexity(min(valid)),
        "perplexity": [by_memory[mem_len]["perplexity"] for mem_len in mem_lens],
        "nats_per_token": [by_memory[mem_len]["nats_per_token"] for mem_len in mem_lens],
        "evaluation_seconds": [by_memory[mem_len]["seconds"] for mem_len in mem_lens],
    }


def read_by(position: str, flags: Sequence[str]) -> list[str]:
    """The flags without settings of other encodings, which train.py refuses."""
    kept, is_kept = [], True
    for word in flags:
        if word.startswith("--"):
            name = word[2:].partition("=")[0].replace("-", "_").removeprefix("no_")
            who = readers(name)
            is_kept = not who.position or position in who.position
        if is_kept:
            kept.append(word)
    return kept


def called(program: str, *flags: str) -> None:
    """Run one of our entry points to its end."""
    done = subprocess.run([sys.executable, str(ROOT / program), *flags], capture_output=True, text=True)
    complaint = done.stderr.strip().splitlines()[-1:] or [f"{program}: ended with status {done.returncode}"]
    require(done.returncode == 0, complaint[0])


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    if "error" in row:
        return f"| {row['position']} | {row['error']} |"
    cells = [row["position"], f"{row['parameters']:,}", *(f"{value:.2f}" for value in row["perplexity"])]
    return f"| {' | '.join(cells)} |"


def write(out: Path, rows: list[dict[str, Any]], args: argparse.Namespace, flags: Sequence[str]) -> None:
    """The table, the picture and the JSON."""
    trained = args.tgt_len + args.mem_len
    header = ["encoding", "weights", *(f"{times * trained} ({times}x)" for times in args.times)]
    about = (
        f"Perplexity on {args.split} of {args.dataset} after {args.steps} updates at length {trained} (tgt_len "
        f"{args.tgt_len}, mem_len {args.mem_len}), by what a token can see."
    )
    table = "\n".join([f"| {' | '.join(header)} |", "|---" * len(header) + "|", *map(line, rows)])
    settings = {**vars(args), "flags": [*MODEL, *flags], "lengths": [times * trained for times in args.times]}
    results = {**provenance(), "settings": settings, "rows": rows}
    out.mkdir(parents=True, exist_ok=True)
    for name, text in {
        "positions.md": f"{about}\n\n{table}\n",
        "positions.json": json.dumps(results, indent=1) + "\n",
    }.items():
        with written_whole(out / name) as temporary:
            temporary.write_text(text)
    plot(out / "positions.png", [row for row in rows if "error" not in row], settings["lengths"], about)


def plot(path: Path, rows: Sequence[dict[str, Any]], lengths: Sequence[int], title: str) -> None:
    """Perplexity against length, a curve per encoding, each named at its end."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    colors = colormaps["tab20"].colors
    for i, row in enumerate(rows):
        dashes = "-" if i % 2 == 0 else "--"
        axes.plot(lengths, row["perplexity"], dashes, marker="o", ms=4, color=colors[i % 20], label=row["position"])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:.4g}")
    axes.yaxis.set_minor_formatter("{x:.4g}")
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set_xticks([], minor=True)
    axes.axvline(lengths[0], color="0.8", lw=1, zorder=0)
    axes.set(xlabel="tokens that a token can see", ylabel="perplexity")
    axes.set_title(title, fontsize=9, wrap=True)
    axes.grid(alpha=0.3)
    if rows:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    with written_whole(path) as temporary:
        figure.savefig(temporary, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
