"""The loss of each token of a text, in its order, read in several streams."""

import numpy as np
import torch

from txl.config import Context
from txl.data_utils.segments import text_streams
from txl.evaluation.measures.token_losses import TokenLossWatch
from txl.evaluation.reading import warmup_segments, within
from txl.evaluation.score import evaluate
from txl.language.model import LanguageModel
from txl.memory import unbounded
from txl.runtime.distributed import Ranks


def losses_by_token(
    lm: LanguageModel,
    ids: np.ndarray,
    context: Context | None = None,
    *,
    borders: str = "cut",
    starts: np.ndarray | None = None,
    batch_size: int = 10,
) -> np.ndarray:
    """Nats (minus the log-likelihood) of each token of a text but the first, in its order,
    (len(ids) - 1,), as eval.py scores them. Where the memory looks back without limit, the text is
    read in one stream.

    Args:
        ids: of the text, such as `lm.corpus().split("test")`.
        context: how far it is looked back; None: as in the training.
        borders: cut, or aside: each token stands late in its segment, whatever the memory.
        starts: where documents begin, each of which is read with an empty memory; None: the text is
            read as one.
        batch_size: streams, on which the result does not depend.
    Raises:
        DataError: if there is no token to predict.
    """
    context = within(lm.model_config, context or lm.context, len(ids))
    is_aside = {"cut": False, "aside": True}[borders]
    if starts is None and unbounded(lm.model_config):
        batch_size = 1
    streams = text_streams(
        ids,
        starts=starts,
        is_aside=is_aside,
        n_warmup=warmup_segments(lm.model_config.n_layer, context),
        batch_size=batch_size,
        tgt_len=context.tgt_len,
        ext_len=context.ext_len,
    )
    watch = TokenLossWatch("", ids, asked=context)
    with lm.computing():
        for stream in streams:
            evaluate(lm.model, watch.segments(stream, stream.first_B), context, observe=watch.add)
    return watch.over(Ranks(0, 1, torch.device("cpu"))).nats_N[1:]
