"""Relative attention alone: our implementations, the original's, attention without positions, FlexAttention.

    python -m lab.benchmarks.attention [--shapes small long] [--original FOLDER] [--rounds 11] [--json FILE]
    python -m lab.benchmarks.attention --device cuda --dtype bfloat16

Forward without gradients, and forward and backward (the gradients of q, k, v, r, u and w). All are asked in turn, each
round beginning with another one; ratios are taken round by round. On a GPU the time is the device's own: work is queued
while it sleeps, with its cache emptied before each call. `sdpa` is PyTorch's attention over the same keys, causal, by
FlashAttention on a GPU, and `sdpa_full` over all keys; neither has positions. Before it is timed, each path's result is
compared with that of the original's formulation in float32.
"""

import argparse
import gc
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from lab.benchmarks.formulation import flex, time_first
from lab.benchmarks.peers import ratio, say_machine, write_as_found
from lab.benchmarks.workers import original
from txl.ops.rel_attention import IMPLEMENTATIONS, refusal
from txl.runtime.resources import PeakMemory


class Case(NamedTuple):
    """Sequences, heads, head size, new and remembered tokens."""

    B: int
    N: int
    H: int
    T: int
    M: int


TINY = Case(1, 2, 8, 8, 8)
CPU = {
    "tiny": TINY,
    "small": Case(8, 8, 32, 64, 64),
    "wt103-base": Case(4, 10, 41, 150, 150),
    "long": Case(2, 8, 64, 512, 512),
    "evaluation": Case(1, 10, 41, 64, 640),
}
GPU = {
    "tiny": TINY,
    "wt103-base": Case(60, 10, 41, 150, 150),
    "nvidia-base": Case(32, 8, 64, 192, 192),
    "nvidia-large": Case(16, 16, 64, 384, 384),
    "long": Case(4, 16, 64, 2048, 2048),
    "memory": Case(1, 16, 64, 128, 16384),
    "memory-64k": Case(1, 16, 64, 128, 65536),
}
PASSES = ("forward", "both")
KEPT = {"fused_three_passes": 0, "fused_kept_whole": 2**20}
"""Other ways of fused attention's backward pass: MiB for the gradients of the logits."""
NAIVE_UP_TO = 2**24  # numbers of the tensor that naive forms


class Way(NamedTuple):
    """An implementation: a call that returns (B, N, T, H), and the tensors with gradients."""

    call: Callable[[], Tensor]
    leaves: list[Tensor]
    same: bool = True
    """Whether the result is relative attention's."""


