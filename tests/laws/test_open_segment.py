"""A segment that is read token by token over any memory: as keys and values, with the states of the whole."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.laws.conftest import DECODER, N_TOKEN, build
from tests.laws.test_reading import whole
from txl import Context, TransformerXL
from txl.inference import reader as of_reader
from txl.inference.frozen import Frozen
from txl.inference.reader import Reader

MODELS: dict[str, dict[str, Any]] = {
    "compressive of one": {"memory": "compressive", "compress_rate": 2, "compression": "most_used"},
    "compressive": {
        "memory": "compressive",
        "compress_rate": 3,
        "attention": "performer",
        "position": "rotary",
    },
    "expire_span": {"memory": "expire_span", "max_span": 9, "span_ramp": 3, "pre_lnorm": True},
    "expire_span alibi": {
        "memory": "expire_span",
        "max_span": 5,
        "span_ramp": 2,
        "position": "alibi",
    },
    "infini": {"memory": "infini", "infini_update": "delta", "position": "t5"},
    "infini lsh": {"memory": "infini", "attention": "lsh", "position": "rotary", "lsh_bucket": 2},
    "knn": {"memory": "knn", "lookup_layer": 1, "lookup_k": 3, "position": "shaw"},
    "neural": {
        "memory": "neural",
        "neural_layers": 2,
        "position": "relative_keys",
        "n_position": 4,
    },
    "recurrent_tokens": {"memory": "recurrent_tokens", "n_memory_token": 3, "position": "deberta"},
    "recurrent_tokens gated": {"memory": "recurrent_tokens", "gate": "gru", "pre_lnorm": True},
    "outputs": {"recurrence": "same", "untie_r": True},
    "decoder infini": DECODER | {"memory": "infini"},
    "decoder knn": DECODER | {"memory": "knn", "lookup_layer": 1, "lookup_k": 3},
    "decoder of two layers": DECODER | {"memory": "neural", "neural_layers": 2},
    "decoder of spans": DECODER | {"memory": "expire_span", "max_span": 9, "span_ramp": 3},
    "decoder of tokens": DECODER | {"memory": "recurrent_tokens", "n_memory_token": 3},
}
CONTEXTS = [
    Context(tgt_len=5, mem_len=3, compressed_len=2, lookup_len=4),
    Context(tgt_len=1, mem_len=2, compressed_len=1, lookup_len=3),
    Context(tgt_len=7, mem_len=4, compressed_len=3, lookup_len=9, ext_len=2),
    Context(tgt_len=6, mem_len=1, compressed_len=5, lookup_len=1, clamp_len=3),
]
SIZES = [[1] * 17, [3, 1, 1, 9, 2, 1], [17]]


def contexts(model: TransformerXL) -> list[Context]:
    """Those that the model supports, with no memory where it takes none."""
    takes = model.layers[0].memory.traits.works_with.get("mem_len", (1,))
    found = []
    for context in CONTEXTS:
        lengths = {"mem_len": 0} if takes == (0,) else {}
        if model.layers[0].attn.pos.clamps or context.clamp_len < 0:
            found.append(context.overlaid(**lengths))
    return found


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_tokens_have_the_states_of_whole_segments_and_are_not_read_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("plain", **MODELS[name]).double()
    text_BT = torch.randint(0, N_TOKEN, (3, 17), generator=torch.Generator().manual_seed(3))
    n_read = 0

    class Counting(Frozen):
        def __call__(self, token_BT: Tensor, *args: Any, **more: Any) -> Any:
            nonlocal n_read
            n_read += token_BT.shape[1]
            return super().__call__(token_BT, *args, **more)

    monkeypatch.setattr(of_reader, "Frozen", Counting)
    for context in contexts(model):
        expected = whole(model, text_BT, context)
        for sizes in SIZES:
            n_read = 0
            reader = Reader(model, context, len(text_BT))
            found = torch.cat([reader.read(part) for part in text_BT.split(sizes, dim=1)], dim=1)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
            n_segment = -(-17 // context.tgt_len)
            assert n_read <= 2 * (17 + n_segment * context.ext_len)


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_rows_may_change_between_two_tokens(name: str) -> None:
    model = build("plain", **MODELS[name]).double()
    text_BT = torch.randint(0, N_TOKEN, (3, 17), generator=torch.Generator().manual_seed(4))
    rows = torch.tensor([2, 0, 2])
    for context in contexts(model):
        reader = Reader(model, context, len(text_BT))
        reader.read(text_BT[:, :8])
        reader.take_rows(rows)
        found = torch.cat(
            [reader.read(token_B1) for token_B1 in text_BT[rows, 8:].split(1, dim=1)], dim=1
        )
        torch.testing.assert_close(
            found, whole(model, text_BT[rows], context)[:, 8:], rtol=0, atol=1e-9
        )
