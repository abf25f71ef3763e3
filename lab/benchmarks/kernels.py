"""Attention rules against each other: time and memory from 1,024 to 32,768 tokens, and what their approximations cost.

    python -m lab.benchmarks.kernels [--lengths 1024 2048 ...] [--repeats 5] [--backward] [--json FILE]
    python -m lab.benchmarks.kernels --reversible
    python -m lab.benchmarks.kernels --error

The first compares softmax, performer and lsh on the same queries, keys and values, softmax being PyTorch's flash
attention, without positions. Rules are asked in turn (A B C A B C ...); times are medians, and the ratio to softmax is
taken round by round. Memory is what one call adds at its peak, as the allocator counts it. `--reversible` measures the
peak of a training step for 2 to 32 layers, with activations kept, computed again, and reversible. `--error` shows the
error of performer against softmax by its number of features, and the share of softmax's weight that lsh finds by its
number of rounds.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lab.benchmarks.peers import say_machine, write_as_found
from txl import Context, ModelConfig, Span, TransformerXL
from txl.attention_rules import ATTENTION_RULES
from txl.positions import PositionEncoding

RULES = ("softmax", "performer", "lsh")
SHAPE = {"n_token": 100, "n_head": 8, "d_head": 64, "position": "none"}
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def call_of(rule: str, n_token: int, *, backward: bool) -> Callable[[], None]:
    """Attention of one sequence over itself, 8 heads of 64, float32."""
    config = ModelConfig(attention=rule, **SHAPE)
    kernel, pos = ATTENTION_RULES[rule](config).to(DEVICE), PositionEncoding(config)
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(1, 8, n_token, 64, device=DEVICE, requires_grad=backward) for _ in range(3)
    )
    k = q if kernel.shared_qk else k
    span, nothing = Span(0, n_token), q.new_empty(0)

    def call() -> None:
        with torch.set_grad_enabled(backward):
            out = kernel(q, k, v, pos=pos, feats=nothing, span=span)
            if backward:
                out.sum().backward()

    return call


def seconds(call: Callable[[], None]) -> float:
    """Seconds of one call, synchronised."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_bytes(call: Callable[[], None]) -> int:
    """Peak memory added by one call."""
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        call()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = (e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))
    return max(itertools.accumulate(sizes, initial=0))


def compare(n_token: int, *, repeats: int, backward: bool) -> dict[str, dict[str, float]]:
    """Median milliseconds, median ratio to softmax, and peak MiB of each rule."""
    calls = {rule: call_of(rule, n_token, backward=backward) for rule in RULES}
    for call in calls.values():
        call()
    rounds = [{rule: seconds(call) for rule, call in calls.items()} for _ in range(repeats)]
    return {
        rule: {
            "ms": 1000 * statistics.median(r[rule] for r in rounds),
            "ratio_to_softmax": statistics.median(r[rule] / r["softmax"] for r in rounds),
            "peak_mib": peak_bytes(calls[rule]) / 2**20,
        }
        for rule in RULES
    }


def step_peak(way: str, n_layer: int, *, n_token: int = 512) -> int:
    """Bytes that forward and backward pass of a language model take at their peak, the gradients of its weights, which
    grow with the layers in any case, left out; 4 rows of tokens, no memory."""
    torch.manual_seed(0)
    shape = {
        "n_token": 1000,
        "n_head": 4,
        "d_head": 32,
        "d_model": 128,
        "d_inner": 512,
        "pre_lnorm": True,
    }
    model = TransformerXL(ModelConfig(n_layer=n_layer, reversible=way == "reversible", **shape)).to(
        DEVICE
    )
    for layer in model.layers:
        layer.recompute = way == "recompute"
    ids = torch.randint(0, 1000, (4, n_token + 1))

    def step() -> None:
        nll_BT, _ = model.nll(
            ids[:, :-1].to(DEVICE), ids[:, 1:], None, Context(tgt_len=n_token, mem_len=0)
        )
        nll_BT.mean().backward()

    return peak_bytes(step) - sum(p.numel() * p.element_size() for p in model.parameters())


