"""Whether the fast paths are right on this GPU, and everything that runs on a CPU runs there.

    python -m lab.benchmarks.gpu_check [--share 0 1] [--only fused graphed] [--json FILE]

- fused attention, values and six gradients, both ways of the backward pass, with and without dropout, against its
  definition in float64 (float32 where that takes too much memory), memory that nobody has written being NaN; the
  head's loss in chunks, gradients recomputed and made with it, against its own; what a layer does between its products
  in one kernel, against its own;
- layers compiled as one graph each, a recorded model, recorded training steps, a reversible one with dropout, against
  the same model as it is;
- every position encoding and attention rule against itself on a CPU; training steps, and that they wait for nobody;
  attention by PyTorch's kernel in half precision; translations.

Errors are |found - expected| / |expected|. The exit status is 1 if one is too large. --share I N does every N-th check
from the I-th on: kernels are compiled on one core, and there are many.
"""

import argparse
import dataclasses
import traceback
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from lab.benchmarks.checks import models
from lab.benchmarks.checks.attention import DROPPED, ODD, SHAPES, dropout_errors, fused_errors
from lab.benchmarks.checks.errors import LIMITS, Check
from lab.benchmarks.checks.head import head_errors
from lab.benchmarks.checks.models import SMALL, TINY
from lab.benchmarks.checks.rows import norm_errors, relu_errors
from lab.benchmarks.checks.seq2seq import decoding_errors
from lab.benchmarks.peers import write_as_found
from txl.config import KEEP_MIB
from txl.positions import POSITION_ENCODINGS

NARROW = ("float32", "bfloat16", "float16")
WAYS = {"kept": KEEP_MIB, "three passes": 0}
"""Of fused attention's backward pass."""
OTHER_LAYERS: list[dict[str, Any]] = [
    {"attention": "performer", "position": "rotary"},
    {"attention": "lsh", "position": "rotary"},
    {"attention": "performer", "position": "floater"},
    {"reversible": True, "pre_lnorm": True},
    {"recurrence": "same", "untie_r": True},
]
AS_TRAINED: list[dict[str, Any]] = [
    {},
    {"div_val": 2, "tie_projs": ()},
    {"position": "rotary"},
    {"reversible": True, "pre_lnorm": True},
]


REPEATED: list[dict[str, Any]] = [
    {},
    {"optim": "muon", "pre_lnorm": True},
    {"div_val": 2, "tie_projs": (), "softmax_bias": False},
    {"memory": "compressive"},
    {"memory": "infini", "memory_parts": 4},
    {"memory": "neural", "memory_parts": 4},
]


def operator_checks(device: str) -> Iterator[Check]:
    """Checks of operators against their definitions."""
    for dtype, same_weight in product(("float32", "bfloat16"), (False, True)):
        find = partial(head_errors, getattr(torch, dtype), device, same_weight=same_weight)
        yield Check(f"head {'made' if same_weight else 'recomputed'}", dtype, find, LIMITS[dtype])
    if device == "cpu":
        return
    for dtype, width, p in product(("bfloat16", "float16"), (41, 512, 4096), (0.0, 0.1)):
        for finds, name in ((norm_errors, "sum and norm"), (relu_errors, "bias and ReLU")):
            find = partial(finds, getattr(torch, dtype), device, width, p)
            yield Check(f"{name} {width} dropout {p}", dtype, find, LIMITS[dtype])
    cases = [(min(B, 2), min(N, 2), H, T, T + M, -1) for B, N, H, T, M in SHAPES.values()]
    for finds, name, them in (
        (fused_errors, "fused", cases + ODD),
        (dropout_errors, "fused dropout", DROPPED),
    ):
        for case, dtype, (way, mib) in product(them, NARROW, WAYS.items()):
            kind = getattr(torch, dtype)
            find = lambda f=finds, c=case, k=kind, mib=mib: f(c, k, keep_mib=mib)  # noqa: E731
            yield Check(f"{name} {way} {case}", dtype, find, LIMITS[dtype])


def compiler_checks(device: str) -> Iterator[Check]:
    """Checks with the longest compile times."""
    for dtype in ("float32", "bfloat16"):
        shape = dataclasses.replace(SMALL, device=device, dtype=dtype)
        yield Check("compiled", dtype, lambda s=shape: models.compiled_errors(s), LIMITS[dtype])
    for impl in ("dense",) if device == "cpu" else ("dense", "fused"):
        shape = dataclasses.replace(SMALL, device=device, dropout=0.3, dropatt=0.3, attn_impl=impl)
        yield Check(
            f"compiled dropout {impl}",
            "float32",
            lambda s=shape: models.compiled_dropout_errors(s),
            5e-3,
        )


