"""Checkpoints: one folder each, complete or not there."""

from txl.checkpoint.background import Background
from txl.checkpoint.folder import (
    OPTIMIZER,
    PROGRESS,
    WEIGHTS,
    checkpoints,
    damaged,
    is_checkpoint,
    remove_checkpoints,
    set_aside,
)
from txl.checkpoint.load import (
    checkpoint_of,
    load_model,
    load_snapshot,
    load_weights,
    model_with,
    newest_whole,
)
from txl.checkpoint.record import Checkpoint, last_checkpoint, open_checkpoint, point_at_best
from txl.checkpoint.save import CheckpointWriter, Snapshot
