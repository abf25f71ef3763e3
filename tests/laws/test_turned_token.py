"""A token a row at a time, by `txl.inference.turned_token`, as the layers read it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.laws.conftest import build
from tests.processors import ways_of_large_weights
from txl import Context, TransformerXL
from txl.inference import frozen, turned_token
from txl.inference.reader import Reader
from txl.inference.turned_token import TokenLayer
from txl.model.autocast import autocast
from txl.model.norms import RMSNorm
from txl.ops.norm import norm_with

CONTEXT = Context(tgt_len=4, mem_len=7)
WINDOW = Context(tgt_len=4, mem_len=7, same_length=True)
MODELS = {
    "decoder": ("decoder_sinks", {}),
    "norms of heads": ("decoder_sinks", {"qk_norm": True, "qkv_bias": True, "o_bias": True}),
    "norms after": ("rotary", {"activation": "relu", "ff_bias": True}),
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each layer has read each time."""
    found, call = [], TokenLayer.__call__

    def counted(self: TokenLayer, h_BD: Tensor, *more: Any) -> Tensor:
        found.append(len(h_BD))
        return call(self, h_BD, *more)

    monkeypatch.setattr(TokenLayer, "__call__", counted)
    return found


def model_of(name: str) -> TransformerXL:
    base, more = MODELS[name]
    return build(base, **more)


def read(model: TransformerXL, token_BT: Tensor, context: Context = CONTEXT) -> Tensor:
    """Hidden states of a text that is read token by token, (B, T, D)."""
    reader = Reader(model, context, len(token_BT))
    return torch.cat([reader.read(token_B1) for token_B1 in token_BT.split(1, dim=1)], dim=1)


def both(
    monkeypatch: pytest.MonkeyPatch,
    model: TransformerXL,
    token_BT: Tensor,
    context: Context = CONTEXT,
) -> tuple[Tensor, Tensor]:
    """`read` as it is, and by the modules."""
    found = read(model, token_BT, context)
    with monkeypatch.context() as patch:
        patch.setattr(turned_token, "serves", lambda *args: False)
        return found, read(model, token_BT, context)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("name", "context"), [*((name, CONTEXT) for name in MODELS), ("norms after", WINDOW)]
)
def test_it_is_what_the_layers_compute(
    name: str,
    context: Context,
    token_BT: Tensor,
    calls: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = model_of(name)
    found, expected = both(monkeypatch, model, token_BT, context)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    assert calls == [2] * (token_BT.shape[1] * len(model.layers))


@torch.inference_mode()
def test_rows_may_become_more(token_BT: Tensor, calls: list[int]) -> None:
    model, rows_C = model_of("decoder"), torch.tensor([1, 0, 1])
    expected = read(model, token_BT)[rows_C, 5:]
    reader = Reader(model, CONTEXT, 2)
    reader.read(token_BT[:, :5])
    reader.take_rows(rows_C)
    parts = [reader.read(token_C1) for token_C1 in token_BT[rows_C, 5:].split(1, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=0, atol=1e-11)
    assert calls[-1] == 3


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["decoder", "norms of heads"])
def test_weights_in_16_bits(
    name: str,
    dtype: torch.dtype,
    token_BT: Tensor,
    calls: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = model_of(name).float()
    frozen.cast_weights(model, dtype)
    with autocast(model.device, dtype):
        found, expected = both(monkeypatch, model, token_BT)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.1)
    assert calls


@torch.inference_mode()
@pytest.mark.parametrize("is_amd", [True, False])
def test_products_of_large_weights_and_of_packed_ones(
    is_amd: bool, token_BT: Tensor, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in ways_of_large_weights(monkeypatch, is_amd=is_amd):
        model = model_of("decoder").float()
        found, expected = both(monkeypatch, model, token_BT)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        frozen.pack_layers(model)
        for packed in both(monkeypatch, model, token_BT):
            torch.testing.assert_close(packed, expected, rtol=1e-3, atol=1e-3)
    assert calls


def test_gradients_and_other_models_are_for_the_modules(token_BT: Tensor, calls: list[int]) -> None:
    model = model_of("decoder")
    h_B1D = torch.zeros(2, 1, model.config.d_model, dtype=torch.float64)
    with torch.no_grad():
        assert turned_token.serves(model.layers, h_B1D)
        assert not turned_token.serves(model.layers, h_B1D.expand(2, 2, -1))
        assert not turned_token.serves(model.layers, h_B1D.float())
        of_16_bits = model_of("decoder").bfloat16().layers
        assert not turned_token.serves(of_16_bits, h_B1D.bfloat16())
        for changed in ({"rope_part": 0.5}, {"parallel": True}):
            assert not turned_token.serves(build("decoder_sinks", **changed).layers, h_B1D)
    assert not turned_token.serves(model.layers, h_B1D)
    assert calls == []


@torch.no_grad()
def test_modules_that_were_put_in_and_hooks_are_called(token_BT: Tensor, calls: list[int]) -> None:
    class Adapted(nn.Linear):
        """As adapters do, it has the weight of what it replaces."""

        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) + 1

    model, seen = model_of("decoder"), []
    before = read(model, token_BT)
    n_call = len(calls)
    handle = model.layers[1].ff[1].register_forward_hook(lambda *args: seen.append(args))
    torch.testing.assert_close(read(model, token_BT), before)
    assert (len(calls), len(seen)) == (n_call, token_BT.shape[1])
    handle.remove()
    net = model.layers[2].attn.v_net
    adapted = Adapted(net.in_features, net.out_features, bias=False)
    adapted.weight = net.weight
    model.layers[2].attn.v_net = adapted
    assert not read(model, token_BT).isclose(before).all()
    assert len(calls) == n_call


@torch.no_grad()
@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_norms_are_those_of_pytorch(size: float, seeded: None) -> None:
    x = size * torch.randn(3, 10, dtype=torch.float64)
    for norm in (RMSNorm(10, eps=1e-5), nn.LayerNorm(10)):
        norm.double()
        nn.init.normal_(norm.weight)
        torch.testing.assert_close(norm_with(norm)(x), norm(x), rtol=1e-12, atol=0)
