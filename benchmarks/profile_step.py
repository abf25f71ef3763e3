"""Profile of a training step, by part of the model and by operator.

    python -m benchmarks.profile_step --shapes wt103-base [--steps 3] [--original FOLDER] [--json FILE]
    python -m benchmarks.profile_step --device cuda --dtype bfloat16 --shapes nvidia-base nvidia-large [--compile]

Forward operators belong to the part of the model they were called in, backward ones to the part of the forward operator
they differentiate. Times are the operators' own: of the device on a GPU, of the host on a CPU. On a GPU there is a line
on the host too, its launches and the time it takes: where that is longer, the GPU waits. With --compile the parts of a
layer are one, and are found under `layers`. With --original a checkout of kimiyoung/transformer-xl is looked at
instead; attention there includes its LayerNorm and residual connection.
"""

import argparse
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.peers import WARM_UP, say_machine, write_as_found
from benchmarks.shapes import TRAINING, Shape, add_shape_flags, asked_for
from benchmarks.workers import original
from benchmarks.workers.serve import segments
from benchmarks.workers.txl import training_state
from txl.runtime.resources import keep_freed_memory
from txl.training.step import TrainState

PARTS = (
    "attention",
    "projections",
    "feed-forward",
    "layers",
    "embedding",
    "head",
    "clipping",
    "optimizer",
    "rest",
)


