"""Runs compared by --recl: checks that they are comparable, and the losses of each."""

import functools
from collections.abc import Collection, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch

from txl.checkpoint import Checkpoint, open_checkpoint
from txl.config import Context, UsageError, require
from txl.evaluation.config import CacheConfig, DynamicConfig, EvalConfig, KnnConfig, StudyConfig
from txl.evaluation.reading import ScoredRows
from txl.evaluation.score import require_finite
from txl.evaluation.study.recl import losses_by_context
from txl.model.autocast import require_in_range
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks
from txl.runtime.log import progress, ticking


def comparable(typed: Collection[str], config: EvalConfig, study: StudyConfig) -> list[Checkpoint]:
    """The runs of --recl.

    Args:
        typed: the flags on the command line.
    Raises:
        UsageError: if they cannot be compared, or a flag does not go with --recl.
    """
    _require_nothing_else(typed, config)
    try:
        checkpoints = [open_checkpoint(Path(run)) for run in study.recl]
    except UsageError as error:
        raise UsageError(str(error).replace("--work_dir", "--recl")) from None
    first, *others = checkpoints
    for other in others:
        require(
            other.attachment("vocab.txt") == first.attachment("vocab.txt"),
            f"--recl {other.folder}: its vocabulary is not that of {first.folder}; losses of the same tokens are "
            f"compared, so leave out one of the two",
        )
    return checkpoints


def _require_nothing_else(typed: Collection[str], config: EvalConfig) -> None:
    require("work_dir" not in typed, "--work_dir and --recl: the runs are those of --recl; drop --work_dir")
    require(config.split != "all", "--recl: is measured on one split; give --split valid or --split test")
    additions = [f.name for cls in (DynamicConfig, CacheConfig, KnnConfig) for f in fields(cls)]
    for name in ("convention", "reset", "text", "loss_by_position", "attention_by_distance", *additions):
        require(name not in typed, f"--{name} and --recl do not go together; drop one of them")
    for name in ("tgt_len", "mem_len"):
        lengths = " ".join(map(str, getattr(config, name)))
        require(
            len(getattr(config, name)) < 2,
            f"--{name} {lengths}: --recl tries contexts of its own lengths; give one value at most",
        )


def require_long_enough(n_token: int, config: EvalConfig, study: StudyConfig) -> None:
    """Raise `UsageError` if the split is too short for the longest context."""
    longest = study.context_lengths[-1]
    require(
        n_token > longest,
        f"--recl_longest {study.recl_longest}: no token of the {config.split} split ({n_token} tokens) has {longest} "
        f"before it; use at most {n_token - 1}, or a longer text",
    )


def losses_of(
    name: str,
    model: TransformerXL,
    windows: Sequence[ScoredRows],
    context: Context,
    study: StudyConfig,
    ranks: Ranks,
    *,
    n_token: int,
) -> np.ndarray:
    """Nats of one run by context length and position, see `losses_by_context`; windows are distributed over processes.

    Args:
        windows: those of this process; all together cover every position.
    Raises:
        UsageError: on all processes, if one of them has a loss that is not finite.
    """
    with progress(name, sum(map(len, windows)), shown=ranks.is_main) as bar:
        nats_CP = losses_by_context(
            model,
            ((stream.first_B, ticking(stream, bar)) for stream in windows),
            context,
            lengths=study.context_lengths,
            every=study.recl_every,
            n_token=n_token,
        )
    nats_CP = functools.reduce(np.fmax, ranks.gathered(nats_CP))  # positions of other processes are NaN
    require_in_range(torch.from_numpy(nats_CP), ranks.device)  # after `gathered`, or other processes would hang
    require_finite(float(nats_CP.sum(dtype=np.float64)), name)
    return nats_CP
