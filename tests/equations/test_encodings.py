"""Every position encoding is the formula of its paper: one table, values and gradients in float64."""

from typing import Any

import pytest
import torch

from tests.equations import loops
from tests.equations.loops import D, H, N, layer_by_loop
from txl import ModelConfig, Span, TransformerXL
from txl.attention_rules import use_attention

EQUATIONS: list[tuple[str, dict[str, Any]]] = [  # the encoding, and settings of the model
    ("none", {}),
    ("rel_sinusoid", {"attn_impl": "dense"}),
    ("rel_sinusoid", {"attn_impl": "naive", "pre_lnorm": True}),
    ("learned_relative", {"n_position": 20, "attn_impl": "dense"}),
    ("learned_relative", {"n_position": 4}),
    ("relative_keys", {"n_position": 20}),
    ("relative_keys", {"n_position": 3, "attn_impl": "dense"}),
    ("shaw", {"max_distance": 3}),
    ("shaw", {"max_distance": 30}),
    ("deberta", {"max_distance": 1}),
    ("deberta", {"max_distance": 3}),
    ("deberta", {"max_distance": 30}),
    ("t5", {"n_bucket": 4, "max_distance": 6}),
    ("t5", {"n_bucket": 5, "max_distance": 9}),
    ("t5", {"n_bucket": 2, "max_distance": 3}),
    ("alibi", {"n_head": 1}),
    ("alibi", {"n_head": 3}),
    ("alibi", {"n_head": 6}),
    ("rotary", {}),
    ("learned_absolute", {"n_position": 4}),
    ("learned_absolute", {"n_position": 20}),
    ("floater", {}),
    ("floater", {"untie_r": True}),
    ("sinusoid_input", {"n_layer": 2}),
    ("sinusoid_input", {"count_back": True}),
    ("learned_per_layer", {"n_position": 20, "n_layer": 2}),
    ("learned_per_layer", {"n_position": 4, "pre_lnorm": True}),
    ("learned_per_layer", {"n_position": 4, "count_back": True}),
]
SPANS = [
    Span(0, 1),
    Span(0, 5, window=3),
    Span(3, 4),
    Span(3, 4, clamp_len=2),
    Span(7, 2, clamp_len=1, window=6),
]
FLOAT32 = ("rotary",)
"""Keep their frequencies in float32, which this far from it makes a difference of 1e-6."""


@pytest.mark.parametrize(("position", "settings"), EQUATIONS, ids=str)
def test_a_layer_is_the_formula(position: str, settings: dict[str, Any]) -> None:
    if position == "floater":
        pytest.importorskip("torchdiffeq")
    shape = {
        "n_token": 5,
        "n_layer": 1,
        "n_head": N,
        "d_head": H,
        "d_model": D,
        "d_inner": 4,
        "position": position,
    }
    shape |= settings
    impl = shape.pop("attn_impl", "auto")
    model = TransformerXL(ModelConfig(**shape)).double()
    use_attention(model, impl)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    tolerance = 1e-5 if position in FLOAT32 else 1e-11
    pos = model.layers[0].attn.pos
    for span in SPANS:
        if span.clamp_len > 0 and not pos.clamps:
            continue
        x_SD = torch.randn(span.n_key, D, dtype=torch.float64, requires_grad=True)
        for layer in model.layers:
            feats = pos.prepare(span, like=x_SD)
            ours = layer.attend(x_SD[None, span.n_mem :], x_SD[None, : span.n_mem], feats, span)[0]
            formula = getattr(loops, position)(model.config, layer.attn.pos, span)
            theirs = layer_by_loop(layer, x_SD, span, formula)
            torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
            wanted, upstream = [x_SD, *layer.parameters()], torch.randn_like(theirs)
            grads = [
                torch.autograd.grad(
                    out, wanted, upstream, allow_unused=True, materialize_grads=True
                )
                for out in (ours, theirs)
            ]
            torch.testing.assert_close(*grads, rtol=0, atol=10 * tolerance)
