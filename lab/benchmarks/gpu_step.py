"""One training step on a GPU, in one variant: ms, tokens a second, memory; its kernels with --profile.

    python -m lab.benchmarks.gpu_step --shape nvidia-base --batch 32 [--compile] [--cuda_graph]
                                  [--optim muon] [--keep_mib 64] [--profile] [--json FILE]
    python -m lab.benchmarks.gpu_step --check      updates as one graph, compared with kernel by kernel

The last line is JSON. Times are the median of three runs of --steps updates each, after a warm-up
in which the memory fills, kernels are compiled and the graph is recorded. `host_ms` is how long the
host takes to ask for an update; where it is as long as `ms`, the GPU waits for the host.
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from lab.benchmarks.peers import positive, say_machine, write
from lab.benchmarks.shapes import TRAINING, Shape
from lab.benchmarks.workers.serve import segments
from lab.benchmarks.workers.txl import model_of, state_of
from txl.runtime.resources import keep_freed_memory
from txl.training.step import TrainState

CHECKED = dataclasses.replace(
    TRAINING["tiny"],
    n_layer=4,
    n_head=4,
    d_head=32,
    d_model=128,
    d_inner=256,
    n_token=2000,
    cutoffs=(200, 400, 1200),
    batch_size=8,
    tgt_len=32,
    mem_len=32,
    dropout=0.0,
)
WITHIN = 1e-4
"""Nats by which updates as one graph may differ in float32."""


def state_for(args: argparse.Namespace, shape: Shape) -> TrainState:
    """The beginning of a training in this variant."""
    if shape.device == "cpu" and shape.compile:  # the compiler takes minutes for what is only tried
        shape = dataclasses.replace(shape, compile=False)
    state = state_of(model_of(shape), shape, optim=args.optim, lr=2.5e-4)
    if args.keep_mib:
        for layer in state.model.layers:
            layer.attn.rule.keep_mib = args.keep_mib
    return state


def check(args: argparse.Namespace) -> dict[str, Any]:
    """The largest difference in nats of 24 updates, recorded and not."""
    found = []
    for is_graph in (False, args.device == "cuda"):
        shape = dataclasses.replace(CHECKED, device=args.device, cuda_graph=is_graph)
        state = state_for(args, shape)
        texts = segments(shape)
        nats = [state.step(*next(texts)).mean().clone() for _ in range(24)]
        state.check()
        found.append(torch.stack(nats).double().cpu())
    worst = float((found[0] - found[1]).abs().max())
    verdict = "right" if worst <= WITHIN else "WRONG"
    print(f"{verdict}: updates as one graph differ by {worst:.1e} nats")
    return {"check": verdict, "worst": worst}


def timed(args: argparse.Namespace) -> dict[str, Any]:
    """The figures of one variant."""
    shape = dataclasses.replace(
        TRAINING[args.shape],
        batch_size=args.batch,
        device=args.device,
        dtype=args.dtype,
        compile=args.compile,
        cuda_graph=args.cuda_graph and args.device == "cuda",
    )
    start = time.perf_counter()
    state = state_for(args, shape)
    texts = segments(shape)
    for _ in range(args.warm_up):
        state.step(*next(texts))
    state.check()
    ready_s = time.perf_counter() - start
    batches = [next(texts) for _ in range(args.steps)]
    runs = sorted(_run(state, batches) for _ in range(3))
    ms, host_ms = runs[1]
    row = {
        "ms": round(ms, 2),
        "all_ms": [round(run[0], 2) for run in runs],
        "host_ms": round(host_ms, 2),
        "tokens_per_s": round(shape.batch_size * shape.tgt_len / ms * 1000),
        "ready_s": round(ready_s, 1),
    }
    if args.device == "cuda":
        row["peak_mib"] = torch.cuda.max_memory_allocated() // 2**20
    print(f"{row['tokens_per_s']:,} tok/s, {row['ms']} ms a step, host {row['host_ms']} ms")
    if args.profile:
        row |= _kernels(state, batches[:3], args.device)
    return row


def _run(state: TrainState, batches: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Milliseconds of an update, and of the host for it."""
    hosts = []
    start = time.perf_counter()
    for batch in batches:
        asked = time.perf_counter()
        state.step(*batch)
        hosts.append(time.perf_counter() - asked)
    state.check()  # waits for the device
    return 1000 * (time.perf_counter() - start) / len(batches), 1000 * statistics.fmean(hosts)


def _kernels(
    state: TrainState, batches: list[tuple[Tensor, Tensor]], device: str
) -> dict[str, Any]:
    """What the device does in an update, by kernel, the longest first."""
    activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        for batch in batches:
            state.step(*batch)
        state.check()
    ms: Counter[str] = Counter()
    n: Counter[str] = Counter()
    for name, one in _own_times(profiler, device):
        ms[name] += one / len(batches)
        n[name] += 1
    longest = [
        {"kernel": name, "ms": round(one, 4), "launches": round(n[name] / len(batches), 1)}
        for name, one in ms.most_common(45)
    ]
    for row in longest[:14]:
        print(f"   {row['ms']:8.3f} ms {row['launches']:7.1f} x {row['kernel']}")
    launches = round(n.total() / len(batches))
    return {"kernel_ms": round(ms.total(), 3), "launches": launches, "kernels": longest}


def _own_times(profiler: profile, device: str) -> Iterator[tuple[str, float]]:
    for event in profiler.events() or ():
        if device == "cpu":
            yield event.name[:90], event.self_cpu_time_total / 1000
        elif event.device_type == torch.autograd.DeviceType.CUDA:
            yield event.name[:90], event.device_time / 1000


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=TRAINING, default="nvidia-base")
    parser.add_argument("--batch", type=positive, default=32, help="streams [32]")
    parser.add_argument("--compile", action="store_true", help="as train.py --compile")
    parser.add_argument("--cuda_graph", action="store_true", help="as train.py --cuda_graph")
    parser.add_argument("--optim", default="adam", help="[adam]")
    parser.add_argument("--keep_mib", type=positive, help="as train.py --attn_keep_mib")
    parser.add_argument("--dtype", default="bfloat16", help="[bfloat16]")
    parser.add_argument("--steps", type=positive, default=10, help="of each of three runs [10]")
    parser.add_argument("--warm_up", type=positive, default=8, help="updates before them [8]")
    parser.add_argument("--profile", action="store_true", help="kernels of three more updates")
    parser.add_argument("--check", action="store_true", help="only whether a graph is right")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    args = parser.parse_args()
    say_machine()
    keep_freed_memory()
    row = check(args) if args.check else timed(args)
    asked = {k: v for k, v in vars(args).items() if k != "json"}
    write(args.json, asked | row)
    print(json.dumps({k: v for k, v in row.items() if k != "kernels"}))
    if row.get("check") == "WRONG":
        raise SystemExit(1)


if __name__ == "__main__":
    main()