def scoped(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, labelled with this part for the profiler."""

    @functools.wraps(function)
    def within(*args: Any, **options: Any) -> Any:
        with record_function(f"part {part}"):
            return function(*args, **options)

    return within


def mark(state: TrainState, *, compiled: bool) -> None:
    """Label the parts of the step for the profiler; the innermost label counts."""
    model = state.model
    for layer in model.layers:
        if compiled:
            layer._compiled_call_impl = scoped("layers", layer._compiled_call_impl)
            continue
        layer.forward = scoped("layers", layer.forward)
        layer.attn.forward = scoped("projections", layer.attn.forward)
        layer.attn.rule.forward = scoped("attention", layer.attn.rule.forward)
        layer.ff.forward = scoped("feed-forward", layer.ff.forward)
    model.word_emb.forward = scoped("embedding", model.word_emb.forward)
    model.softmax.nll = scoped("head", model.softmax.nll)


def mark_original(model: nn.Module) -> None:
    """The same for the model of kimiyoung/transformer-xl."""
    for layer in model.layers:
        layer.forward = scoped("layers", layer.forward)
        layer.dec_attn.forward = scoped("attention", layer.dec_attn.forward)
        for net in (layer.dec_attn.qkv_net, layer.dec_attn.r_net, layer.dec_attn.o_net):
            net.forward = scoped("projections", net.forward)
        layer.pos_ff.forward = scoped("feed-forward", layer.pos_ff.forward)
    model.word_emb.forward = scoped("embedding", model.word_emb.forward)
    model.crit.forward = scoped("head", model.crit.forward)


def our_steps(shape: Shape) -> Iterator[object]:
    """A step of ours at a time, as train.py does it."""
    keep_freed_memory()
    state = training_state(shape)
    mark(state, compiled=shape.compile)
    for input_BT, target_BT in segments(shape):
        yield state.step(input_BT, target_BT)


def events_of(work: Iterator[object], steps: int, *, on_gpu: bool) -> list[FunctionEvent]:
    """The profiler's events of n steps, after those of the warm-up."""
    utils = torch.nn.utils
    clip, norm = utils.clip_grad_norm_, utils.get_total_norm  # of the original, and of ours
    utils.clip_grad_norm_ = scoped("clipping", clip)
    utils.get_total_norm = scoped("clipping", norm)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    try:
        for _ in range(WARM_UP):
            next(work)
        with profile(activities=activities) as profiler:
            for _ in range(steps):
                next(work)
            if on_gpu:
                torch.cuda.synchronize()
    finally:
        utils.clip_grad_norm_, utils.get_total_norm = clip, norm
    return list(profiler.events())


def milliseconds(events: list[FunctionEvent], *, on_gpu: bool) -> dict[str, Counter[str]]:
    """By part, the own time of each operator."""
    host = [event for event in events if event.device_type == torch.autograd.DeviceType.CPU]
    roots = [event for event in host if event.cpu_parent is None]
    forward: dict[int, str] = {}  # sequence number of a differentiable operator: its part
    found: dict[str, Counter[str]] = {part: Counter() for part in PARTS}

    def number(event: FunctionEvent, part: str) -> None:
        if is_backward(event):
            return
        part = part_of(event) or part
        # that of the next operator to be made, until it is: the last one here made it
        if event.sequence_nr >= 0:
            forward[event.sequence_nr] = part
        for child in event.cpu_children:
            number(child, part)

    def spend(event: FunctionEvent, part: str) -> None:
        part = part_of(event) or part
        if is_backward(event):
            part = forward.get(event.sequence_nr, part)
        own = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if on_gpu and event.is_user_annotation:
            own = 0.0  # a span on the device, over kernels that count by themselves
        found[part][event.name] += own / 1000
        for child in event.cpu_children:
            spend(child, part)

    for root in roots:
        number(root, "rest")
    for root in roots:
        spend(root, "rest")
    return found


def of_host(events: list[FunctionEvent]) -> tuple[float, int]:
    """Milliseconds in which the host works and does not wait for the GPU, profiling included, and launches it makes."""
    host = [event for event in events if event.device_type == torch.autograd.DeviceType.CPU]
    busy_us = sum(event.self_cpu_time_total for event in host if "Synchronize" not in event.name)
    return busy_us / 1000, sum(
        event.name.startswith(("cudaLaunch", "cuLaunch", "cudaGraphLaunch")) for event in host
    )


def part_of(event: FunctionEvent) -> str | None:
    """The part that an event starts: one of `scoped`, or one labelled by PyTorch."""
    if event.name.startswith("Optimizer."):
        return "optimizer"
    return event.name.removeprefix("part ") if event.name.startswith("part ") else None


def is_backward(event: FunctionEvent) -> bool:
    """True for the autograd engine's call of a backward operator."""
    return event.name.startswith("autograd::engine::evaluate_function")


def profiled(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each part of a step, in each shape."""
    on_gpu = args.device == "cuda"
    for label, shape in asked_for(args, TRAINING, compile=args.compile).items():
        work = (
            original.train(shape, args.original, mark_original)
            if args.original
            else our_steps(shape)
        )
        events = events_of(work, args.steps, on_gpu=on_gpu)
        if on_gpu:
            host_ms, n_launch = of_host(events)
            print(
                f"{label}: the host takes {host_ms / args.steps:.1f} ms a step, {n_launch / args.steps:.0f} launches"
            )
        for row in told(label, milliseconds(events, on_gpu=on_gpu), args.steps):
            yield {
                "program": "kimiyoung/transformer-xl" if args.original else "txl",
                "shape": label,
            } | row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_shape_flags(parser, TRAINING, "small")
    parser.add_argument("--steps", type=int, default=3, help="that are looked at [3]")
    parser.add_argument("--compile", action="store_true", help="as train.py --compile")
    parser.add_argument(
        "--original", metavar="FOLDER", help="profile this checkout of kimiyoung/transformer-xl"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    args = parser.parse_args()
    say_machine()
    about = {"compile": args.compile, "device": args.device, "dtype": args.dtype}
    write_as_found(args.json, profiled(args), **about)


def told(title: str, found: dict[str, Counter[str]], steps: int) -> list[dict[str, Any]]:
    """Milliseconds of a step by part; also printed."""
    total = sum(times.total() for times in found.values())
    print(f"{title}: {total / steps:.1f} ms a step")
    rows = []
    for part, times in sorted(found.items(), key=lambda item: -item[1].total()):
        top = ", ".join(
            f"{name} {100 * ms / total:.1f}"
            for name, ms in times.most_common(4)
            if ms > total / 500
        )
        print(
            f"  {part:14} {times.total() / steps:9.2f} ms {100 * times.total() / total:5.1f} %  {top}",
            flush=True,
        )
        operators = {name: ms / steps for name, ms in times.most_common(20)}
        rows.append({"part": part, "ms": times.total() / steps, "operators": operators})
    return rows


if __name__ == "__main__":
    main()
