"""Checks and messages at the beginning and the end of a run."""

import math
import shutil
from pathlib import Path

import torch

from txl.config import Context, require
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks
from txl.runtime.log import perplexity, print_error, print_line
from txl.training.config import TrainConfig
from txl.training.estimate import flops_per_token, layer_parameters, remembered
from txl.training.learning import learning_parameters
from txl.training.loop import Outcome


def require_disk(
    folder: Path, config: TrainConfig, needed: dict[str, int], n_step: int, ranks: Ranks
) -> None:
    """Raise `UsageError` on all ranks if the disk is too small for the checkpoints.

    Args:
        needed: see `training_bytes`.
        n_step: updates left.
    """
    state = needed["weights"] + needed["optimizer"] + needed.get("average", 0)
    one = state * (ranks.world if config.shard else 1) + needed["memory"] // 2 * ranks.world
    interval = min(config.eval_interval, config.save_interval or config.eval_interval)
    # with the best one and the one being written; one more may be written after a minute
    n = min(config.keep_last + 2, -(-n_step // interval) + (n_step > 1))

    def check() -> None:
        held = 0
        for path in folder.glob("step_*/*"):
            if not path.parent.is_symlink():
                held += path.stat().st_size
        free = shutil.disk_usage(folder).free
        require(
            n * one <= free + held,
            f"--work_dir {folder}: {n} checkpoint(s) of {one / 2**30:.2f} GiB do not fit on its"
            f" disk, where {free / 2**30:.2f} GiB are free; make room, name a folder on another"
            " disk, or lower --keep_last",
        )

    ranks.by_main(check)


def require_shares(config: TrainConfig, ranks: Ranks) -> None:
    """Raise `UsageError` unless the streams divide evenly into processes and chunks."""
    parts = ranks.world * config.batch_chunk
    streams = config.batch_size
    fit = worlds_that_fit(config, ranks.world)
    if fit:
        others = f"; processes can be {fit}"
    else:
        others = ""
    require(
        streams >= ranks.world,
        f"--batch_size {streams}: fewer streams than the {ranks.world} processes; give at least"
        f" {ranks.world}{others}",
    )
    near = sorted({max(parts, streams // parts * parts), -(-streams // parts) * parts})
    require(
        streams % parts == 0,
        f"--batch_size {streams}: does not divide into {ranks.world} processes times --batch_chunk "
        f"{config.batch_chunk}; nearest: {' or '.join(map(str, near))}{others}",
    )


def worlds_that_fit(config: TrainConfig, near: int) -> str:
    """Numbers of processes that the streams divide into, the five nearest to `near`, in words;
    empty: none.
    """
    each, rest = divmod(config.batch_size, config.batch_chunk)
    if rest:
        small = []
    else:
        small = [n for n in range(1, math.isqrt(each) + 1) if each % n == 0]
    fit = {*small, *(each // n for n in small)}
    return ", ".join(map(str, sorted(sorted(fit, key=lambda n: abs(n - near))[:5])))


def conclude(outcome: Outcome, config: TrainConfig, run_folder: Path, ranks: Ranks) -> int:
    """Print how the training ended; returns the exit status."""
    if not ranks.is_main:
        return outcome.status
    if outcome.reason:
        print_error(outcome.reason)
        return outcome.status
    best = perplexity(outcome.best_nats)
    print_line(
        f"| End of training | best valid ppl {best:9.3f} | {outcome.tok_per_s:.0f} tok/s |"
        f" checkpoints in {run_folder}"
    )
    missed = []
    if config.target_perplexity is not None and not best <= config.target_perplexity:
        missed.append(
            f"valid perplexity {best:.3f} is above --target_perplexity {config.target_perplexity}"
        )
    if config.target_throughput is not None and 0 < outcome.tok_per_s < config.target_throughput:
        missed.append(
            f"{outcome.tok_per_s:.0f} tokens/s are below --target_throughput"
            f" {config.target_throughput}"
        )
    for line in missed:
        print_line(f"| missed: {line}")
    if missed:
        return 1
    return 0


def sizes(model: TransformerXL, context: Context) -> dict[str, float]:
    """For metrics.jsonl: the sizes of the model and of the memory of a stream, and the operations
    of forward and backward pass per trained token.
    """
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "parameters_in_layers": sum(p.numel() for p in layer_parameters(model)),
        "remembered_floats": sum(x.numel() for x in remembered(model.config, context, 1)),
        "flops_per_token": flops_per_token(model, context),
    }


def describe(model: TransformerXL, ranks: Ranks, n_segment: int, unit: str) -> str:
    """The model, the devices and the data, whose tokens are `unit`, in one line."""
    n_all = sum(p.numel() for p in model.parameters())
    n_layers = sum(p.numel() for p in layer_parameters(model))
    n_learning = sum(p.numel() for p in learning_parameters(model).values())
    if n_learning == n_all:
        learning = ""
    else:
        learning = f", of which {n_learning:,} learn,"
    return (
        f"| {n_all:,} parameters ({n_layers:,} in the layers){learning} on {ranks.world} x"
        f" {device_name(ranks.device)} | {model.config.n_token:,} {unit} | cutoffs"
        f" {list(model.config.cutoffs)} | {n_segment:,} segments per epoch"
    )


def describe_bytes(needed: dict[str, int]) -> str:
    """The memory estimate, in one line."""
    parts = ", ".join(f"{name} {n / 2**30:.2f}" for name, n in needed.items())
    return f"| about {sum(needed.values()) / 2**30:.2f} GiB per process: {parts}"


def device_name(device: torch.device) -> str:
    """The name of a GPU, or cpu."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "cpu"
