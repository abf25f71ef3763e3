"""Preparation of test-time methods from the training text."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from txl.config import Context
from txl.evaluation.reading import Predictor, ScoredRows, warmup_segments, within
from txl.evaluation.test_time.additions import Additions
from txl.evaluation.test_time.cache import ContinuousCache
from txl.evaluation.test_time.dynamic import RMS, DynamicEvaluation, gradient_statistics
from txl.evaluation.test_time.knn import KnnConfig, NearestNeighbours
from txl.evaluation.test_time.mixture import Mixture, Source
from txl.evaluation.test_time.neighbour_store import Store, build_store, open_store
from txl.inference.frozen import Frozen
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks
from txl.runtime.log import progress, ticking


class TrainingText(NamedTuple):
    """The text that a model was trained on.

    Attributes:
        ids: token ids, (N,).
        names: fingerprints that identify the model and its text, JSON-ready.
        cut: makes a stream of ids that scores each token but the first once; takes batch_size,
            tgt_len, ext_len and n_warmup, the warm-up segments of each parallel row.
        context: of the training.
    """

    ids: np.ndarray
    names: dict[str, str]
    cut: Callable[..., ScoredRows]
    context: Context


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
        text: needed if `additions.read_training_text`.
        context: of the evaluation.
        batch_size: number of parallel streams.
    Raises:
        UsageError: if the store belongs to another model or text, or does not fit on the disk.
    """
    sources: list[Source] = []
    if additions.cache.is_on:
        sources.append(ContinuousCache(model, additions.cache))
    if text is not None and additions.knn.is_on:
        store = ranks.main_first(
            lambda: stored(additions.knn, model, text, batch_size=batch_size, shown=ranks.is_main)
        )
        sources.append(NearestNeighbours(store, additions.knn, device=model.device))
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


def stored(
    config: KnnConfig, model: TransformerXL, text: TrainingText, *, batch_size: int, shown: bool
) -> Store:
    """The store of the training text at the context of training, opened or built.

    Args:
        shown: whether this process shows the progress bar.
    Raises:
        UsageError: see `open_store` and `build_store`.
    """
    ids = text.ids[: None if config.knn_tokens is None else config.knn_tokens + 1]
    source = {**text.names, "number_of_tokens": len(ids) - 1}
    folder = Path(config.knn_store or "")
    seen = within(text.context, len(ids))
    if not folder.exists():
        n_warmup = warmup_segments(model.config.n_layer, seen)
        stream = text.cut(
            ids,
            batch_size=batch_size,
            tgt_len=seen.tgt_len,
            ext_len=seen.ext_len,
            n_warmup=n_warmup,
        )
        try:
            with progress(folder.name, len(stream), shown=shown) as bar:
                build_store(
                    folder, model, ticking(stream, bar), seen, n_pair=len(ids) - 1, source=source
                )
        except OSError as error:  # another program has made it meanwhile
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not folder.exists():
                raise
    return open_store(folder, source, model.config, n_pair=len(ids) - 1)
