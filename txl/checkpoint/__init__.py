"""Checkpoints: one folder each, complete or not there."""

from txl.checkpoint.folder import (
    OPTIMIZER,
    PROGRESS,
    WEIGHTS,
    all_checkpoints,
    checkpoints,
    damaged,
    is_checkpoint,
    remove_checkpoints,
    require_own_pointers,
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
from txl.checkpoint.save import Background, CheckpointWriter, Snapshot, save_tensors
