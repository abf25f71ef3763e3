"""Whether precision, compilation and ways to save memory leave the training as it is, on real text.

    python -m benchmarks.same_loss [--device cuda] [--steps 200] [--json FILE]

Trains the same model with train.py on Python's documentation, once in float32 and once with each of the settings below,
and compares the losses of the last steps. The exit status is 1 if one differs by more than 1 %.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers import positive, say_machine, write_as_found

ROOT = Path(__file__).parents[1]
MODEL = "--n_layer 4 --d_model 256 --n_head 4 --d_head 64 --d_inner 1024 --tgt_len 64 --mem_len 128 --batch_size 32"
TINY = "--n_layer 1 --d_model 16 --n_head 2 --d_head 8 --d_inner 16 --tgt_len 8 --mem_len 8 --batch_size 4"
RUNS = {
    "float32": ["--dtype", "float32"],
    "bfloat16": ["--dtype", "bfloat16"],
    "float16": ["--dtype", "float16"],
    "compiled": ["--dtype", "float32", "--compile"],
    "compiled, bfloat16": ["--dtype", "bfloat16", "--compile"],
    "recompute": ["--dtype", "float32", "--recompute"],
    "swap_mem": ["--dtype", "float32", "--swap_mem"],
    "torchrun, one process": ["--dtype", "float32"],
}
ON_A_GPU = ("float16",)
LIMIT = 0.01


def loss(name: str, folder: Path, args: argparse.Namespace) -> float:
    """Nats per token over the last half of the steps. Raises `RuntimeError` with the last line of a training that
    fails."""
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1"]
        if "torchrun" in name
        else []
    )
    run, half = folder / name.replace(" ", "_"), max(1, args.steps // 2)
    flags = f"{TINY if args.tiny else MODEL} --lr 0.001 --warmup_step 20 --log_interval {half} --max_step {2 * half}"
    command = [
        sys.executable,
        *launcher,
        str(ROOT / "train.py"),
        "--data",
        str(folder / "text"),
        "--dataset",
        "pydoc",
    ]
    command += [
        "--work_dir",
        str(run),
        "--device",
        args.device,
        "--max_eval_steps",
        "1",
        "--sample_length",
        "0",
    ]
    done = subprocess.run(
        [*command, *flags.split(), *RUNS[name]], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record["train/nll_nats"] for record in records if record["kind"] == "train"][-1]


def compared(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row per setting, printed one by one."""
    with tempfile.TemporaryDirectory() as folder:
        expected = 0.0
        for name in RUNS:
            if args.device == "cpu" and name in ON_A_GPU:
                continue
            row: dict[str, Any] = {"setting": name}
            try:
                row["nats"] = loss(name, Path(folder), args)
            except RuntimeError as error:
                print(f"WRONG {name}: {error}", flush=True)
                yield row | {"right": False, "failed": str(error)}
                continue
            expected = expected or row["nats"]
            difference = row["nats"] / expected - 1
            right = abs(difference) <= LIMIT
            print(
                f"| {'right' if right else 'WRONG'} {name}: {row['nats']:.4f} nats, {difference:+.2%}",
                flush=True,
            )
            yield row | {"right": right, "difference": difference}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--steps", type=positive, default=200)
    parser.add_argument(
        "--tiny", action="store_true", help="a model of no weight, to try the program"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    args = parser.parse_args()
    say_machine()
    rows = write_as_found(args.json, compared(args), steps=args.steps)
    raise SystemExit(not all(row["right"] for row in rows))


if __name__ == "__main__":
    main()