def performer_error(n_feature: int, *, n_draw: int = 5) -> float:
    """Root mean square error of performer's output against softmax's, in units of the latter's deviation."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 4, 512, 64)
    q, k, span, squares = q / 2, k / 2, Span(0, 512), []
    exact = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    for _ in range(n_draw):
        config = ModelConfig(**SHAPE, attention="performer", n_feature=n_feature)
        kernel = ATTENTION_RULES["performer"](config)
        ours = kernel(q, k, v, pos=PositionEncoding(config), feats=q.new_empty(0), span=span)
        squares.append((ours - exact).square().mean())
    return float(torch.stack(squares).mean().sqrt() / exact.std())


def lsh_recall(n_round: int, *, n_token: int = 2048) -> float:
    """The share of shared-query softmax attention's weight that lies on the tokens which lsh lets a token see."""
    torch.manual_seed(0)
    config = ModelConfig(**SHAPE, attention="lsh", lsh_round=16)
    kernel = ATTENTION_RULES["lsh"](config)
    x = torch.randn(1, 2, n_token, 64)
    bucket_RBNS = kernel.buckets(x)[:n_round]
    seen = torch.zeros(1, 2, n_token, n_token, dtype=torch.bool)
    for bucket_BNS in bucket_RBNS:
        same = (bucket_BNS[..., :, None] == bucket_BNS[..., None, :]).tril(-1)
        after = same.flip(-1).cumsum(-1).flip(-1)  # tokens of the bucket from this one on
        seen |= same & (after <= config.lsh_reach)
    logit: Tensor = x @ F.normalize(x, dim=-1).mT
    earlier = torch.ones(n_token, n_token, dtype=torch.bool).tril(-1)
    weight = logit.masked_fill(~earlier, -torch.inf)[:, :, 1:].softmax(-1)
    return float((weight * seen[:, :, 1:]).sum(-1).mean())


def table_of_rules(
    lengths: Sequence[int], *, repeats: int, backward: bool
) -> Iterator[dict[str, Any]]:
    """Print a row per length and rule."""
    print("| tokens | rule | ms | times softmax | peak MiB |\n|---|---|---|---|---|")
    for n_token in lengths:
        for rule, row in compare(n_token, repeats=repeats, backward=backward).items():
            figures = f"{row['ms']:.1f} | {row['ratio_to_softmax']:.2f} | {row['peak_mib']:.0f}"
            print(f"| {n_token} | {rule} | {figures} |", flush=True)
            yield {"tokens": n_token, "rule": rule, **row}


def table_of_layers() -> Iterator[dict[str, Any]]:
    """Print the peak of a training step for each number of layers."""
    print("| layers | kept MiB | recompute MiB | reversible MiB |\n|---|---|---|---|")
    for n_layer in (2, 4, 8, 16, 32):
        mib = {way: step_peak(way, n_layer) / 2**20 for way in ("kept", "recompute", "reversible")}
        print(f"| {n_layer} | " + " | ".join(f"{m:.1f}" for m in mib.values()) + " |", flush=True)
        yield {"layers": n_layer, **mib}


def table_of_errors() -> Iterator[dict[str, Any]]:
    """Print performer's error and the recall of lsh."""
    print("| features | performer's error / deviation of softmax's output |\n|---|---|")
    for n_feature in (16, 64, 256, 1024, 4096):
        error = performer_error(n_feature)
        print(f"| {n_feature} | {error:.3f} |", flush=True)
        yield {"features": n_feature, "error": error}
    print("\n| rounds | share of softmax's weight that lsh sees |\n|---|---|")
    for n_round in (1, 2, 4, 8, 16):
        recall = lsh_recall(n_round)
        print(f"| {n_round} | {recall:.3f} |", flush=True)
        yield {"rounds": n_round, "recall": recall}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384, 32768]
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--backward", action="store_true", help="the backward pass too")
    parser.add_argument(
        "--reversible", action="store_true", help="peak memory against the number of layers"
    )
    parser.add_argument("--error", action="store_true", help="what the approximations cost")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    say_machine()
    if args.reversible:
        rows = table_of_layers()
    elif args.error:
        rows = table_of_errors()
    else:
        rows = table_of_rules(args.lengths, repeats=args.repeats, backward=args.backward)
    write_as_found(args.json, rows)


if __name__ == "__main__":
    main()
