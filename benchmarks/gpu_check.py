"""Whether the fast paths are right on this GPU: fused attention, whole-graph compilation, recorded graphs.

    python -m benchmarks.gpu_check [--share 0 1] [--json FILE]

Fused attention, values and six gradients, against its definition in float64, or in float32 where that takes too much
memory; a model whose layers are compiled as one graph each against the same model as it is; a recorded model against
the model. Errors are |found - expected| / |expected|. The exit status is 1 if one is too large. --share I N does every
N-th check from the I-th on: kernels are compiled on one core, and there are many.
"""

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.peers import write
from benchmarks.shapes import TRAINING, Shape
from benchmarks.tune_rel_attention import NAMES, ODD, SHAPES, inputs
from benchmarks.workers.serve import narrowed, segments
from benchmarks.workers.txl import context_of, model_of
from txl.graphed import Graphed
from txl.model import TransformerXL
from txl.ops.rel_attention.naive import naive

Errors = dict[str, float]
LIMITS = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 4e-3}
FLOAT64_UP_TO = 2**27  # numbers of the largest tensor of the definition
SMALL = dataclasses.replace(TRAINING["nvidia-base"], n_layer=3, n_token=3000, cutoffs=(500, 1000), dropout=0.0)


def error(found: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected|."""
    return float((found.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-6))


def fused_errors(B: int, N: int, H: int, T: int, S: int, window: int, dtype: torch.dtype) -> Errors:
    """Of the output and the six gradients."""
    from txl.ops.rel_attention.fused import fused

    args = inputs(B, N, H, T, S, dtype)
    kind = torch.float64 if T * S * N * H <= FLOAT64_UP_TO else torch.float32
    exact = [x.detach().to(kind).requires_grad_() for x in args]
    dout_BNTH = torch.randn(B, N, T, H, device="cuda").to(dtype)
    found, expected = [], []
    for attention, tensors, results in ((fused, args, found), (naive, exact, expected)):
        out = attention(*tensors, scale=H**-0.5, window=window)
        results += [out, *torch.autograd.grad(out, tensors, dout_BNTH.to(out.dtype))]
    return dict(zip(NAMES, map(error, found, expected), strict=True))


def compiled_errors(shape: Shape) -> Errors:
    """Of the loss and all gradients after two segments, the layers compiled with nothing left to Python."""
    results = []
    for compiled in (False, True):
        model = model_of(shape)
        if compiled:
            for layer in model.layers:
                layer.compile(fullgraph=True)
        results.append(_loss_and_gradients(model, shape))
    return {name: error(results[1][name], expected) for name, expected in results[0].items()}


def _loss_and_gradients(model: TransformerXL, shape: Shape) -> dict[str, Tensor]:
    text, memory, loss = segments(shape), None, torch.zeros(())
    for _ in range(2):
        with narrowed(shape):
            nll_BT, memory = model.nll(*next(text), memory, context_of(shape))
        loss = nll_BT.mean()
    loss.backward()
    gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return {"loss": loss.detach(), "gradients": gradients}


@torch.no_grad()
def graphed_errors(shape: Shape, *, narrows: bool = False) -> Errors:
    """Of the nats of six segments, of which the last four are read over a full memory.

    The shape's dtype is that of the weights; with `narrows`, of the products only.
    """
    model = model_of(shape).eval()
    if not narrows:
        model.to(getattr(torch, shape.dtype))
    on_cpu = shape.device == "cpu"
    results = []
    for predictor in (model, Graphed(model, record=(lambda work: work) if on_cpu else None)):
        text, memory, nats = segments(shape), model.fresh_memory(shape.batch_size), []
        with narrowed(shape) if narrows else nullcontext():
            for _ in range(6):
                nll_BT, memory = predictor.nll(*next(text), memory, context_of(shape))
                nats.append(nll_BT.clone())
        results.append(torch.cat(nats))
    return {"nats": error(results[1], results[0])}


def checks(device: str) -> Iterator[tuple[str, str, Callable[[], Errors]]]:
    """(name, dtype, what finds the errors)."""
    cases = [(min(B, 2), min(N, 2), H, T, T + M, -1) for B, N, H, T, M in SHAPES.values()] if device == "cuda" else []
    for case in cases + (ODD if device == "cuda" else []):
        for dtype in LIMITS:
            yield f"fused {case}", dtype, lambda case=case, dtype=dtype: fused_errors(*case, getattr(torch, dtype))
    for dtype in ("float32", "bfloat16"):
        shape = dataclasses.replace(SMALL, device=device, dtype=dtype, batch_size=2)
        yield "compiled", dtype, lambda shape=shape: compiled_errors(shape)
        reading = dataclasses.replace(shape, tgt_len=96, mem_len=192, same_length=True, clamp_len=100)
        yield "graphed", dtype, lambda reading=reading: graphed_errors(reading)
    yield "graphed, narrowed", "bfloat16", lambda: graphed_errors(reading, narrows=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="cpu: without fused attention")
    parser.add_argument("--share", nargs=2, type=int, default=(0, 1), metavar=("I", "N"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    args = parser.parse_args()
    first, step = args.share
    rows = []
    for name, dtype, find in list(checks(args.device))[first::step]:
        try:
            errors = find()
        except Exception as failure:  # a compiler's own; the other checks are still worth doing
            reason = f"{type(failure).__name__}: {(str(failure).splitlines() or [''])[0]}"
            print(f"WRONG {name} {dtype}: {reason}", flush=True)
            rows.append({"check": name, "dtype": dtype, "right": False, "failed": reason})
            continue
        right = all(e <= LIMITS[dtype] for e in errors.values())  # False for NaN as well
        numbers = " ".join(f"{key} {e:.1e}" for key, e in errors.items())
        print(f"{'right' if right else 'WRONG'} {name} {dtype}: {numbers}", flush=True)
        rows.append({"check": name, "dtype": dtype, "right": right, "errors": errors})
    write(args.json, {"rows": rows})
    raise SystemExit(not all(row["right"] for row in rows))


if __name__ == "__main__":
    main()
