"""The compressive memory against loops over rows, states, heads and sizes, in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.laws.conftest import N_TOKEN, build
from txl import Context, TransformerXL
from txl.memory import n_kept_at_most
from txl.model.memory import loss_of

CONTEXT = Context(tgt_len=5, mem_len=3, compressed_len=3)
RATE = 2
TOKEN_BT = torch.randint(0, N_TOKEN, (2, 20), generator=torch.Generator().manual_seed(1))
CUT = [3, 5, 5, 5, 2]
"""Nothing is compressed after the first segment."""


def normed(layer: Any, x_D: Tensor) -> Tensor:
    if not layer.pre_lnorm:
        return x_D
    centred_D = x_D - x_D.mean()
    norm = layer.attn_norm
    return centred_D / (centred_D.square().mean() + norm.eps).sqrt() * norm.weight.detach() + norm.bias.detach()


def heads(layer: Any, net: str, x_D: Tensor) -> list[Tensor]:
    """The projection of a state, head by head."""
    weight_ED = getattr(layer.attn, net).weight.detach()
    out_E = torch.stack([(weight_ED[e] * normed(layer, x_D)).sum() for e in range(len(weight_ED))])
    return list(out_E.split(len(out_E) // layer.attn.n_head))


def attention(layer: Any, h_D: Tensor, memory: list[Tensor]) -> list[list[Tensor]]:
    """Of each head: the probabilities of the memory, and the sum of values."""
    found = []
    q, ks, vs = heads(layer, "q_net", h_D), *([heads(layer, n, m) for m in memory] for n in ("k_net", "v_net"))
    for n in range(layer.attn.n_head):
        prob_M = torch.stack([(q[n] * k[n]).sum() / len(q[n]) ** 0.5 for k in ks]).softmax(0)
        found.append([prob_M, sum((p * v[n] for p, v in zip(prob_M, vs, strict=True)), torch.zeros(()))])
    return found


def compressed(rule: Any, block: list[Tensor], used: list[Tensor]) -> Tensor:
    match rule.compression:
        case "mean":
            return sum(block[1:], block[0]) / len(block)
        case "max":
            return torch.stack([torch.stack([x[d] for x in block]).max() for d in range(len(block[0]))])
        case "most_used":
            return block[max(range(len(block)), key=lambda i: float(used[i]))]
    weight, size = rule.conv.weight, len(block[0])
    rows = [sum((weight[d, j * size : (j + 1) * size] * x).sum() for j, x in enumerate(block)) for d in range(size)]
    return torch.stack(rows) + rule.conv.bias


def by_the_book(layer: Any, segments: list[Tensor]) -> tuple[list[list[list[Tensor]]], list[Tensor]]:
    """What the layer reads before each segment (row, state), and the loss after each."""
    rule, n_row = layer.memory, len(segments[0])
    memory: list[list[Tensor]] = [[] for _ in range(n_row)]
    older: list[list[Tensor]] = [[] for _ in range(n_row)]
    used: list[list[Tensor]] = [[] for _ in range(n_row)]
    reads, losses = [], []
    for h_BTD in segments:
        reads.append([older[b] + memory[b] for b in range(n_row)])
        squares: list[Tensor] = []
        for b in range(n_row):
            for h_D in h_BTD[b] if memory[b] else ():
                for prob_M, _ in attention(layer, h_D, memory[b]):
                    share = prob_M / (len(h_BTD[b]) * layer.attn.n_head)
                    used[b] = [u + p for u, p in zip(used[b], share, strict=True)]
            memory[b] = memory[b] + list(h_BTD[b])
            used[b] += [torch.zeros(())] * len(h_BTD[b])
            old, new = [], []
            while len(memory[b]) >= CONTEXT.mem_len + RATE:
                new.append(compressed(rule, memory[b][:RATE], used[b][:RATE]))
                old += memory[b][:RATE]
                memory[b], used[b] = memory[b][RATE:], used[b][RATE:]
            older[b] = (older[b] + [x.detach() for x in new])[-CONTEXT.compressed_len :]
            if rule.decoder is not None:
                restored = [rule.decoder.weight @ x + rule.decoder.bias for x in new]
                squares += [(torch.cat(old) - torch.cat(restored)).square()] if old else []
            elif old:
                for h_D in h_BTD[b]:
                    pairs = zip(attention(layer, h_D, old), attention(layer, h_D, new), strict=True)
                    squares += [(one[1] - other[1]).square() for one, other in pairs]
        losses.append(torch.cat(squares).mean() if squares else torch.zeros((), dtype=torch.float64))
    return reads, losses


def observed(model: TransformerXL, token_BT: Tensor) -> tuple[list[list[tuple[Tensor, Tensor]]], list[Any]]:
    """Per segment what each layer read: the segment and what stood before it; and the loss of each segment."""
    seen: list[tuple[Tensor, Tensor]] = []
    for layer in model.layers:
        layer.attend = lambda *args, plain=layer.attend: seen.append(args[:2]) or plain(*args)
    memory, losses, reads = None, [], []
    for segment_BT in token_BT.split(CUT, dim=1):
        memory = model(segment_BT, memory, CONTEXT).memory
        losses.append(loss_of(memory.states))
        reads.append(seen[-len(model.layers) :])
    return reads, losses


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ("pre_lnorm", {}),
        ("plain", {"compress_loss": "reconstruction"}),
        *(("plain", {"compression": name}) for name in ("mean", "max", "most_used")),
    ],
    ids=str,
)
def test_what_is_read_and_the_loss_is_the_formula(shape: str, settings: dict[str, Any], seeded: None) -> None:
    model = build(shape, memory="compressive", compress_rate=RATE, n_layer=2, d_model=6, d_head=3, **settings).train()
    reads, losses = observed(model, TOKEN_BT)
    expected = [torch.zeros((), dtype=torch.float64) for _ in reads]
    for i, layer in enumerate(model.layers):
        books, own = by_the_book(layer, [segment[i][0].detach() for segment in reads])
        for segment, book in zip(reads, books, strict=True):
            assert segment[i][1].shape[1] == len(book[0])
            for b, states in enumerate(book):
                for found_D, state_D in zip(segment[i][1][b], states, strict=True):
                    torch.testing.assert_close(found_D, state_D.detach(), rtol=1e-11, atol=1e-12)
        expected = [one + other for one, other in zip(expected, own, strict=True)]
    longest = max(segment[0][1].shape[1] for segment in reads)
    assert longest == n_kept_at_most(model.config, CONTEXT) == 3 + RATE - 1 + 3
    if model.layers[0].memory.conv is None:
        assert losses == [None] * len(reads)
        return
    mine = dict(model.named_parameters())
    grads = torch.autograd.grad(sum(losses), list(mine.values()), allow_unused=True)
    own_grads = torch.autograd.grad(sum(expected), [p for name, p in mine.items() if ".memory." in name])
    for loss, value in zip(losses, expected, strict=True):
        torch.testing.assert_close(loss, value, rtol=1e-10, atol=1e-12)
    of_memory = [grad for name, grad in zip(mine, grads, strict=True) if ".memory." in name]
    for found, wanted in zip(of_memory, own_grads, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    assert all(grad is None for name, grad in zip(mine, grads, strict=True) if ".memory." not in name)


def test_the_loss_of_the_words_does_not_change_the_compression(seeded: None) -> None:
    model, memory = build("plain", memory="compressive", compress_rate=RATE).train(), None
    for segment_BT in TOKEN_BT.split(CONTEXT.tgt_len, dim=1):
        nll_BT, memory = model.nll(segment_BT, segment_BT, memory, CONTEXT)
        nll_BT.sum().backward()
    assert memory is not None
    assert all((p.grad is None) == (".memory." in name) for name, p in model.named_parameters())
