"""The continuous cache against the paper's formula, written as the plainest loop."""

import math

import pytest
import torch
from torch import Tensor

from tests.laws.conftest import N_TOKEN, build
from txl import Context, TransformerXL
from txl.evaluation.config import CacheConfig
from txl.evaluation.test_time import ContinuousCache, Mixture
from txl.inference.frozen import Frozen

CONFIG = CacheConfig(cache_size=9, cache_theta=0.05, cache_lambda=0.3)
CONTEXT = Context(tgt_len=4, mem_len=6)


def text(batch_size: int = 1) -> Tensor:
    """Few words, so that they come again."""
    return torch.randint(0, 7, (batch_size, 31), generator=torch.Generator().manual_seed(5))


def nats(
    model: TransformerXL, config: CacheConfig, text_BL: Tensor, context: Context = CONTEXT
) -> Tensor:
    """Nats of every token but the first, (B, L - 1)."""
    predictor = Mixture(Frozen(model), [ContinuousCache(model, config)])
    memory, parts = predictor.fresh_memory(len(text_BL)), []
    with torch.no_grad():
        for begin in range(0, text_BL.shape[1] - 1, context.tgt_len):
            piece_BT = text_BL[:, begin : begin + context.tgt_len + 1]
            read_BT = text_BL[:, max(0, begin - context.ext_len) : begin + piece_BT.shape[1] - 1]
            nll_BT, memory = predictor.nll(read_BT, piece_BT[:, 1:], memory, context)
            parts.append(nll_BT)
    return torch.cat(parts, dim=1)


def distributions_by_hand(
    model: TransformerXL, config: CacheConfig, text_L: Tensor
) -> list[dict[int, float]]:
    """p(w) after each token but the last, for all words; Grave et al. 2017, sec. 3, one pair at a time."""
    hidden, logprobs, memory = [], [], None
    with torch.no_grad():
        for begin in range(0, len(text_L) - 1, CONTEXT.tgt_len):
            end = min(begin + CONTEXT.tgt_len, len(text_L) - 1)
            out_BTD, memory = model(text_L[None, begin:end], memory, CONTEXT)
            hidden += list(out_BTD[0])
            logprobs += list(model.log_prob(out_BTD[0]))
    out = []
    for t, (h, logprob) in enumerate(zip(hidden, logprobs, strict=True)):
        mass = dict.fromkeys(range(N_TOKEN), 0.0)
        for i in range(max(0, t - config.cache_size), t):
            mass[int(text_L[i + 1])] += math.exp(config.cache_theta * float(h @ hidden[i]))
        total, share = sum(mass.values()), config.cache_lambda if t else 0.0
        out.append(
            {
                w: (1 - share) * math.exp(logprob[w]) + (share * m / total if t else 0)
                for w, m in mass.items()
            }
        )
    return out


@pytest.mark.parametrize(
    ("shape", "size"), [("plain", 1), ("adaptive", 3), ("plain", 9), ("adaptive", 1000)]
)
def test_nats_are_the_formula(shape: str, size: int) -> None:
    model, text_BL = build(shape), text()
    config = CacheConfig(
        cache_size=size, cache_theta=CONFIG.cache_theta, cache_lambda=CONFIG.cache_lambda
    )
    expected = distributions_by_hand(model, config, text_BL[0])
    assert all(sum(p.values()) == pytest.approx(1, rel=1e-12) for p in expected)
    expected_L = torch.tensor(
        [-math.log(p[int(w)]) for p, w in zip(expected, text_BL[0, 1:], strict=True)]
    )
    torch.testing.assert_close(
        nats(model, config, text_BL)[0], expected_L.double(), rtol=1e-6, atol=0
    )


def test_tokens_that_are_read_again_are_kept_once() -> None:
    model, text_BL = build("pre_lnorm_adaptive", n_layer=2), text()
    context = Context(tgt_len=4, mem_len=0, ext_len=100)
    whole = nats(model, CONFIG, text_BL, Context(tgt_len=100, mem_len=0))
    torch.testing.assert_close(nats(model, CONFIG, text_BL, context), whole)
