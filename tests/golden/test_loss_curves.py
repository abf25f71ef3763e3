"""Ten trainings of fifty steps have the losses that they had: loss_curves.json, made and compared here.

    TXL_WRITE_CURVES=1 python -m pytest tests/golden/test_loss_curves.py

writes them anew, and people ask why each of them has changed.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.runs import ADAPTIVE, SHAPE, Run, config

FILE = Path(__file__).parent / "train" / "loss_curves.json"
REVERSIBLE = {"pre_lnorm": True, "reversible": True}
RULE = {"position": "rotary", "n_feature": 6, "lsh_round": 2, "lsh_bucket": 4, "lsh_reach": 3}
CURVES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # shape, training
    "2019": (ADAPTIVE, {"dropout": 0.1, "dropatt": 0.1}),
    "rotary, swiglu, adamw": (
        {"position": "rotary", "activation": "swiglu", "pre_lnorm": True},
        {"optim": "adamw", "weight_decay": 0.1, "beta2": 0.9},
    ),
    "t5, lamb, inv_sqrt": (
        {"position": "t5", "n_bucket": 8, "max_distance": 12},
        {"optim": "lamb", "scheduler": "inv_sqrt", "warmup_step": 5},
    ),
    "alibi, sgd, varlen, roll": (
        {"position": "alibi"},
        {"optim": "sgd", "mom": 0.5, "lr": 0.1, "varlen": True, "roll": True},
    ),
    "learned_per_layer, adagrad, dev_perf": (
        ADAPTIVE | {"position": "learned_per_layer", "n_position": 15},
        {"optim": "adagrad", "scheduler": "dev_perf", "eval_interval": 5},
    ),
    "performer": (RULE | {"attention": "performer"}, {"redraw_interval": 7, "batch_chunk": 2}),
    "lsh, reversible": (RULE | REVERSIBLE | {"attention": "lsh"}, {"dropout": 0.1, "ff_chunk": 2}),
    "what was returned is remembered": (
        {"recurrence": "same", "d_embed": 4},
        {"label_smoothing": 0.1, "ema": 0.9},
    ),
    "deberta, recomputed": (
        {"position": "deberta", "max_distance": 7},
        {"recompute": True, "dropatt": 0.2},
    ),
    "shaw, two tables, clipped": (
        {"position": "shaw", "max_distance": 7, "not_tied": True},
        {"clip": 0.05},
    ),
}


def losses(shape: dict[str, Any], settings: dict[str, Any]) -> list[float]:
    """Nats per token of each step, in float64 and from weights that numpy draws alike on every processor."""
    steps = {"max_step": 50, "max_step_scheduler": 50}
    run = Run(config(**steps | settings), dtype=torch.float64, shape=SHAPE | shape).begin()
    dice = np.random.default_rng(5)
    with torch.no_grad():
        for parameter in run.state.model.parameters():
            parameter.copy_(torch.from_numpy(dice.normal(0, 0.3, parameter.shape)))
    run.train()
    return [float(nll_BT.mean()) for nll_BT in run.losses]


@pytest.mark.slow
def test_losses_of_ten_sets_of_features_are_those_that_were_stored() -> None:
    found = {name: losses(*case) for name, case in CURVES.items()}
    if "TXL_WRITE_CURVES" in os.environ:
        lines = [
            f'"{name}": {json.dumps([float(f"{x:.8g}") for x in curve])}'
            for name, curve in found.items()
        ]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    stored = json.loads(FILE.read_text())
    assert stored.keys() == found.keys()
    for name, curve in found.items():
        assert curve == pytest.approx(stored[name], rel=1e-5), name
        assert np.mean(curve[-5:]) < np.mean(curve[:5]), name
