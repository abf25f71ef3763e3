"""Reading in half precision gives nearly the numbers of float32, and does so by products in half precision."""

import numpy as np
import pytest
import torch
from torch import Tensor

from txl import Context, Memory, ModelConfig, TransformerXL
from txl.attention_rules import use_attention
from txl.config import UsageError
from txl.evaluation.score import evaluate, score_text
from txl.evaluation.test_time import Mixture
from txl.generation.sampling import generate
from txl.inference.cuda_graph import CudaGraphModel
from txl.inference.frozen import Frozen
from txl.inference.key_values import KeyValueMemory
from txl.model.autocast import autocast, dtype_for, require_in_range
from txl.positions import POSITION_ENCODINGS
from txl.training.config import TrainConfig
from txl.training.init import init_weights

SIZES = {
    "n_token": 50,
    "n_layer": 2,
    "n_head": 2,
    "d_head": 8,
    "d_model": 16,
    "d_inner": 32,
    "n_position": 20,
}
CONTEXT = Context(tgt_len=8, mem_len=10)
IDS = torch.from_numpy(np.random.default_rng(0).integers(0, 50, (3, 65)))
SEGMENTS = [(IDS[:, i : i + 8], IDS[:, i + 1 : i + 9], None) for i in range(0, 64, 8)]
HALVES = {"bfloat16": 2e-2, "float16": 2e-3}
"""Largest error of a mean loss in nats."""


def autocast_of(model: TransformerXL, name: str) -> torch.autocast:
    return autocast(model.device, dtype_for(model, name))


def model_of(**sizes: object) -> TransformerXL:
    torch.manual_seed(0)
    model = TransformerXL(ModelConfig(**(SIZES | sizes)))
    init_weights(model, TrainConfig(init_std=0.2))
    return model.eval()


MODELS: list[dict[str, object]] = [
    *({"position": name} for name in sorted(POSITION_ENCODINGS)),
    *({"impl": impl} for impl in ("naive", "dense")),
    {"cutoffs": (10,), "div_val": 2},
    {"cutoffs": (10, 30)},
    {"recurrence": "same"},
    {"attention": "performer", "position": "rotary"},
    {"attention": "lsh", "position": "rotary"},
    {"reversible": True, "pre_lnorm": True},
]


@pytest.mark.parametrize(("number", "sizes"), list(enumerate(MODELS)), ids=map(str, MODELS))
def test_the_loss_is_nearly_that_of_float32(number: int, sizes: dict[str, object]) -> None:
    impl = str(sizes.get("impl", "auto"))
    model = model_of(**{name: size for name, size in sizes.items() if name != "impl"})
    full = evaluate(model, SEGMENTS, CONTEXT).nats_per_token
    use_attention(model, impl)
    for dtype in HALVES if "impl" in sizes else [[*HALVES][number % 2]]:
        with autocast_of(model, dtype):
            half = evaluate(model, SEGMENTS, CONTEXT).nats_per_token
        assert 0 < abs(half - full) < HALVES[dtype]


def test_float32_changes_nothing_and_a_recording_gives_the_same_numbers() -> None:
    model = model_of(cutoffs=(10,))
    full = evaluate(model, SEGMENTS, CONTEXT)
    with autocast_of(model, "float32"):
        assert evaluate(model, SEGMENTS, CONTEXT) == full
    with autocast_of(model, "bfloat16"):
        recorded = evaluate(
            model, SEGMENTS, CONTEXT, predictor=CudaGraphModel(model, record=lambda work: work)
        )
        assert recorded == evaluate(model, SEGMENTS, CONTEXT)


@pytest.mark.parametrize(("recurrence", "kind"), [("below", KeyValueMemory), ("same", Memory)])
def test_keys_and_values_are_kept_in_half_precision_and_hidden_states_are_not(
    recurrence: str, kind: type
) -> None:
    model = model_of(recurrence=recurrence)
    reader = Frozen(model)
    memory = reader.fresh_memory(3)
    with autocast_of(model, "bfloat16"):
        for input_BT, *_ in SEGMENTS[:3]:
            hidden_BTD, memory = reader(input_BT, memory, CONTEXT)
    assert isinstance(memory, kind)
    kept = memory.layers[0].k_BNMH if isinstance(memory, KeyValueMemory) else memory.layers[0]
    assert kept.dtype == (torch.bfloat16 if kind is KeyValueMemory else torch.float32)
    assert hidden_BTD.dtype == torch.float32
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("cutoffs", [(), (10,)], ids=str)
def test_text_is_written_with_products_in_half_precision(cutoffs: tuple[int, ...]) -> None:
    """Words together have the probability 1."""
    model, seen = model_of(cutoffs=cutoffs), set()
    model.layers[0].attn.q_net.register_forward_hook(lambda _, __, out: seen.add(out.dtype))
    with autocast_of(model, "bfloat16"), torch.no_grad():
        assert len(list(generate(model, [1, 2], CONTEXT, length=30, top_p=0.9, seed=0))) == 30
        log_prob_BTV = model.log_prob(model(IDS[:, :8], None, CONTEXT).hidden_BTD)
    assert seen == {torch.bfloat16}
    assert log_prob_BTV.dtype == torch.float32
    torch.testing.assert_close(log_prob_BTV.exp().sum(-1), torch.ones(3, 8))


def test_weights_in_float64_are_refused() -> None:
    model = model_of().double()
    with pytest.raises(UsageError, match=r"--dtype bfloat16: the weights are in float64"):
        autocast_of(model, "bfloat16")
    with autocast_of(model, "float32"):
        assert score_text(model, IDS[0], CONTEXT).dtype == torch.float64


def test_what_is_beyond_float16_is_refused() -> None:
    model = model_of()
    with torch.no_grad():
        model.layers[1].attn.v_net.weight.fill_(1e5)
    list(generate(model, [1, 2], CONTEXT, length=3))
    for dtype in ("float32", "bfloat16"):  # which are not to blame
        with autocast_of(model, dtype):
            require_in_range(torch.tensor([0.0, torch.inf]), model.device)
    with (
        autocast_of(model, "float16"),
        pytest.raises(UsageError, match=r"--dtype float16: .* use bfloat16"),
    ):
        list(generate(model, [1, 2], CONTEXT, length=3))


class Watching:
    """A source of `Mixture` that says nothing, and notes the numbers that its products come in."""

    def __init__(self) -> None:
        self.seen: set[torch.dtype] = set()

    def fresh_state(self, batch_size: int) -> None: ...

    def mixed(
        self, nll_BT: Tensor, hidden_BTD: Tensor, target_BT: Tensor, state: None
    ) -> tuple[Tensor, None]:
        self.seen |= {nll_BT.dtype, (hidden_BTD @ hidden_BTD.mT).dtype}
        return nll_BT, None


def test_words_seen_before_are_found_in_float32() -> None:
    model, source = model_of(), Watching()
    with autocast_of(model, "bfloat16"):
        mixed = evaluate(model, SEGMENTS, CONTEXT, predictor=Mixture(Frozen(model), [source]))
        # losses of several segments come from other products
        assert mixed.nats == pytest.approx(evaluate(model, SEGMENTS, CONTEXT).nats, rel=1e-3)
    assert source.seen == {torch.float32}
