"""Find the tiles of the fused relative attention on this GPU, after checking that it is right there.

    python -m benchmarks.tune_rel_attention [--seconds 330] [--json FILE] [--dtype bfloat16]

1. Correctness: values and the six gradients against the definition, as relative error norms, at the shapes
   of the benchmark (fewer sequences and heads) and at odd ones with windows.
2. For each shape and kernel, the median time of every candidate (side, warps, stages); one that does not compile is
   named and passed over. The last line per kernel gives the fastest. For `kept_` kernels, of which each writes or
   reads what another does, it is the time of the backward pass.
3. The whole operator with the fastest tiles and both ways of its backward pass, beside scaled_dot_product_attention by
   FlashAttention without positions, with all keys visible and with the causal mask that ends in the lower right corner.

Stops starting new work after --seconds; what was measured by then is in the file.
"""

import argparse
import json
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.checks.attention import ODD, SHAPES, fused_errors, inputs
from benchmarks.checks.errors import LIMITS
from txl.config import KEEP_MIB
from txl.ops.rel_attention import launch
from txl.ops.rel_attention.fused import _forward, fused, kept_backward, sequences_that_fit
from txl.ops.rel_attention.launch import KERNELS

CANDIDATES = [
    (64, 4, 2), (64, 4, 3), (64, 8, 2), (64, 8, 3), (64, 4, 1), (32, 4, 2), (32, 2, 3), (32, 4, 3), (64, 8, 1),
    (128, 8, 2),
]  # fmt: skip
KEPT = {"three passes": 0, "kept": KEEP_MIB, "kept whole": 2**20}
"""Ways of the backward pass: MiB for the gradients of the logits."""


def check(dtype: torch.dtype) -> list[dict[str, Any]]:
    """The errors at all shapes, printed."""
    cases = [(min(B, 2), min(N, 2), H, T, T + M, -1) for B, N, H, T, M in SHAPES.values()]
    results = []
    for case, kind in [(c, dtype) for c in cases + ODD] + [(c, torch.float32) for c in ODD[:4]]:
        limit = LIMITS[str(kind)[6:]]
        try:
            errors = fused_errors(case, kind)
        except Exception as error:  # a kernel that needs more shared memory than there is
            print(
                f"WRONG {str(kind)[6:]} {case}: {type(error).__name__} {str(error).splitlines()[:1]}",
                flush=True,
            )
            continue
        good = all(e <= limit for e in errors.values())  # False for NaN as well
        numbers = " ".join(f"{name} {e:.1e}" for name, e in errors.items())
        print(f"{'right' if good else 'WRONG'} {str(kind)[6:]} {case}: {numbers}", flush=True)
        results.append({"case": case, "dtype": str(kind), "right": good, "errors": errors})
    return results


def median_ms(run: Callable[[], Any], rep: int = 40) -> float:
    """The median of about `rep` ms of runs, with the L2 cache emptied between them."""
    from triton.testing import do_bench

    return do_bench(run, warmup=10, rep=rep, return_mode="median")


def launches(
    B: int, N: int, H: int, T: int, M: int, dtype: torch.dtype
) -> dict[str, Callable[[], Any]]:
    """One launch of each kernel on inputs of this shape."""
    q, k, v, r, u, w = (x.detach() for x in inputs(B, N, H, T, T + M, dtype))
    out, lse, qu, qw, *padded = _forward(q, k, v, r, u, w, None, H**-0.5, -1, 0.0, KEEP_MIB)
    k, v, r = padded if padded[0].numel() else (k, v, r.transpose(0, 1))
    call = launch.Call(qu, qw, k, v, r, None, H, H**-0.5, -1, 0.0)
    grad = launch.incoming(call, torch.randn_like(out), out, lse)

    def kept() -> object:
        return kept_backward(call, grad, max(1, sequences_that_fit(call, KEEP_MIB)))

    return dict.fromkeys(KERNELS, kept) | {
        "forward": lambda: launch.forward(call),
        "queries": lambda: launch.backward_queries(call, grad),
        "keys": lambda: launch.backward_keys(call, grad),
        "places": lambda: launch.backward_places(call, grad),
    }


