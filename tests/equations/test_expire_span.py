"""The spans of Expire-Span against loops over rows, heads, queries and remembered states, in float64."""

from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.equations import loops
from tests.equations.loops import D, H, N, layer_by_loop
from txl import Context, ModelConfig, TransformerXL
from txl.model.memory import Reading
from txl.model.span import Span

B, SIZES = 2, [3, 4, 1, 1, 1, 4]
LONGEST, RAMP, ALPHA, MEM_LEN = 8, 2, 0.3, 4
Row = list[tuple[Tensor, int]]
"""What is remembered of a row: states, and when they were new."""


def span_of(layer: Any, h_D: Tensor) -> Tensor:
    rule = layer.memory
    x_D = loops.normed(layer.attn_norm, h_D[None])[0] if rule.spans_of == "normed" else h_D
    return LONGEST / (1 + (-(rule.w_D * x_D).sum() - rule.b[0]).exp())


def factor(layer: Any, h_D: Tensor, passed: int) -> Tensor:
    m = 1 + (span_of(layer, h_D) - passed) / RAMP
    return m * 0 if m <= 0 else m if m < 1 else m * 0 + 1


def by_the_book(
    config: ModelConfig, layer: Any, segments: list[Tensor]
) -> tuple[list[list[Tensor]], list[Tensor], list[list[Row]]]:
    """Of each segment what the layer returns, row by row, the loss, and what is remembered after it."""
    outs, losses, kept = [], [], []
    rows: list[Row] = [[] for _ in range(B)]
    now = 0
    for h_BTD in segments:
        outs.append([])
        for b in range(B):
            seen = rows[b] + [(h_D, now + t) for t, h_D in enumerate(h_BTD[b])]
            span = Span(len(rows[b]), h_BTD.shape[1])

            def m(i: int, j: int, seen: Row = seen) -> Tensor:
                return factor(layer, seen[j][0], seen[i][1] - seen[j][1])

            formula = getattr(loops, config.position)(config, layer.attn.pos, span)._replace(
                factor=m
            )
            outs[-1].append(
                layer_by_loop(layer, torch.stack([h_D for h_D, _ in seen]), span, formula)
            )
            after = now + h_BTD.shape[1]
            rows[b] = [(h_D.detach(), i) for h_D, i in seen if factor(layer, h_D, after - i) > 0][
                -MEM_LEN:
            ]
        losses.append(
            ALPHA * torch.stack([span_of(layer, h_D) for h_D in h_BTD.flatten(0, 1)]).mean()
        )
        kept.append(list(rows))
        now += h_BTD.shape[1]
    return outs, losses, kept


# of each way to compute attention
@pytest.mark.parametrize(
    ("position", "spans_of", "std", "bias"),
    [
        ("rel_sinusoid", "hidden", 0.7, -2.0),
        ("alibi", "hidden", 0.7, -2.0),
        ("none", "hidden", 0.7, -2.0),
        ("alibi", "normed", 0.6, -2.5),
    ],
)
def test_a_layer_is_the_formula(
    position: str, spans_of: str, std: float, bias: float, seeded: None
) -> None:
    settings = {"max_span": LONGEST, "span_ramp": RAMP, "span_loss": ALPHA, "memory": "expire_span"}
    settings |= {"spans_of": spans_of, "pre_lnorm": spans_of == "normed"}
    shape = {
        "n_token": 5,
        "n_layer": 1,
        "n_head": N,
        "d_head": H,
        "d_model": D,
        "d_inner": 4,
        "position": position,
    }
    model = TransformerXL(ModelConfig(**shape, **settings)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std)
        model.layers[0].memory.get_parameter("b").fill_(bias)  # some spans are short
    layer, context = model.layers[0], Context(tgt_len=4, mem_len=MEM_LEN)
    rule: Any = layer.memory
    segments = [torch.randn(B, n, D).double().requires_grad_() for n in SIZES]
    state, outs, states = rule.empty(model.config, B, like=segments[0]), [], []
    for h_BTD in segments:
        span = Span.of(context, n_mem=rule.n_kept(state), n_new=h_BTD.shape[1])
        out_BTD, state = layer(h_BTD, state, Reading(context, span, layer.attn.pos, like=h_BTD))
        outs.append(out_BTD)
        states.append(state)
    books, losses, kept = by_the_book(model.config, layer, segments)
    for state, loss, rows, now in zip(states, losses, kept, accumulate(SIZES), strict=True):
        torch.testing.assert_close(state.loss, loss, rtol=1e-12, atol=0)
        assert rule.n_kept(state) == max(map(len, rows))
        for b, row in enumerate(rows):
            zeros = [0] * (rule.n_kept(state) - len(row))
            assert state.extra["age"][b].tolist() == [*zeros, *(now - i for _, i in row)]
            for found_D, (h_D, _) in zip(state.hidden_BMD[b, len(zeros) :], row, strict=True):
                assert torch.equal(found_D, h_D)
    # rows differ, shrink, and are cut at mem_len
    assert len({len(row) for rows in kept for row in rows}) >= 3
    upstream = [torch.randn_like(out) for out in outs]
    theirs = [torch.stack(rows) for rows in books]
    torch.testing.assert_close(outs, theirs, rtol=0, atol=1e-11)
    of = [*segments, *layer.parameters()]
    grads = []
    for found, of_loss in ((outs, [state.loss for state in states]), (theirs, losses)):
        sums = [(w * x).sum() for w, x in zip(upstream, found, strict=True)]
        total = torch.stack([*sums, *of_loss]).sum()
        grads.append(torch.autograd.grad(total, of, allow_unused=True, materialize_grads=True))
    torch.testing.assert_close(*grads, rtol=0, atol=1e-10)
