"""The architecture of a new model: the flags, and what follows from the text."""

from typing import Any

import numpy as np

from txl.cli import Typed
from txl.config import Context, ModelConfig, UsageError, build, require
from txl.convert.kimiyoung_arguments import CUTOFFS
from txl.data_utils.corpus import Corpus
from txl.memory import MEMORIES
from txl.model.cutoffs import best_cutoffs, products_per_token
from txl.runtime.distributed import Ranks
from txl.runtime.log import print_line

AUTO = "auto"
CUTOFF_SHARES = (0.075, 0.15, 0.75)  # WikiText-103's, for vocabularies of other sizes
_AT_A_TIME = 1 << 24


def shape_of_text(typed: Typed, corpus: Corpus, ranks: Ranks) -> ModelConfig:
    """The configuration of a new model for a text. --cutoffs auto asks for the cheapest ones for its frequencies."""
    asked, dataset = typed.get("cutoffs_" + AUTO), corpus.config.dataset
    if asked is None:
        return shape_of_model(typed, len(corpus.vocab), dataset)
    require(asked == (AUTO,), f"--cutoffs {' '.join(map(str, asked))}: give ranks, or auto alone")
    n_token, ids = len(corpus.vocab), corpus.split("train")
    plain = build(ModelConfig, typed, n_token=n_token)
    parts = (ids[i : i + _AT_A_TIME] for i in range(0, len(ids), _AT_A_TIME))
    counts_V = sum(np.bincount(part, minlength=n_token) for part in parts)
    assert isinstance(counts_V, np.ndarray)
    found = best_cutoffs(counts_V, plain)
    if ranks.is_main:
        chosen, whole = (products_per_token(counts_V, cutoffs, plain) for cutoffs in (found, ()))
        print_line(
            f"| --cutoffs auto: {' '.join(map(str, found)) or 'none'}: {chosen:,.0f} products per token in the "
            f"softmax, {whole:,.0f} without cutoffs"
        )
    return shape_of_model({**typed, "cutoffs": found, "adaptive": bool(found)}, n_token, dataset)


def shape_of_model(typed: Typed, n_token: int, dataset: str) -> ModelConfig:
    """The model's configuration, with what follows from the data set: words, cutoffs, tied projections."""
    context = build(Context, typed)
    n_before = MEMORIES[typed.get("memory", ModelConfig.memory)].length(context)
    n_position = context.tgt_len + context.ext_len + n_before
    decided: dict[str, Any] = {"n_token": n_token, "n_position": n_position}
    if typed.get("adaptive") and "cutoffs" not in typed:
        published = CUTOFFS.get(dataset, (n_token,))
        shares = tuple(int(share * n_token) for share in CUTOFF_SHARES)
        decided["cutoffs"] = published if published[-1] < n_token else shares
        if decided["cutoffs"] == shares and not 0 < shares[0] < shares[1] < shares[2] < n_token:
            raise UsageError(f"--adaptive: a vocabulary of {n_token} words is too small for clusters; drop the flag")
    n_cluster = len(typed.get("cutoffs", decided.get("cutoffs", ())))
    decided["tie_projs"] = (False,) + (dataset != "lm1b",) * n_cluster  # as published
    config = build(ModelConfig, typed, **decided)
    if 0 in config.cluster_widths:
        widths = " ".join(map(str, config.cluster_widths))
        raise UsageError(f"--div_val {config.div_val}: embeddings of the clusters get widths {widths}; raise --d_embed")
    return config
