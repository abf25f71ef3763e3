"""A model whose weights are kept in 16 bits gives what a model with rounded weights does by products in 16 bits."""

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.laws.conftest import N_TOKEN, build, context_of, for_models
from tests.processors import operators
from txl import TransformerXL
from txl.inference import frozen
from txl.inference.frozen import Frozen
from txl.inference.words import WordProbabilities
from txl.model.autocast import autocast
from txl.ops import linear, packed
from txl.ops.packed import PackedLinear


def rounded(name: str, dtype: torch.dtype) -> TransformerXL:
    model = build(name).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * parameter.to(dtype))
            parameter.copy_(parameter.to(dtype))
    return model


@torch.no_grad()
def answers(model: TransformerXL, token_BT: Tensor, name: str, dtype: torch.dtype) -> list[Tensor]:
    """Losses with a memory of each kind, segment by segment, and the probabilities of the last word."""
    context, found = context_of(name), []
    with autocast(model.device, dtype):
        for reader, memory in ((model, None), (Frozen(model), Frozen(model).fresh_memory(2))):
            for segment_BT in token_BT.split(context.tgt_len, dim=1):
                nll_BT, memory = reader.nll(segment_BT, segment_BT, memory, context)
                found.append(nll_BT)
        for segment_B1 in token_BT.split(1, dim=1)[:2]:
            hidden_B1D, memory = Frozen(model)(segment_B1, memory, context)
        return [*found, WordProbabilities.of(model).all(hidden_B1D)]


@for_models()
def test_weights_kept_in_16_bits_give_what_rounded_weights_give(
    name: str, token_BT: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # parts of rounded tables are multiplied in 16 bits too
    monkeypatch.setattr(linear, "CAST_PAYS", 0)
    dtype = torch.float16 if len(name) % 2 else torch.bfloat16
    model = rounded(name, dtype)
    expected = answers(model, token_BT, name, dtype)
    n_byte = sum(p.nbytes for p in model.parameters())
    frozen.cast_weights(model, dtype)
    *losses, of_token_alone = zip(answers(model, token_BT, name, dtype), expected, strict=True)
    for one, other in losses:
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    # by `txl.inference.one_token`: rounded elsewhere
    torch.testing.assert_close(*of_token_alone, rtol=0, atol=0.1)
    assert sum(p.nbytes for p in model.parameters()) < n_byte
    assert not any(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("name", ["plain", "pre_lnorm_adaptive", "same", "compressive", "gated"])
def test_packed_weights_give_the_same_up_to_rounding(
    name: str, token_BT: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And they are the model's own weights: their number, their names and their copies are those of plain ones."""
    monkeypatch.setattr(frozen, "CAN_PACK", True)
    plain = rounded(name, torch.bfloat16)
    frozen.cast_weights(plain, torch.bfloat16)
    expected = answers(plain, token_BT, name, torch.bfloat16)
    for ordered, product in operators(torch.bfloat16):
        monkeypatch.setattr(packed, "ordered", ordered)
        monkeypatch.setattr(packed, "product", product)
        model = copy.deepcopy(plain)
        frozen.pack_weights(model)
        assert all(isinstance(layer.attn.v_net, PackedLinear) for layer in model.layers)
        for copied in (model, copy.deepcopy(model), copy.deepcopy(model).cpu()):
            losses = answers(copied, token_BT, name, torch.bfloat16)
            torch.testing.assert_close(losses, expected, rtol=0, atol=0.1)  # of losses of 4
            states = copied.state_dict(), plain.state_dict()
            assert [*states[0]] == [*states[1]]
            assert all(
                a.equal(b) for a, b in zip(*(state.values() for state in states), strict=True)
            )
            assert [p.shape for p in copied.parameters()] == [p.shape for p in plain.parameters()]


@pytest.mark.parametrize("shape", [(1,), (3, 1), (64,), (0,)], ids=str)
@pytest.mark.parametrize("is_biased", [True, False])
def test_a_packed_product_is_that_of_bfloat16(
    shape: tuple[int, ...], is_biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, x = torch.randn(41, 67).bfloat16(), torch.randn(*shape, 67)
    bias = torch.randn(41).bfloat16() if is_biased else None
    exact = F.linear(
        x.bfloat16().double(), weight.double(), None if bias is None else bias.double()
    )
    for ordered, product in operators(torch.bfloat16):
        monkeypatch.setattr(packed, "ordered", ordered)
        monkeypatch.setattr(packed, "product", product)
        found = PackedLinear(weight, bias)(x)
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-2)


def test_nothing_is_packed_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "CAN_PACK", False)
    model = build("adaptive").float()
    frozen.cast_weights(model, torch.bfloat16)
    frozen.pack_weights(model)
    assert not any(isinstance(module, PackedLinear) for module in model.modules())
    with torch.no_grad(), autocast(model.device, torch.bfloat16):
        assert (
            model.log_prob(
                model(torch.tensor([[N_TOKEN - 1]]), None, context_of("plain")).hidden_BTD
            )
            .isfinite()
            .all()
        )


@torch.no_grad()
@pytest.mark.parametrize("update", ["linear", "delta"])
def test_what_is_summed_over_all_tokens_stays_in_the_range_of_16_bits(update: str) -> None:
    """A sum over 2,000 tokens and 64 channels is beyond the largest number of float16."""
    model = build("infini", d_head=64, n_layer=1, infini_update=update).float()
    context = context_of("infini", tgt_len=50)
    text_BT = torch.randint(N_TOKEN, (1, 2000), generator=torch.Generator().manual_seed(0))
    losses = []
    for dtype in (torch.float32, torch.float16):
        with autocast(model.device, dtype):
            memory = None
            for segment_BT in text_BT.split(50, dim=1):
                nll_BT, memory = model.nll(segment_BT, segment_BT, memory, context)
        losses.append(nll_BT)
    torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=0.02)
