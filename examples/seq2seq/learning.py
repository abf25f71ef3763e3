"""Training of the Transformer of 2017: label smoothing, learning rate schedule, two toy tasks."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from examples.seq2seq.model import BEGIN, END, PAD, Seq2Seq
from txl.config import require

N_SPECIAL = 3


def smoothed_nats(logprob_BTV: Tensor, target_BT: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy with a smoothed target, in nats, averaged over all words but padding.

    The target distribution is 1 - smoothing on the correct word plus smoothing / V on every word (Szegedy et al. 2016,
    sec. 7; Vaswani et al. 2017, sec. 5.4 with 0.1). At 0 it is the negative log-likelihood.
    """
    right_BT = logprob_BTV.gather(-1, target_BT[..., None]).squeeze(-1)
    nats_BT = -(1 - smoothing) * right_BT - smoothing * logprob_BTV.mean(-1)
    is_word = target_BT != PAD
    return (nats_BT * is_word).sum() / is_word.sum()  # indexing by the mask would synchronise a GPU


def noam_rate(update: int, *, d_model: int, warmup_step: int, factor: float = 1.0) -> float:
    """factor d_model^(-1/2) min(n^(-1/2), n warmup_step^(-3/2)) of update n, counted from 1 (Vaswani et al., eq. 3)."""
    return factor * d_model**-0.5 * min(update**-0.5, update * warmup_step**-1.5)


def pairs(
    task: Literal["copy", "reverse"],
    *,
    n_word: int,
    batch_size: int,
    min_len: int,
    max_len: int,
    seed: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """An endless stream of random sources and targets, (B, S) and (B, T), ending in END and padded with PAD.

    Raises:
        UsageError: if there is no such task.
    """
    require(task in ("copy", "reverse"), f"task {task!r}: there are copy and reverse")
    dice = torch.Generator().manual_seed(seed)
    while True:
        words_BL = torch.randint(
            N_SPECIAL, N_SPECIAL + n_word, (batch_size, max_len), generator=dice
        )
        length_B1 = torch.randint(min_len, max_len + 1, (batch_size, 1), generator=dice)
        at_L = torch.arange(max_len)
        source_BL = words_BL.masked_fill(at_L >= length_B1, PAD)
        turned_BL = source_BL.gather(1, (length_B1 - 1 - at_L).clamp(min=0)).masked_fill(
            at_L >= length_B1, PAD
        )
        target_BL = turned_BL if task == "reverse" else source_BL
        yield _ended(source_BL, length_B1), _ended(target_BL, length_B1)


def _ended(token_BL: Tensor, length_B1: Tensor) -> Tensor:
    wider = torch.cat([token_BL, torch.full_like(token_BL[:, :1], PAD)], dim=1)
    return wider.scatter(1, length_B1, END)


def train(
    model: Seq2Seq,
    data: Iterator[tuple[Tensor, Tensor]],
    *,
    n_update: int,
    warmup_step: int,
    factor: float = 1.0,
    smoothing: float = 0.1,
) -> Iterator[float]:
    """Train by teacher forcing; yields the loss of each update, in nats.

    Args:
        data: sources (B, S) and targets (B, T) as from `pairs`, on any device; training stops when they end.
    """
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    model.train()
    device = next(model.parameters()).device
    for update, pair in zip(range(1, n_update + 1), data, strict=False):
        source_BS, target_BT = (x.to(device) for x in pair)
        begun_BT = torch.cat([torch.full_like(target_BT[:, :1], BEGIN), target_BT[:, :-1]], dim=1)
        loss = smoothed_nats(model(source_BS, begun_BT), target_BT, smoothing=smoothing)
        for group in optimizer.param_groups:
            group["lr"] = noam_rate(
                update, d_model=model.d_model, warmup_step=warmup_step, factor=factor
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield float(loss.detach())
