"""A run's folder: how a run begins in it, goes on in it, and ends."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from txl.checkpoint import Checkpoint, has_checkpoint, last_checkpoint, remove_checkpoints
from txl.config import TrainConfig, UsageError, require
from txl.distributed import Ranks
from txl.log import CURVES, RECORDS, complain, perplexity, say
from txl.model import TransformerXL
from txl.training import Outcome

FREE_WHEN_RESUMING = {
    *("work_dir", "resume", "overwrite", "max_step", "max_hours", "log_interval", "eval_interval", "save_interval"),
    *("keep_last", "max_eval_steps", "on_nonfinite", "max_nonfinite", "target_perplexity", "target_throughput"),
    *("timeout_s", "swap_mem", "recompute", "compile", "local_batch_size", "data", "cache_dir"),
}


def restarted_by_torchrun() -> bool:
    """True in the processes that torchrun has started again after others were lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def open_run(folder: Path, config: TrainConfig) -> None:
    """Make the run's folder where it is missing; it must be writable, and hold no other run that is not to be lost.

    What is to be lost is removed by `begin_anew`, when nothing can go wrong with the new run any more.
    """
    if has_checkpoint(folder) and not config.resume and not restarted_by_torchrun():
        require(
            config.overwrite,
            f"--work_dir {folder}: holds the checkpoints of a run already; go on with --resume, name another folder, "
            f"or add --overwrite to lose them",
        )
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".writable.{os.getpid()}"
    probe.write_bytes(b"")
    probe.unlink()


def begin_anew(folder: Path, ranks: Ranks) -> None:
    """Forget the run that was in the folder."""
    if ranks.is_main:
        remove_checkpoints(folder)
        (folder / RECORDS).unlink(missing_ok=True)
        shutil.rmtree(folder / CURVES, ignore_errors=True)
    ranks.barrier()


def checkpoint_to_resume(folder: Path, typed: dict[str, Any]) -> Checkpoint | None:
    """The last checkpoint if the run is to go on, None if it is new.

    A restart by torchrun goes on, whatever was typed.

    Raises:
        UsageError: if a typed flag contradicts the checkpoint.
    """
    restarted = restarted_by_torchrun()
    if restarted:
        typed.pop("overwrite", None)
    if not (restarted or typed.get("resume")) or not has_checkpoint(folder):
        return None
    checkpoint = last_checkpoint(folder)
    record = checkpoint.record
    was = {**record["data"], **record["train"], **record["context"], **record["model"]}
    for name, asked in typed.items():
        asked = list(asked) if isinstance(asked, tuple) else asked
        if name not in FREE_WHEN_RESUMING and name in was and was[name] != asked:
            raise UsageError(
                f"--{name} {asked}: the run in {folder} was started with {was[name]}; drop the flag, or start a new "
                f"run in another --work_dir"
            )
    return checkpoint


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
    if outcome.reason:
        complain(outcome.reason)
        return outcome.status
    best = perplexity(outcome.best_nats)
    say(f"| End of training | best valid ppl {best:9.3f} | {outcome.tok_per_s:.0f} tok/s | checkpoints in {run_folder}")
    missed = []
    if config.target_perplexity is not None and not best <= config.target_perplexity:
        missed.append(f"valid perplexity {best:.3f} is above --target_perplexity {config.target_perplexity}")
    if config.target_throughput is not None and outcome.tok_per_s < config.target_throughput:
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