def inputs(case: Case, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v, r, u, w laid out as by projections: the first three are views of (B, L, N, H)."""
    torch.manual_seed(0)
    B, N, H, T, M = case

    def drawn(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, device=device).to(kind)

    heads = [drawn(B, L, N, H).transpose(1, 2) for L in (T, T + M, T + M)]
    shared = [drawn(T + M, N, H), *(drawn(N, H, kind=torch.float32) for _ in "uw")]
    return [x.requires_grad_() for x in heads + shared]


def ways(case: Case, args: list[Tensor], folder: str | None) -> dict[str, Callable[[], Way]]:
    """The measured implementations by name, built on demand."""
    B, N, H, T, M = case
    device, dtype, scale, S = args[0].device, args[0].dtype, H**-0.5, T + M
    q, k, v, r, u, w = args
    same_kind = [q, k, v, r, *(x.detach().to(dtype).requires_grad_() for x in (u, w))]

    def ours(impl: str, **options: int) -> Way:
        reason = refusal(impl, device, d_head=H)
        if reason is None and impl == "naive" and B * T * S * N * H > NAIVE_UP_TO:
            reason = "forms a tensor too large"
        if reason is not None:
            raise NotImplementedError(reason)
        return Way(lambda: IMPLEMENTATIONS[impl](*args, scale=scale, **options), args)

    def formulation() -> Way:
        first = [
            x.detach().permute(2, 0, 1, 3).contiguous().requires_grad_() for x in args[:3]
        ] + same_kind[3:]
        return Way(lambda: time_first(*first, scale=scale).permute(1, 2, 0, 3), first)

    def sdpa(*, causal: bool) -> Way:
        bias = None
        if causal and device.type == "cpu":
            bias = torch.ones(T, S, dtype=torch.bool).tril(M)
        elif causal:
            from torch.nn.attention.bias import causal_lower_right  # imports all of torch._dynamo

            bias = causal_lower_right(T, S)

        def call() -> Tensor:
            with (
                sdpa_kernel(SDPBackend.FLASH_ATTENTION) if device.type == "cuda" else nullcontext()
            ):
                return scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)

        return Way(call, [q, k, v], same=False)

    def flexible() -> Way:
        attention = flex(T, S, device)
        return Way(lambda: attention(*same_kind, scale=scale), same_kind)

    named = {"original": formulation} | {
        impl: lambda impl=impl: ours(impl) for impl in IMPLEMENTATIONS
    }
    if device.type == "cuda":
        named |= {name: lambda mib=mib: ours("fused", keep_mib=mib) for name, mib in KEPT.items()}
    if folder:
        named["original's class"] = lambda: originals_class(case, args, folder)
    return named | {
        "sdpa": lambda: sdpa(causal=True),
        "sdpa_full": lambda: sdpa(causal=False),
        "flex": flexible,
    }


class Given(nn.Module):
    """A projection with a fixed result."""

    def __init__(self, result: Tensor | None = None) -> None:
        super().__init__()
        self.result = result

    def forward(self, x: Tensor) -> Tensor:
        return x if self.result is None else self.result


def originals_class(case: Case, args: list[Tensor], folder: str) -> Way:
    """The attention class of a checkout, without projections, on a residual stream of width 1."""
    B, N, H, T, M = case
    q, k, v, r, u, w = (x.detach() for x in args)
    # it projects queries for the memory too
    q_BNSH = torch.cat([q.new_zeros(B, N, M, H), q], dim=2)
    qkv_SBE = torch.cat(
        [x.permute(2, 0, 1, 3).flatten(2) for x in (q_BNSH, k, v)], dim=-1
    ).requires_grad_()
    r_SE, u, w = r.flatten(1).requires_grad_(), *(x.to(q.dtype).requires_grad_() for x in (u, w))
    attention = original.load(folder).RelPartialLearnableMultiHeadAttn(N, 1, H, 0.0)
    attention.qkv_net, attention.r_net = Given(qkv_SBE), Given(r_SE)
    attention.o_net = attention.layer_norm = Given()
    stream_TB1, memory_MB1 = qkv_SBE.new_zeros(T, B, 1), qkv_SBE.new_zeros(M, B, 1)
    hidden_TS1 = torch.ones(T, T + M, dtype=torch.bool, device=q.device).triu(1 + M)[:, :, None]

    def call() -> Tensor:
        out_TBE = attention(stream_TB1, r_SE, u, w, attn_mask=hidden_TS1, mems=memory_MB1)
        return out_TBE.unflatten(-1, (N, H)).permute(1, 2, 0, 3)

    return Way(call, [qkv_SBE, r_SE, u, w])


def work(way: Way, what: str, case: Case) -> Callable[[], object]:
    """One forward pass, or one forward and backward pass."""
    if what == "forward":
        return torch.no_grad()(way.call)
    like = way.leaves[0]
    dout_BNTH = (
        torch.randn(case.B, case.T, case.N, case.H, device=like.device)
        .to(like.dtype)
        .transpose(1, 2)
    )
    return lambda: torch.autograd.grad(way.call(), way.leaves, dout_BNTH)


def in_turn(
    runs: dict[str, Callable[[], object]], device: torch.device, rounds: int
) -> dict[str, list[float]]:
    """Seconds per call of each, in interleaved rounds."""
    n_call = {}
    for name, run in runs.items():
        run()
        start = time.perf_counter()
        run()
        _wait(device)
        n_call[name] = max(1, min(20, int(0.02 / (time.perf_counter() - start))))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for i in range(rounds):
        turn = i % len(names)
        for name in names[turn:] + names[:turn]:
            measure = _device_seconds if device.type == "cuda" else _host_seconds
            seconds[name].append(measure(runs[name], n_call[name]))
    return seconds


def _host_seconds(run: Callable[[], object], n: int) -> float:
    start = time.perf_counter()
    for _ in range(n):
        run()
    return (time.perf_counter() - start) / n


def _device_seconds(run: Callable[[], object], n: int) -> float:
    """The median of n calls, queued while the device sleeps, so that launches do not limit it."""
    cache = torch.empty(2**26, dtype=torch.int32, device="cuda")
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(n)]
    _wait(torch.device("cuda"))
    torch.cuda._sleep(int(2e6 * 2 * n))  # cycles: about 2 ms a call
    for start, end in events:
        cache.zero_()
        start.record()
        run()
        end.record()
    _wait(torch.device("cuda"))
    return statistics.median(start.elapsed_time(end) for start, end in events) / 1000


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_bytes(run: Callable[[], object], device: torch.device) -> int | None:
    """Peak memory of one call, without its inputs."""
    _wait(device)
    gc.collect()
    peak = PeakMemory(device)
    before = torch.cuda.memory_allocated() if device.type == "cuda" else peak.bytes()
    run()
    _wait(device)
    after = peak.bytes()
    return None if None in (before, after) else after - before


def peak_alone(name: str, what: str, case: Case, args: argparse.Namespace) -> int | None:
    """`peak_bytes` of a call in its own process, unaffected by memory freed earlier."""
    command = [
        sys.executable,
        "-m",
        "lab.benchmarks.attention",
        "--dtype",
        args.dtype,
        "--alone",
        name,
        what,
    ]
    command += [
        "--case",
        *map(str, case),
        *(["--original", args.original] if args.original else []),
    ]
    out = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    return int(out.stdout) if out.stdout.strip().isdigit() else None


def alone(args: argparse.Namespace) -> None:
    """Run by `peak_alone`: a small warm-up call, then the measured one."""
    name, what = args.alone
    for case in (Case(1, 2, args.case[2], 8, 8), Case(*args.case)):
        tensors = inputs(case, torch.device("cpu"), getattr(torch, args.dtype))
        run = work(ways(case, tensors, args.original)[name](), what, case)
        if name == "flex":
            run()  # compiles, which takes memory too
        found = peak_bytes(run, torch.device("cpu"))
    print("" if found is None else found)


def measured(label: str, case: Case, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All implementations at one shape, both passes; printed one by one."""
    device, tensors = (
        torch.device(args.device),
        inputs(case, torch.device(args.device), getattr(torch, args.dtype)),
    )
    with torch.no_grad():
        exact = [x.detach().float().contiguous() for x in tensors]
        expected = time_first(
            *(x.permute(2, 0, 1, 3) for x in exact[:3]), *exact[3:], scale=case.H**-0.5
        )
    for what in PASSES:
        runs, peaks, errors = {}, {}, {}
        for name, build in ways(case, tensors, args.original).items():
            if args.only and name not in args.only:
                continue
            try:
                way = build()
                with torch.no_grad():
                    difference = way.call().float().permute(2, 0, 1, 3) - expected
                errors[name] = float(difference.norm() / expected.norm()) if way.same else None
                run = work(way, what, case)
                run()
                cpu = device.type == "cpu"
                peaks[name] = peak_alone(name, what, case, args) if cpu else peak_bytes(run, device)
                runs[name] = run
            # a compiler's own, out of memory, or not written for this device
            except Exception as error:
                reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                print(f"{label:14} {what:8} {name:18} left out: {reason[:140]}", flush=True)
                yield {"shape": label, "pass": what, "path": name, "left_out": reason}
        seconds = in_turn(runs, device, args.rounds)
        for name in runs:
            row = {
                "shape": label,
                **case._asdict(),
                "pass": what,
                "path": name,
                "error": errors[name],
            }
            row |= {
                "seconds": seconds[name],
                "ms": 1000 * statistics.median(seconds[name]),
                "peak_bytes": peaks[name],
            }
            for other in BESIDE & set(runs):
                row[f"{other}_times_as_long"] = vars(ratio(seconds[name], seconds[other]))
            print(line(row), flush=True)
            yield row


BESIDE = {"original", "sdpa"}


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    text = f"{row['shape']:14} {row['pass']:8} {row['path']:18} {row['ms']:10.3f} ms"
    peak = row["peak_bytes"]
    text += "        ? MiB" if peak is None else f" {peak / 2**20:8.1f} MiB"
    if "original_times_as_long" in row:
        text += f"  {row['original_times_as_long']['median']:6.2f} times as fast as the original's"
    if "sdpa_times_as_long" in row:
        text += f"  {1 / row['sdpa_times_as_long']['median']:6.2f} times sdpa's time"
    return text + ("" if row["error"] is None else f"  error {row['error']:.0e}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = sorted(CPU.keys() | GPU.keys())
    parser.add_argument("--shapes", nargs="+", choices=names, help="[all of the device]")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument(
        "--original", metavar="FOLDER", help="a checkout of kimiyoung/transformer-xl"
    )
    parser.add_argument("--only", nargs="+", metavar="PATH", help="these paths only")
    parser.add_argument("--rounds", type=int, default=11, help="times that each path is asked [11]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--case", nargs=5, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        alone(args)
        return
    shapes = GPU if args.device == "cuda" else CPU
    say_machine()
    if others := set(args.shapes or ()) - set(shapes):
        parser.error(
            f"--shapes {' '.join(sorted(others))}: not on {args.device}; there are {' '.join(shapes)}"
        )
    asked = {name: shapes[name] for name in args.shapes or set(shapes) - {"tiny"}}
    rows = itertools.chain.from_iterable(measured(name, case, args) for name, case in asked.items())
    write_as_found(args.json, rows, device=args.device, dtype=args.dtype)


if __name__ == "__main__":
    main()
