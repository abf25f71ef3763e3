"""The softmax's loss alone, forward and backward: logits of all tokens at once, of a chunk at a time, and torch's own.

    python -m lab.benchmarks.head [--shapes small nvidia-base-128] [--rounds 11] [--json FILE]
    python -m lab.benchmarks.head --device cuda --dtype bfloat16

`whole` holds all logits. `recomputed` and `made` take chunks of tokens: the first computes their logits again in the
backward pass, the second makes the gradients with the loss. `torch` is `F.linear_cross_entropy` with its defaults,
where this version of PyTorch has it. All get the gradient of a mean. They are asked in turn, ratios are taken round by
round, and a GPU's time is its own, as in `lab.benchmarks.attention`.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lab.benchmarks.attention import in_turn, peak_bytes
from lab.benchmarks.peers import ratio, say_machine, write_as_found
from txl.model.autocast import autocast
from txl.ops import linear_cross_entropy as head


class Case(NamedTuple):
    """Tokens, width and words."""

    L: int
    E: int
    V: int


SHAPES = {
    "tiny": Case(8, 8, 20),
    "small": Case(1024, 256, 10_000),
    "small-64": Case(4096, 256, 10_000),
    "nvidia-base-32": Case(32 * 192, 512, 20_003),
    "nvidia-base-128": Case(128 * 192, 512, 20_003),
    "nvidia-large": Case(32 * 384, 1024, 20_003),
}
CPU = ("small", "small-64")


def ways(case: Case, device: torch.device, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """One forward and backward pass of each; weights in float32, products in `dtype`."""
    torch.manual_seed(0)
    leaves = [
        torch.randn(shape, device=device).requires_grad_()
        for shape in (case[:2], case[:0:-1], case[2:])
    ]
    target_L = torch.randint(case.V, (case.L,), device=device)
    own = head.BUDGET[device.type]
    chunk = min(own, case.L * case.V // 2)  # two chunks at least

    def step(loss: Callable[..., Tensor], budget: int) -> Callable[[], object]:
        def call() -> object:
            head.BUDGET[device.type] = budget
            try:
                with autocast(device, dtype):
                    mean = loss(*leaves, target_L).mean()
                return torch.autograd.grad(mean, leaves)
            finally:
                head.BUDGET[device.type] = own

        return call

    def made(*args: Tensor) -> Tensor:
        return head.linear_cross_entropy(*args, same_weight=True)

    def torchs(hidden_LE: Tensor, weight_VE: Tensor, bias_V: Tensor, target_L: Tensor) -> Tensor:
        kinds = [x.to(dtype) for x in (hidden_LE, weight_VE, bias_V)]
        options = torch.nn.LinearCrossEntropyOptions()
        return F.linear_cross_entropy(*kinds[:2], target_L, linear_bias=kinds[2], options=options)

    named = {
        "whole": step(head.linear_cross_entropy, 2**62),
        "recomputed": step(head.linear_cross_entropy, chunk),
    }
    named["made"] = step(made, chunk)
    return named | ({"torch": step(torchs, chunk)} if hasattr(F, "linear_cross_entropy") else {})


def measured(label: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All ways at one shape, printed one by one."""
    device, runs, peaks = torch.device(args.device), {}, {}
    for name, run in ways(SHAPES[label], device, getattr(torch, args.dtype)).items():
        try:
            run()
            peaks[name] = peak_bytes(run, device) if device.type == "cuda" else None
            runs[name] = run
        except Exception as error:  # out of memory, or not written for this device
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            print(f"{label:16} {name:12} left out: {reason[:140]}", flush=True)
            yield {"shape": label, "path": name, "left_out": reason}
    seconds = in_turn(runs, device, args.rounds)
    for name in runs:
        row = {"shape": label, **SHAPES[label]._asdict(), "path": name, "seconds": seconds[name]}
        row |= {"ms": 1000 * statistics.median(seconds[name]), "peak_bytes": peaks[name]}
        beside = vars(ratio(seconds[name], seconds["recomputed"])) if "recomputed" in runs else None
        row["times_as_fast_as_recomputed"] = beside
        peak = "     ? MiB" if peaks[name] is None else f"{peaks[name] / 2**20:6.0f} MiB"
        faster = f"  {beside['median']:5.2f} times as fast as recomputed" if beside else ""
        print(f"{label:16} {name:12} {row['ms']:10.3f} ms {peak}{faster}", flush=True)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, help="[those of the device]")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--rounds", type=int, default=11, help="times that each is asked [11]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    args = parser.parse_args()
    say_machine()
    shapes = args.shapes or [
        name for name in SHAPES if (name in CPU) == (args.device == "cpu") and name != "tiny"
    ]
    rows = chain.from_iterable(measured(name, args) for name in shapes)
    write_as_found(args.json, rows, device=args.device, dtype=args.dtype)


if __name__ == "__main__":
    main()
