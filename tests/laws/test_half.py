"""A model whose weights are kept in 16 bits gives what a model with rounded weights does by products in 16 bits."""

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.laws.conftest import N_TOKEN, build, context_of, for_models
from txl import TransformerXL
from txl.model import half
from txl.model.autocast import autocast
from txl.ops import linear, packed
from txl.ops.packed import CAN_PACK


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
        for memory in (None, model.fresh_memory(2)):
            for segment_BT in token_BT.split(context.tgt_len, dim=1):
                nll_BT, memory = model.nll(segment_BT, segment_BT, memory, context)
                found.append(nll_BT)
        for segment_B1 in token_BT.split(1, dim=1)[:2]:
            hidden_B1D, memory = model(segment_B1, memory, context)
        return [*found, model.log_prob(hidden_B1D)]


@for_models()
def test_weights_kept_in_16_bits_give_what_rounded_weights_give(
    name: str, token_BT: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "CAST_PAYS", 0)  # parts of rounded tables are multiplied in 16 bits too
    dtype = torch.float16 if len(name) % 2 else torch.bfloat16
    model = rounded(name, dtype)
    expected = answers(model, token_BT, name, dtype)
    n_byte = sum(p.nbytes for p in model.parameters())
    half.cast_weights(model, dtype)
    *losses, of_token_alone = zip(answers(model, token_BT, name, dtype), expected, strict=True)
    for one, other in losses:
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    torch.testing.assert_close(*of_token_alone, rtol=0, atol=0.1)  # by `txl.model.one_token`: rounded elsewhere
    assert sum(p.nbytes for p in model.parameters()) < n_byte
    assert not any(p.requires_grad for p in model.parameters())


needs_order = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_reorder_linear_weight") or not torch.backends.mkldnn.is_available()
    or not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="the processor has no instructions for it",
)  # fmt: skip


@needs_order
@pytest.mark.parametrize("name", ["plain", "pre_lnorm_adaptive", "same", "compressive", "gated"])
def test_packed_weights_give_the_same_up_to_rounding(
    name: str, token_BT: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half, "CAN_PACK", True)
    model = rounded(name, torch.bfloat16)
    half.cast_weights(model, torch.bfloat16)
    plain = copy.deepcopy(model)
    half.pack_weights(model)
    assert all(packed.is_packed(layer.attn.v_net.weight) for layer in model.layers)
    pairs = (answers(each, token_BT, name, torch.bfloat16) for each in (model, plain))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0.1)  # of losses of 4
    for one, other in zip(model.layers.parameters(), plain.layers.parameters(), strict=True):
        assert one.to_dense().equal(other) if packed.is_packed(one) else one.equal(other)


@needs_order
@pytest.mark.parametrize("shape", [(1,), (3, 1), (64,), (0,)], ids=str)
@pytest.mark.parametrize("is_biased", [True, False])
def test_a_packed_product_is_that_of_bfloat16(shape: tuple[int, ...], is_biased: bool) -> None:
    weight, bias, x = (
        torch.randn(41, 67).bfloat16(),
        torch.randn(41).bfloat16() if is_biased else None,
        torch.randn(*shape, 67),
    )
    found = linear.linear(x, packed.packed(weight), bias)
    exact = F.linear(x.bfloat16().double(), weight.double(), None if bias is None else bias.double())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-2)


def test_nothing_is_packed_where_it_does_not_pay() -> None:
    assert not CAN_PACK  # tests compute as a processor without bfloat16, see tests/conftest.py
    model = build("adaptive").float()
    half.cast_weights(model, torch.bfloat16)
    half.pack_weights(model)
    assert not any(packed.is_packed(p) for p in model.parameters())
    assert model.softmax.laid_out is None
    with torch.no_grad(), autocast(model.device, torch.bfloat16):
        assert (
            model.log_prob(model(torch.tensor([[N_TOKEN - 1]]), None, context_of("plain")).hidden_BTD).isfinite().all()
        )
