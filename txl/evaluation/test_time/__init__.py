"""Test-time adaptation: predictors for `txl.evaluation.score.evaluate`, and which of them the flags
ask for.

    DynamicEvaluation   gradient steps on the evaluated text                   Krause et al. 2018, 2019
    ContinuousCache     recent words, retrieved by similar hidden states       Grave et al. 2017
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from txl.config import Context, require
from txl.evaluation.config import CacheConfig, DynamicConfig
from txl.evaluation.reading import Predictor, ScoredRows
from txl.evaluation.test_time.dynamic import (
    RMS,
    DynamicEvaluation,
    gradient_statistics,
)
from txl.evaluation.test_time.mixture import ContinuousCache, Mixture, Source
from txl.inference.frozen import Frozen
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks
from txl.runtime.log import progress, ticking


class Additions(NamedTuple):
    """Settings of all test-time methods, each a `MethodSettings`; each is off by default."""

    dynamic: DynamicConfig = DynamicConfig()
    cache: CacheConfig = CacheConfig()

    @property
    def name(self) -> str:
        """The active methods in words; empty if there are none."""
        return " + ".join(method.name for method in self if method.is_on)

    def check(self, dtype: str, world: int, convention: str = "txl") -> None:
        """Raise `UsageError` on combinations that do not work; `world`: number of processes."""
        require(
            not self.name or convention == "txl",
            f"--convention {convention}: reproduces figures of plain models; drop it, or the"
            f" test-time method: {self.name}",
        )
        for method in self:
            method.check(dtype, world)

    def warmup_segments(self, context: Context) -> int:
        """Warm-up segments needed in addition to those of the model."""
        return -(-max(method.n_warmup for method in self) // context.tgt_len)


class TrainingText(NamedTuple):
    """The text that a model was trained on.

    Attributes:
        ids: token ids, (N,).
        cut: makes a stream of ids that scores each token but the first once; takes batch_size,
            tgt_len, ext_len and n_warmup, the warm-up segments of each parallel row.
    """

    ids: np.ndarray
    cut: Callable[..., ScoredRows]


def prepared(
    additions: Additions,
    model: TransformerXL,
    text: TrainingText | None,
    context: Context,
    *,
    batch_size: int,
    ranks: Ranks,
) -> Predictor:
    """The model with its test-time methods, prepared from the training text where needed.

    Args:
        text: needed if `additions.dynamic.reads_training_text`.
        context: of the evaluation.
        batch_size: number of parallel streams.
    """
    sources: list[Source] = []
    if additions.cache.is_on:
        sources.append(ContinuousCache(model, additions.cache))
    dynamic = additions.dynamic
    if not dynamic.is_on:
        return Mixture(Frozen(model), sources)
    mean_square = None
    if text is not None and dynamic.reads_training_text:
        n_segment = dynamic.settings(RMS.Settings).dynamic_segments
        ids = text.ids[: n_segment * batch_size * context.tgt_len + 1]
        stream = text.cut(
            ids, batch_size=batch_size, tgt_len=context.tgt_len, ext_len=context.ext_len, n_warmup=0
        )
        with progress("gradients", len(stream), shown=ranks.is_main) as bar:
            mean_square = gradient_statistics(model, ticking(stream, bar), context)
    return Mixture(DynamicEvaluation(model, dynamic, mean_square), sources)
