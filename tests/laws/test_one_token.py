"""A token a stream at a time, by `txl.inference.one_token`, as the layers read it."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.laws.conftest import build
from tests.processors import ways_of_large_weights
from txl import Context, TransformerXL
from txl.attention_rules import use_attention
from txl.inference import frozen, one_token
from txl.inference.frozen import Frozen
from txl.model.autocast import autocast
from txl.positions.rel_sinusoid import RelSinusoid

CONTEXTS = {
    "far": Context(mem_len=100),
    "clamped": Context(tgt_len=3, mem_len=5, clamp_len=2),
    "window": Context(mem_len=4, same_length=True),
    "window, clamped": Context(mem_len=6, same_length=True, clamp_len=3),
    "nothing remembered": Context(mem_len=0),
}
NAMES = ["plain", "pre_lnorm_adaptive", "untie_r_one_table", "relative_keys", "relative_keys_short"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many streams were read each time."""
    found, read = [], one_token.read
    monkeypatch.setattr(
        one_token,
        "read",
        lambda layers, h_BTD, *more: found.append(len(h_BTD)) or read(layers, h_BTD, *more),
    )
    return found


def through_both(
    model: TransformerXL,
    token_BT: Tensor,
    context: Context,
    change: Callable[[int, object], object] = lambda i, m: m,
) -> list[tuple[Tensor, Tensor]]:
    """Hidden states of each token, by layers and by `one_token`, and what is remembered at the end."""
    pairs, memories = (
        [],
        {impl: Frozen(model).fresh_memory(len(token_BT)) for impl in ("naive", "auto")},
    )
    for i, token_B1 in enumerate(token_BT.split(1, dim=1)):
        one = {}
        for impl, memory in memories.items():
            use_attention(model, impl)
            one[impl], memories[impl] = Frozen(model)(token_B1, change(i, memory), context)
        pairs.append((one["auto"], one["naive"]))
    ends = zip(memories["auto"].layers, memories["naive"].layers, strict=True)
    return pairs + [(found.kv_2BNMH, expected.kv_2BNMH) for found, expected in ends]


@torch.inference_mode()
@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize("name", NAMES)
def test_it_is_what_the_layers_compute(
    name: str, context: Context, token_BT: Tensor, calls: list[int]
) -> None:
    model = build(name, activation="swiglu" if name == "plain" else "relu")
    for found, expected in through_both(model, token_BT, context):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    assert calls == [2] * token_BT.shape[1]


@torch.inference_mode()
def test_rows_may_change_between_tokens(token_BT: Tensor, calls: list[int]) -> None:
    def change(i: int, memory: object) -> object:
        return memory.rows(torch.tensor([1, 1])) if i == 5 else memory

    for found, expected in through_both(build("plain"), token_BT, CONTEXTS["clamped"], change):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


@torch.inference_mode()
def test_what_is_made_ready_follows_the_context_and_the_segments_between(
    token_BT: Tensor, calls: list[int]
) -> None:
    model, found, expected = build("plain"), [], []
    contexts = [
        dataclasses.replace(CONTEXTS["far"], mem_len=n, clamp_len=c)
        for n, c in ((3, 2), (9, -1), (3, 2))
    ]
    for impl, hiddens in (("auto", found), ("naive", expected)):
        use_attention(model, impl)
        memory = Frozen(model).fresh_memory(2)
        for segment_BT, context in zip(
            token_BT.split([2, 1, 1, 1, 4, 1, 1, 1], dim=1), contexts * 3, strict=False
        ):
            hidden_BTD, memory = Frozen(model)(segment_BT, memory, context)
            hiddens.append(hidden_BTD)
    torch.testing.assert_close(
        torch.cat(found, dim=1), torch.cat(expected, dim=1), rtol=0, atol=1e-11
    )
    assert len(calls) == 6


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_in_16_bits(dtype: torch.dtype, token_BT: Tensor, calls: list[int]) -> None:
    model = build("pre_lnorm_adaptive").float()
    frozen.cast_weights(model, dtype)
    with autocast(model.device, dtype):
        for found, expected in through_both(model, token_BT, CONTEXTS["clamped"]):
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected, rtol=0.02, atol=0.1)
    assert calls


@torch.inference_mode()
@pytest.mark.parametrize("is_amd", [True, False])
def test_products_of_large_weights_and_of_packed_ones(
    is_amd: bool, token_BT: Tensor, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in ways_of_large_weights(monkeypatch, is_amd=is_amd):
        calls.clear()
        model = build("plain").float()
        expected = through_both(model, token_BT, CONTEXTS["window"])
        frozen.pack_layers(model)
        for pair, before in zip(
            through_both(model, token_BT, CONTEXTS["window"]), expected, strict=True
        ):
            for one in (*pair, before[0]):
                torch.testing.assert_close(one, before[1], rtol=1e-3, atol=1e-3)
        assert len(calls) == 2 * token_BT.shape[1]


@pytest.mark.parametrize("name", ["gated", "same", "reversible", "rotary", "knn", "performer_none"])
def test_other_models_read_by_their_layers(name: str, token_BT: Tensor, calls: list[int]) -> None:
    reader = Frozen(build(name))
    reader(token_BT[:, :1], reader.fresh_memory(2), CONTEXTS["far"])
    assert calls == []


@torch.no_grad()
def test_modules_that_were_put_in_and_hooks_are_called(token_BT: Tensor, calls: list[int]) -> None:
    class Adapted(nn.Linear):
        """As adapters do, it has the weight of what it replaces."""

        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) + 1

    token_B1, seen = token_BT[:, :1], []
    plain = build("plain")
    reader, memory = Frozen(plain), Frozen(plain).fresh_memory(2)
    before_B1D = reader(token_B1, memory, CONTEXTS["far"])[0]
    handle = plain.layers[1].ff[1].register_forward_hook(lambda *args: seen.append(args))
    torch.testing.assert_close(reader(token_B1, memory, CONTEXTS["far"])[0], before_B1D)
    assert (len(calls), len(seen)) == (1, 1)
    handle.remove()
    adapted = Adapted(16, 16, bias=False)
    adapted.weight = plain.layers[2].attn.v_net.weight
    plain.layers[2].attn.v_net = adapted
    assert not reader(token_B1, memory, CONTEXTS["far"])[0].isclose(before_B1D).any()
    assert len(calls) == 1


@torch.no_grad()
def test_an_encoding_that_changes_queries_and_keys_too_is_read_by_the_layers(
    token_BT: Tensor, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(
        RelSinusoid, "transform_qk", lambda self, q, k, feats, span: seen.append(span) or (q, k)
    )
    model = build("plain")
    Frozen(model)(token_BT[:, :1], Frozen(model).fresh_memory(2), CONTEXTS["far"])
    assert (len(calls), len(seen)) == (0, len(model.layers))


def test_dropout_documents_and_hidden_states_are_for_the_layers(
    token_BT: Tensor, calls: list[int]
) -> None:
    model, context = build("plain"), CONTEXTS["far"]
    reader, token_B1 = Frozen(model), token_BT[:, :1]
    reader(token_B1, reader.fresh_memory(2), context, torch.zeros(2, 1, dtype=torch.int64))
    reader(token_B1, model.empty_memory(2), context)
    model.train()
    reader(token_B1, reader.fresh_memory(2), context)
    assert calls == []
    model.eval()
    with pytest.raises(ValueError, match="holds 1 rows, the segment 2"):
        reader(token_B1, reader.fresh_memory(1), context)
    reader(token_B1, reader.fresh_memory(2), context)
    assert calls == [2]
