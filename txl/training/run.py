"""A run's folder: how a run begins in it, goes on in it, and ends."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from txl.checkpoint import (
    Checkpoint,
    has_checkpoint,
    last_checkpoint,
    open_checkpoint,
    point_at_best,
    remove_checkpoints,
)
from txl.config import TrainConfig, UsageError, require
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks
from txl.runtime.log import complain, perplexity, say
from txl.training.loop import Outcome
from txl.training.metrics import CURVES, RECORDS
from txl.training.step import NonFiniteError

FREE_WHEN_RESUMING = {
    *("work_dir", "resume", "overwrite", "max_step", "max_hours", "log_interval", "eval_interval", "save_interval"),
    *("keep_last", "max_eval_steps", "on_nonfinite", "max_nonfinite", "target_perplexity", "target_throughput"),
    *(
        "timeout_s",
        "swap_mem",
        "recompute",
        "ff_chunk",
        "compile",
        "attn_impl",
        "device",
        "eval_test",
        "sample_length",
        "local_batch_size",
        "data",
        "cache_dir",
    ),
}


ACCEPTED = ".accepted"
"""Lies in the run's folder while a launch that was accepted is at work, so that torchrun may start it again."""


def open_run(folder: Path, typed: dict[str, Any], ranks: Ranks) -> Checkpoint | None:
    """Make the run's folder, and decide: the checkpoint to go on from, or None for a new run. Rank 0 decides for all.

    With --resume, and when torchrun starts lost processes again, the run goes on from its last checkpoint. What
    --overwrite is to lose is removed by `begin_anew`, when nothing can go wrong with the new run any more.

    Raises:
        UsageError: if the folder holds another run, or a typed flag contradicts the checkpoint.
        OSError: if the folder cannot be written to.
    """
    restarted = any(ranks.gathered(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0))
    found = None
    if ranks.is_main:
        try:
            found = _decide(folder, typed, restarted=restarted)
        except UsageError as error:
            found = error
    found = ranks.gathered(found)[0]
    if isinstance(found, UsageError):
        raise found
    _require_shared(folder, ranks)
    return None if found is None else open_checkpoint(Path(found))


def _decide(folder: Path, typed: dict[str, Any], *, restarted: bool) -> str | None:
    folder.mkdir(parents=True, exist_ok=True)
    accepted = folder / ACCEPTED
    restarted = restarted and accepted.exists()
    accepted.unlink(missing_ok=True)
    found = None
    if has_checkpoint(folder) and (restarted or typed.get("resume")):
        checkpoint = last_checkpoint(folder)
        _require_agreement(checkpoint, folder, typed)
        point_at_best(folder)
        found = str(checkpoint.folder)
    elif has_checkpoint(folder):
        require(
            bool(typed.get("overwrite")),
            f"--work_dir {folder}: holds the checkpoints of a run already; go on with --resume, name another folder, "
            f"or add --overwrite to lose them",
        )
    accepted.touch()
    return found


def _require_agreement(checkpoint: Checkpoint, folder: Path, typed: dict[str, Any]) -> None:
    record = checkpoint.record
    was = {**record["data"], **record["train"], **record["context"], **record["model"]}
    for name, asked in typed.items():
        asked = list(asked) if isinstance(asked, tuple) else asked
        if name == "d_embed" and asked < 0:
            asked = was["d_model"]
        if name not in FREE_WHEN_RESUMING and name in was and was[name] != asked:
            raise UsageError(
                f"--{name} {asked}: the run in {folder} was started with {was[name]}; drop the flag, or start a new "
                f"run in another --work_dir"
            )


def _require_shared(folder: Path, ranks: Ranks) -> None:
    seen = ranks.gathered((folder / ACCEPTED).exists())
    require(
        all(seen),
        f"--work_dir {folder}: rank {seen.index(False) if False in seen else 0} does not see it; all hosts need the "
        f"same folder, on a disk they share",
    )


@contextmanager
def refusing(folder: Path, ranks: Ranks) -> Iterator[None]:
    """A launch that ends with an error of its own is not one that torchrun may start again."""
    try:
        yield
    except (ValueError, OSError, NonFiniteError, KeyboardInterrupt):
        if ranks.is_main:
            (folder / ACCEPTED).unlink(missing_ok=True)
        raise