def model_checks(device: str) -> Iterator[Check]:
    """Checks of whole models."""
    for dtype in ("float32", "bfloat16"):
        shape = dataclasses.replace(SMALL, device=device, dtype=dtype)
        reading = dataclasses.replace(
            shape, tgt_len=96, mem_len=192, same_length=True, clamp_len=100
        )
        yield Check("graphed", dtype, lambda s=reading: models.graphed_errors(s), LIMITS[dtype])
        dropping = dataclasses.replace(shape, dropout=0.2, dropatt=0.2)
        # inputs computed from outputs are rounded once more
        limit = 1e-4 if dtype == "float32" else LIMITS[dtype]
        yield Check(
            "reversible dropout", dtype, lambda s=dropping: models.reversible_errors(s), limit
        )
    half = dataclasses.replace(TINY, device=device, dtype="bfloat16")
    limit = LIMITS["bfloat16"]
    yield Check(
        "graphed, narrowed", "bfloat16", lambda: models.graphed_errors(reading, narrows=True), limit
    )
    yield Check(
        "rotary hidden", "bfloat16", lambda: models.hidden_errors(half, position="rotary"), limit
    )
    yield Check(
        "rotary gradients",
        "bfloat16",
        lambda: models.beside_cpu_errors(half, position="rotary"),
        limit,
    )
    for changes in ({}, *OTHER_LAYERS):
        yield Check(
            f"step {_named(changes)}",
            "bfloat16",
            lambda c=changes: models.step_errors(half, **c),
            limit,
        )
    whole = dataclasses.replace(TINY, device=device, dtype="float32")
    for changes in REPEATED:
        find = lambda c=changes: models.repeated_errors(whole, **c)  # noqa: E731
        yield Check(f"repeated {_named(changes)}", "float32", find, 1e-4)
    # with room for 16 of 96 words in each tail cluster: the fourth step does not fit
    crowded = dataclasses.replace(whole, batch_size=3)
    for changes in ({"shares": (1, 0, 0)}, {"shares": (1, 0, 0), "div_val": 2}):
        find = lambda c=changes: models.repeated_errors(crowded, **c)  # noqa: E731
        yield Check(f"repeated {_named(changes)}", "float32", find, 1e-4)
    dropping = dataclasses.replace(whole, dropout=0.2)
    yield Check("repeated dropout", "float32", lambda: models.repeated_dropout_errors(dropping), 0)
    if device == "cuda":
        dropping = dataclasses.replace(half, dropout=0.1, dropatt=0.1)
        # embedding's backward has a way for over 3,072
        many = dataclasses.replace(dropping, batch_size=64, tgt_len=64)
        for changes in AS_TRAINED:
            for its in (dropping, many):
                find = lambda c=changes, s=its: models.waiting_errors(s, **c)  # noqa: E731
                yield Check(
                    f"no waiting batch {its.batch_size} {_named(changes)}", "bfloat16", find, 0
                )
    exact = dataclasses.replace(TINY, device=device, dtype="float64")
    for changes in [{"position": name} for name in POSITION_ENCODINGS] + OTHER_LAYERS:
        find = lambda c=changes: models.beside_cpu_errors(exact, **c)  # noqa: E731
        yield Check(f"as on a CPU: {_named(changes)}", "float64", find, LIMITS["float64"])
    yield Check("decoding", "float64", lambda: decoding_errors(device), 0)


def _named(changes: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in changes.items()) or "default"


def checked(checks: list[Check]) -> Iterator[dict[str, Any]]:
    """One row per check, printed one by one."""
    for name, dtype, find, limit in checks:
        torch.cuda.empty_cache()  # other shares are at work beside this one
        row: dict[str, Any] = {"check": name, "dtype": dtype, "limit": limit}
        try:
            errors = find()
        except Exception as failure:  # a compiler's own; the other checks are still worth doing
            traceback.print_exc()
            reason = f"{type(failure).__name__}: {(str(failure).splitlines() or [''])[0]}"
            print(f"WRONG {name} {dtype}: {reason}", flush=True)
            yield row | {"right": False, "failed": reason}
            continue
        right = all(e <= limit for e in errors.values())  # False for NaN as well
        numbers = " ".join(f"{key} {e:.1e}" for key, e in errors.items())
        print(f"{'right' if right else 'WRONG'} {name} {dtype}: {numbers}", flush=True)
        yield row | {"right": right, "errors": errors}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda", help="cpu: without fused attention"
    )
    parser.add_argument("--share", nargs=2, type=int, default=(0, 1), metavar=("I", "N"))
    parser.add_argument(
        "--only", nargs="+", metavar="WORD", help="checks whose name holds one of these"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    args = parser.parse_args()
    # what takes long first: it falls into different shares
    kinds = (compiler_checks, operator_checks, model_checks)
    checks = [
        c
        for kind in kinds
        for c in kind(args.device)
        if any(word in c.name for word in args.only or [""])
    ]
    first, step = args.share
    rows = write_as_found(args.json, checked(checks[first::step]))
    raise SystemExit(not all(row["right"] for row in rows))


if __name__ == "__main__":
    main()
