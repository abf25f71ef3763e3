"""Small trainings."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.forks import LIMIT_S
from txl import Context, ModelConfig, TransformerXL
from txl.checkpoint import (
    Background,
    CheckpointWriter,
    last_checkpoint,
    load_model,
    load_snapshot,
    load_weights,
)
from txl.data_utils.segments import SegmentStream
from txl.evaluation.score import Score
from txl.runtime.distributed import Ranks, whole
from txl.training.config import TrainConfig
from txl.training.init import init_weights
from txl.training.learning import freeze
from txl.training.loop import Outcome, train
from txl.training.metrics import Metrics
from txl.training.sharding import model_in_shards, shard
from txl.training.step import TrainState

N_TOKEN = 40
ALONE = Ranks(0, 1, torch.device("cpu"))
SHAPE = {"n_token": N_TOKEN, "n_layer": 2, "n_head": 2, "d_head": 4, "d_model": 8, "d_inner": 12}
ADAPTIVE = {"cutoffs": (10, 30), "div_val": 2, "tie_projs": (False, True, True)}
CONTEXT = Context(tgt_len=6, mem_len=9)
# 4 streams of 25: 4 segments of 6 an epoch
IDS = np.random.default_rng(3).integers(0, N_TOKEN, 4 * 25)


@dataclass
class Run:
    """A training that can be stopped, saved, loaded and gone on with."""

    config: TrainConfig
    ranks: Ranks = ALONE
    dtype: torch.dtype = torch.float32
    ids: np.ndarray = field(default_factory=lambda: IDS)
    shape: dict[str, Any] = field(default_factory=lambda: SHAPE | ADAPTIVE)
    context: Context = CONTEXT
    folder: Path | None = None
    after_step: Callable[[], object] = lambda: None
    losses: list[Tensor] = field(default_factory=list)
    state: TrainState = field(init=False)

    def begin(self) -> "Run":
        """With weights drawn from the seed."""
        torch.manual_seed(self.config.seed)
        model = TransformerXL(
            ModelConfig(**self.shape), dropout=self.config.dropout, dropatt=self.config.dropatt
        )
        init_weights(model, self.config)
        model.to(self.dtype)
        freeze(model, self.config.train)
        if self.config.shard:
            shard(model, self.ranks)
        self.state = TrainState(model, self.config, self.context, self.ranks)
        torch.manual_seed(self.config.seed + self.ranks.rank)
        return self

    def resume(self) -> "Run":
        """From the last checkpoint in the folder."""
        checkpoint = last_checkpoint(self.folder)
        if self.config.shard:
            model = model_in_shards(checkpoint.model_config, self.config, self.ranks, self.dtype)
            load_weights(checkpoint, model)
        else:
            model = load_model(checkpoint, dropout=self.config.dropout, dropatt=self.config.dropatt)
            freeze(model, self.config.train)
        self.state = TrainState(model, self.config, self.context, self.ranks)
        self.state.restore(load_snapshot(checkpoint, self.columns, model))
        return self

    @property
    def columns(self) -> slice:
        return self.ranks.columns(self.config.batch_size)

    def train(self) -> Outcome:
        """To max_step, noting the nats of every step."""
        step = self.state.step

        def noted(*batch: Tensor) -> Tensor:
            nll_BT = step(*batch)
            self.losses.append(nll_BT)
            self.after_step()
            return nll_BT

        self.state.step = noted  # type: ignore[method-assign]
        stream = SegmentStream(
            self.ids,
            batch_size=self.config.batch_size,
            tgt_len=self.context.tgt_len,
            columns=self.columns,
            varlen=self.config.varlen,
            roll=self.config.roll,
            seed=self.config.seed,
        )
        background = Background() if self.config.async_save else None
        ranks = self.ranks.with_own_group(LIMIT_S) if background else self.ranks
        writer = {
            "columns": self.columns,
            "keep_last": self.config.keep_last,
            "background": background,
        }
        checkpoints = (
            CheckpointWriter(self.folder, self.context, ranks, **writer) if self.folder else None
        )
        return train(self.state, stream, self, checkpoints, Metrics(None))

    def trained(self) -> "Run":
        """The same, to max_step."""
        self.train()
        return self

    def score(self, *_: object) -> Score:
        """As `Validation.score`: losses that fall and rise, so that dev_perf has something to do."""
        return Score([3.0, 2.0, 2.5, 1.9, 2.4, 2.3, 2.2][self.state.progress.n_eval % 7], 1)

    def weights(self) -> dict[str, Tensor]:
        return {name: whole(p.detach()).clone() for name, p in self.state.model.named_parameters()}


def config(**settings: Any) -> TrainConfig:
    """Six updates of four streams, quiet."""
    given = {
        "batch_size": 4,
        "max_step": 6,
        "max_step_scheduler": 6,
        "lr": 0.01,
        "log_interval": 1000,
        "clip": 1.0,
    }
    return TrainConfig(**given | {"eval_interval": 1000, "seed": 7} | settings)


def same_weights(one: Run, other: Run) -> bool:
    """True if all weights are equal, bit by bit. In shards all ranks call it together."""
    theirs = other.weights()
    return all(torch.equal(weight, theirs[name]) for name, weight in one.weights().items())
