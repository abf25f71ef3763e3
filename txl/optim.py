"""Optimizer and learning rate."""

import math
from collections.abc import Iterable

import torch
from torch import nn

from txl.config import TrainConfig


def build_optimizer(parameters: Iterable[nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    """Adam with PyTorch's defaults, as the original has it, in one fused pass over the weights."""
    return torch.optim.Adam(parameters, lr=config.lr, fused=True)


def learning_rate(update: int, config: TrainConfig) -> float:
    """The rate of an update, counted from 0; a pure function.

    Cosine from lr to eta_min: lr_k = eta_min + (lr - eta_min) (1 + cos(pi p)) / 2, p the share of the way.

    By the convention `txl` the rate rises linearly over the first warmup_step updates, the first one having
    lr / warmup_step, and the cosine covers the updates after them. By `original`, as in kimiyoung/transformer-xl, which
    sets the rate after each update: the first update has the full lr, update k < warmup_step has k lr / warmup_step,
    and the cosine covers all updates, so that it is entered with a jump.
    """
    warmup, lr = config.warmup_step, config.lr
    if config.warmup_convention == "original":
        if update < warmup:
            return lr * update / warmup if update else lr
        share = update / config.max_step
    else:
        if update < warmup:
            return lr * (update + 1) / warmup
        share = (update - warmup) / max(1, config.max_step - warmup)
    return config.eta_min + (lr - config.eta_min) * (1 + math.cos(math.pi * min(1.0, share))) / 2


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Use `lr` from the next update on."""
    for group in optimizer.param_groups:
        group["lr"] = lr