def tune(name: str, dtype: torch.dtype, late: Callable[[], bool]) -> dict[str, Any]:
    """Times of all candidates at one shape, and the fastest left in launch.TILES."""
    B, N, H, T, M = SHAPES[name]
    runs, results = launches(B, N, H, T, M, dtype), {}
    for kernel in KERNELS:
        key = (kernel, launch.columns(H), dtype.itemsize)
        times: dict[str, float] = {}
        for candidate in CANDIDATES:
            if late():
                break
            launch.TILES[key] = launch.Tile(*candidate)
            label = "x".join(map(str, candidate))
            try:
                times[label] = median_ms(runs[kernel])
            # out of shared memory or registers, or a compiler's own failure
            except Exception as error:
                print(
                    f"  {name} {kernel} {label}: {type(error).__name__} {str(error).splitlines()[:1]}",
                    flush=True,
                )
        if times:
            best = min(times, key=times.__getitem__)
            launch.TILES[key] = launch.Tile(*map(int, best.split("x")))
            listed = "  ".join(
                f"{label} {1000 * ms:.0f}"
                for label, ms in sorted(times.items(), key=lambda x: x[1])
            )
            print(f"  {name} {kernel}, us: {listed}", flush=True)
            results[kernel] = times
    return results


def compare(name: str, dtype: torch.dtype) -> dict[str, float]:
    """Forward, and forward and backward, in ms: ours, and FlashAttention without positions."""
    B, N, H, T, M = SHAPES[name]
    args = inputs(B, N, H, T, T + M, dtype)
    dout = torch.randn(B, T, N, H, device="cuda", dtype=dtype).transpose(1, 2)
    q, k, v = args[:3]
    results = {}

    def measure(label: str, attention: Callable[[], Tensor], tensors: list[Tensor]) -> None:
        try:
            with torch.no_grad():
                results[f"{label} forward"] = median_ms(attention)
            results[f"{label} both"] = median_ms(
                lambda: torch.autograd.grad(attention(), tensors, dout)
            )
        except Exception as error:
            print(
                f"  {name} {label}: {type(error).__name__} {str(error).splitlines()[:1]}",
                flush=True,
            )

    for label, mib in KEPT.items():
        measure(label, lambda mib=mib: fused(*args, scale=H**-0.5, keep_mib=mib), args)
    measure("dropout", lambda: fused(*args, scale=H**-0.5, dropout=0.1), args)
    measure("window", lambda: fused(*args, scale=H**-0.5, window=M), args)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        measure("flash full", lambda: scaled_dot_product_attention(q, k, v), [q, k, v])
        bias = causal_lower_right(T, T + M)
        measure(
            "flash causal", lambda: scaled_dot_product_attention(q, k, v, attn_mask=bias), [q, k, v]
        )
    line = "  ".join(f"{label} {1000 * ms:.0f}" for label, ms in results.items())
    print(f"  {name}, us: {line}", flush=True)
    for label, kind, flash in product(KEPT, ("forward", "both"), ("full", "causal")):
        if f"{label} {kind}" in results and f"flash {flash} {kind}" in results:
            ratio = results[f"{label} {kind}"] / results[f"flash {flash} {kind}"]
            print(f"  {name} {kind}, {label}: {ratio:.2f} times flash, {flash}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda", help="cpu: there is nothing to do"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--seconds", type=float, default=330.0)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    if args.device == "cpu":
        print("left out: the kernels need a GPU")
        return
    dtype, start = getattr(torch, args.dtype), time.monotonic()
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "dtype": args.dtype,
    }
    results |= {"tune": {}, "tiles": {}, "compare": {}}

    def save() -> None:
        if args.json is not None:
            args.json.write_text(json.dumps(results, indent=1))

    results["check"] = check(dtype)
    save()
    for i, name in enumerate(SHAPES):
        # a shape leaves the later ones their time
        until = args.seconds * (i + 1) / (len(SHAPES) + 0.5)
        results["tune"][name] = tune(
            name, dtype, lambda until=until: time.monotonic() - start > until
        )
        results["tiles"][name] = {
            k: launch.TILES[k, launch.columns(SHAPES[name][2]), dtype.itemsize] for k in KERNELS
        }
        results["compare"][name] = compare(name, dtype)
        save()
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
