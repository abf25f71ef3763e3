"""Decoding: greedy, and beam search.

Call `model.eval()` first to switch dropout off. Shape letters as in `model.py`, and K hypotheses.
"""

from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from examples.seq2seq.model import BEGIN, END, PAD, Seq2Seq
from txl.config import require


def next_words(model: Seq2Seq, token_BT: Tensor, encoded_BSD: Tensor, source_BS: Tensor) -> Tensor:
    """Log-probabilities of the next word, (B, V); PAD and BEGIN are excluded."""
    logprob_BV = model.decode(token_BT, encoded_BSD, source_BS)[:, -1]
    return logprob_BV.index_fill(
        -1, torch.tensor([PAD, BEGIN], device=logprob_BV.device), -torch.inf
    )


@torch.no_grad()
def greedy(model: Seq2Seq, source_BS: Tensor, *, max_len: int) -> Tensor:
    """The most likely word at each step, up to END; (B, at most max_len), padded with PAD, on the model's device."""
    encoded_BSD = model.encode(source_BS)
    token_BT = torch.full((len(source_BS), 1), BEGIN, device=encoded_BSD.device)
    is_over_B = torch.zeros(len(source_BS), dtype=torch.bool, device=encoded_BSD.device)
    for _ in range(max_len):
        next_B = (
            next_words(model, token_BT, encoded_BSD, source_BS)
            .argmax(-1)
            .masked_fill(is_over_B, PAD)
        )
        token_BT = torch.cat([token_BT, next_B[:, None]], dim=1)
        is_over_B = is_over_B | (next_B == END)
        if is_over_B.all():
            break
    return token_BT[:, 1:]


def length_penalty(length: Any, alpha: float) -> Any:
    """((5 + length) / 6)^alpha, by which log-probabilities are divided (Wu et al. 2016, eq. 14)."""
    return ((5 + length) / 6) ** alpha


@torch.no_grad()
def beam_search(
    model: Seq2Seq, source_BS: Tensor, *, max_len: int, width: int = 4, alpha: float = 0.6
) -> tuple[Tensor, Tensor]:
    """The best sentence found with `width` hypotheses; defaults from Vaswani et al. 2017, sec. 6.1.

    Finished hypotheses stay in the beam; the search ends when all are finished.

    Returns:
        Tokens (B, at most max_len), including END, padded with PAD; and log-probabilities over the length penalty, (B).
        END counts for the length. Unfinished sentences at `max_len` are ranked as they are. Both are on the
        model's device.

    Raises:
        UsageError: if width < 1.
    """
    require(width >= 1, f"width {width}: must be at least 1 (greedy search)")
    B, K = len(source_BS), width
    encoded = model.encode(source_BS).repeat_interleave(K, dim=0)
    device = encoded.device
    source = source_BS.repeat_interleave(K, dim=0)
    token_BKT = torch.full((B, K, 1), BEGIN, device=device)
    logprob_BK = encoded.new_full((B, K), -torch.inf)
    logprob_BK[:, 0] = 0  # all hypotheses are equal at first: keep one
    length_BK = torch.zeros_like(logprob_BK)  # as whole numbers they would be divided in float32
    is_over_BK = torch.zeros(B, K, dtype=torch.bool, device=device)
    for _ in range(max_len):
        step_BKV = next_words(model, rearrange(token_BKT, "b k t -> (b k) t"), encoded, source)
        step_BKV = rearrange(step_BKV, "(b k) v -> b k v", k=K)
        V = step_BKV.shape[-1]
        waits_V = step_BKV.new_full((V,), -torch.inf)
        waits_V[PAD] = 0
        step_BKV = torch.where(is_over_BK[..., None], waits_V, step_BKV)
        length_BK = length_BK + ~is_over_BK
        total_BKV = logprob_BK[..., None] + step_BKV
        score_BKV = total_BKV / length_penalty(length_BK, alpha)[..., None]
        best_BK = rearrange(score_BKV, "b k v -> b (k v)").topk(K, dim=-1).indices
        parent_BK, word_BK = best_BK // V, best_BK % V
        logprob_BK = rearrange(total_BKV, "b k v -> b (k v)").gather(1, best_BK)
        length_BK = length_BK.gather(1, parent_BK)
        token_BKT = token_BKT.gather(1, parent_BK[..., None].expand_as(token_BKT))
        token_BKT = torch.cat([token_BKT, word_BK[..., None]], dim=-1)
        is_over_BK = is_over_BK.gather(1, parent_BK) | (word_BK == END)
        if is_over_BK.all():
            break
    score_BK = logprob_BK / length_penalty(length_BK, alpha)
    best_B = score_BK.argmax(-1)
    return token_BKT[torch.arange(B, device=device), best_B, 1:], score_BK.gather(
        1, best_B[:, None]
    ).squeeze(1)
