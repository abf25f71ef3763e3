"""Small models of txl.hf with random weights, one of each kind that their softmax and embedding have."""

from typing import Any

import torch
from torch import Tensor

SIZES: dict[str, Any] = {
    **{
        "vocab_size": 60,
        "d_model": 16,
        "n_head": 2,
        "d_head": 8,
        "d_inner": 24,
        "n_layer": 2,
        "mem_len": 6,
    },
    **{
        "cutoffs": [10, 30],
        "d_embed": 16,
        "div_val": 2,
        "init_std": 0.3,
        "proj_init_std": 0.3,
        "dropout": 0.0,
    },
}
KINDS: dict[str, dict[str, Any]] = {
    "narrower clusters": {},
    "one table": {"div_val": 1},
    "one table, projected": {"div_val": 1, "d_embed": 8, "pre_lnorm": True},
    "no clusters": {"div_val": 1, "cutoffs": [], "untie_r": False},
    "untied": {
        "tie_word_embeddings": False,
        "proj_share_all_but_first": False,
        "same_length": False,
    },
}


def build(
    cls: str = "TransfoXLLMHeadModel", kind: str = "narrower clusters", **settings: Any
) -> Any:
    """A model for evaluation, with the same weights at each call."""
    import txl.hf

    torch.manual_seed(3)
    config = txl.hf.TransfoXLConfig(**{**SIZES, **KINDS[kind], **settings})
    return getattr(txl.hf, cls)(config).eval()


def some_ids(n_row: int = 3, length: int = 8) -> Tensor:
    """(B, T), with words of every cluster."""
    return torch.randint(
        1, SIZES["vocab_size"], (n_row, length), generator=torch.Generator().manual_seed(1)
    )
