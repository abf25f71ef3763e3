"""Test-time methods as the programs prepare them: by flags, from the training text, for several streams."""

import numpy as np
import pytest
import torch

from tests.laws.conftest import build
from txl import Context, TransformerXL
from txl.data_utils.segments import scoring_stream
from txl.evaluation.config import CacheConfig, DynamicConfig, EvalConfig
from txl.evaluation.score import evaluate
from txl.evaluation.test_time import (
    Additions,
    DynamicEvaluation,
    TrainingText,
    gradient_statistics,
    prepared,
)
from txl.runs import scoring
from txl.runtime.distributed import Ranks

CONTEXT = Context(tgt_len=4, mem_len=6)
LONE = Ranks(0, 1, torch.device("cpu"))
TRAIN, IDS = np.random.default_rng(1).integers(0, 8, (2, 61))
TEXT = TrainingText(TRAIN, scoring_stream)


@pytest.fixture(scope="module")
def model() -> TransformerXL:
    torch.manual_seed(0)
    return build("pre_lnorm_adaptive", n_layer=2)


def test_with_a_cache_nats_do_not_depend_on_the_batch_size(model: TransformerXL) -> None:
    """Streams warm it up on the text before them."""
    additions = Additions(cache=CacheConfig(cache_size=9, cache_theta=0.05, cache_lambda=0.3))
    split, rows = scoring.Split("test", IDS, {}, lambda: np.array([0])), []
    for n in (1, 3):
        predictor = prepared(additions, model, None, CONTEXT, batch_size=n, ranks=LONE)
        config = EvalConfig(batch_size=n)
        adapted = scoring.Adapted(
            additions.name, lambda *_, cache=predictor: cache, additions.warmup_segments
        )
        rows.append(scoring.score(model, split, CONTEXT, config, LONE, adapted=adapted))
    assert [row.added for row in rows] == ["cache", "cache"]
    assert rows[1].score.nats == pytest.approx(rows[0].score.nats, rel=1e-9)
    assert rows[0].score.nats != pytest.approx(
        scoring.score(model, split, CONTEXT, config, LONE).score.nats, rel=1e-3
    )


def test_gradients_are_averaged_over_as_many_segments_as_asked_for(model: TransformerXL) -> None:
    config = DynamicConfig(dynamic="rms", dynamic_segments=3)
    ours = prepared(Additions(dynamic=config), model, TEXT, CONTEXT, batch_size=2, ranks=LONE)
    square = gradient_statistics(
        model, scoring_stream(TRAIN[: 3 * 2 * 4 + 1], batch_size=2, tgt_len=4), CONTEXT
    )
    stream = scoring_stream(IDS, batch_size=2, tgt_len=4)
    found, expected = (
        evaluate(model, stream, CONTEXT, predictor=predictor).nats
        for predictor in (ours, DynamicEvaluation(model, config, square))
    )
    assert found == pytest.approx(expected, rel=1e-12)
