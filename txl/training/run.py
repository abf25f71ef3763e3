"""What a run says at its beginning and at its end."""

from pathlib import Path

import torch

from txl.config import TrainConfig, require
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks
from txl.runtime.log import complain, perplexity, say
from txl.training.loop import Outcome


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