def require_disk(folder: Path, config: TrainConfig, needed: dict[str, int], n_step: int, ranks: Ranks) -> None:
    """Raise `UsageError`, on all ranks, if the disk lacks room for the checkpoints.

    Args:
        needed: see `training_bytes`.
        n_step: updates that are still to be made.
    """
    one = needed["weights"] + needed["optimizer"] + needed.get("average", 0) + needed["memory"] // 2 * ranks.world
    interval = min(config.eval_interval, config.save_interval or config.eval_interval)
    n = min(config.keep_last + 2, -(-n_step // interval))  # the best one, and the one that is being written
    message = ""
    if ranks.is_main:
        held = sum(path.stat().st_size for path in folder.glob("step_*/*"))
        free = shutil.disk_usage(folder).free
        if n * one > free + held:
            message = (
                f"--work_dir {folder}: {n} checkpoint(s) of {one / 2**30:.2f} GiB do not fit on its disk, where "
                f"{free / 2**30:.2f} GiB are free; make room, name a folder on another disk, or lower --keep_last"
            )
    message = ranks.gathered(message)[0]
    require(not message, message)


def begin_anew(folder: Path, ranks: Ranks) -> None:
    """Forget the run that was in the folder."""
    if ranks.is_main:
        remove_checkpoints(folder)
        (folder / RECORDS).unlink(missing_ok=True)
        shutil.rmtree(folder / CURVES, ignore_errors=True)
    ranks.barrier()


def require_shares(config: TrainConfig, ranks: Ranks) -> None:
    """Raise `UsageError` unless the streams can be shared out evenly over processes and chunks."""
    parts, streams = ranks.world * config.batch_chunk, config.batch_size
    require(
        streams >= ranks.world,
        f"--batch_size {streams}: fewer streams than the {ranks.world} processes; give at least {ranks.world}",
    )
    near = sorted({max(parts, streams // parts * parts), -(-streams // parts) * parts})
    require(
        streams % parts == 0,
        f"--batch_size {streams}: does not divide into {ranks.world} processes times --batch_chunk "
        f"{config.batch_chunk}; nearest: {' or '.join(map(str, near))}",
    )


def conclude(outcome: Outcome, config: TrainConfig, run_folder: Path, ranks: Ranks) -> int:
    """Say how the training ended; the exit status."""
    if not ranks.is_main:
        return outcome.status
    (run_folder / ACCEPTED).unlink(missing_ok=True)
    if outcome.reason:
        complain(outcome.reason)
        return outcome.status
    best = perplexity(outcome.best_nats)
    say(f"| End of training | best valid ppl {best:9.3f} | {outcome.tok_per_s:.0f} tok/s | checkpoints in {run_folder}")
    missed = []
    if config.target_perplexity is not None and not best <= config.target_perplexity:
        missed.append(f"valid perplexity {best:.3f} is above --target_perplexity {config.target_perplexity}")
    if config.target_throughput is not None and 0 < outcome.tok_per_s < config.target_throughput:
        missed.append(f"{outcome.tok_per_s:.0f} tokens/s are below --target_throughput {config.target_throughput}")
    for line in missed:
        say(f"| missed: {line}")
    return 1 if missed else 0


def describe(model: TransformerXL, ranks: Ranks, n_segment: int) -> str:
    """What is about to be trained on what."""
    n_all = sum(p.numel() for p in model.parameters())
    n_layers = sum(p.numel() for p in model.layers.parameters())
    return (
        f"| {n_all:,} parameters ({n_layers:,} in the layers) on {ranks.world} x {device_name(ranks.device)} | "
        f"{model.config.n_token:,} words | cutoffs {list(model.config.cutoffs)} | {n_segment:,} segments per epoch"
    )


def describe_bytes(needed: dict[str, int]) -> str:
    """The estimate of memory, in one line."""
    parts = ", ".join(f"{name} {n / 2**30:.2f}" for name, n in needed.items())
    return f"| about {sum(needed.values()) / 2**30:.2f} GiB per process: {parts}"


def device_name(device: torch.device) -> str:
    """What the device calls itself."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
