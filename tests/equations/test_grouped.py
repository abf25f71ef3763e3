"""Keys and values that several heads of queries share are those of a model in which each has a copy."""

from typing import Any

import pytest
import torch
from torch import Tensor

from txl import Context, ModelConfig, TransformerXL
from txl.inference.reader import Reader

SIZES: dict[str, Any] = {
    "n_token": 30,
    "n_layer": 2,
    "n_head": 6,
    "d_head": 4,
    "d_model": 12,
    "d_inner": 10,
    "qkv_bias": True,
}
KINDS: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "rotary": {"position": "rotary", "qk_norm": True},
    "reversible": {"position": "rotary", "pre_lnorm": True, "reversible": True},
    "t5": {"position": "t5", "n_bucket": 6, "max_distance": 9},
    "shaw": {"position": "shaw", "max_distance": 5},
    "conv": {"memory": "compressive", "compress_rate": 2},
    "most used": {"memory": "compressive", "compression": "most_used", "pre_lnorm": True},
    "spans": {"memory": "expire_span", "max_span": 9, "span_ramp": 3, "position": "rotary"},
    "infini": {"memory": "infini", "infini_update": "delta", "position": "rotary"},
    "knn": {"memory": "knn", "lookup_layer": 1, "lookup_k": 3},
    "neural": {"memory": "neural", "position": "alibi"},
    "tokens": {"memory": "recurrent_tokens", "n_memory_token": 3, "position": "rotary"},
}


def pair(kind: str, n_kv_head: int) -> tuple[TransformerXL, TransformerXL]:
    """A model, and one of the same function that has as many heads of keys as of queries."""
    torch.manual_seed(5)
    settings = SIZES | KINDS[kind]
    grouped = TransformerXL(ModelConfig(n_kv_head=n_kv_head, **settings)).double().train()
    full = TransformerXL(ModelConfig(**settings)).double().train()
    with torch.no_grad():
        for parameter in grouped.parameters():
            parameter.normal_(std=0.4)
        weights = grouped.state_dict()
        for name, tensor in full.state_dict().items():
            tensor.copy_(copied(weights[name], tensor, n_kv_head))
    return grouped, full


def copied(of_fewer: Tensor, like: Tensor, n_kv_head: int) -> Tensor:
    """Rows of each head as often as its queries have heads."""
    if of_fewer.shape == like.shape:
        return of_fewer
    heads = of_fewer.unflatten(0, (n_kv_head, -1))
    return heads.repeat_interleave(len(like) // len(of_fewer), dim=0).flatten(0, 1)


@pytest.mark.parametrize("n_kv_head", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_values_gradients_and_what_is_read_token_by_token(kind: str, n_kv_head: int) -> None:
    grouped, full = pair(kind, n_kv_head)
    n_mem = 0 if kind == "tokens" else 4
    context = Context(tgt_len=5, mem_len=n_mem, compressed_len=3, lookup_len=6)
    token_BT = torch.randint(0, 30, (2, 18))
    hiddens = []
    for model in (grouped, full):
        memory = None
        parts = []
        for part_BT in token_BT.split(5, dim=1):
            hidden_BTD, memory = model(part_BT, memory, context)
            parts.append(hidden_BTD)
        hiddens.append(torch.cat(parts, dim=1))
        loss = hiddens[-1].square().mean()
        if memory is not None and memory.loss is not None:
            loss = loss + memory.loss
        loss.backward()
    torch.testing.assert_close(hiddens[0], hiddens[1], rtol=0, atol=1e-11)
    of_full = {name: p.grad for name, p in full.named_parameters()}
    for name, parameter in grouped.named_parameters():
        gradient = of_full[name]
        if gradient is not None and gradient.shape != parameter.shape:
            n_row = len(parameter) // n_kv_head
            by_copy = gradient.unflatten(0, (n_kv_head, -1, n_row))
            gradient = by_copy.sum(1).flatten(0, 1)
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-11)
    for model in (grouped, full):
        model.eval()
    readers = [Reader(model, context, 2) for model in (grouped, full)]
    for part_BT in token_BT.split([7, 1, 1, 9], dim=1):
        found, expected = (reader.read(part_BT) for reader in readers)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", ["infini", "knn", "neural"])
def test_what_has_left_the_window_is_held_once_for_heads_that_share_keys(kind: str) -> None:
    held = []
    for model in pair(kind, 2):
        token_BT = torch.randint(0, 30, (2, 18))
        _, memory = model(token_BT, None, Context(mem_len=4, lookup_len=6))
        held.append(memory.named())
    grouped, full = held
    shared = [name for name in grouped if grouped[name].shape != full[name].shape]
    assert shared
    for name in shared:
        assert grouped[name].shape[1] == 2
        assert full[name].shape == (2, SIZES["n_head"], *grouped[name].shape[2:])
    assert grouped.keys() - set(shared) <= {"0", "1", "1.n_own"}


@pytest.mark.parametrize("rule", ["performer", "lsh"])
def test_a_rule_of_its_own_heads_refuses_them(rule: str) -> None:
    config = ModelConfig(n_kv_head=2, position="rotary", attention=rule, **SIZES)
    with pytest.raises(ValueError, match="has as many heads of keys"):
        TransformerXL(config)
