"""Recurrent tokens against a model without memory that reads [tokens, segment, tokens], in float64."""

import pytest
import torch

from tests.laws.conftest import SMALL, build
from txl import Context

M = 3
NORMED: dict[str, object] = {"pre_lnorm": True}


@pytest.mark.parametrize(
    "settings", [{"pre_lnorm": False}, NORMED, NORMED | {"tokens_of": "hidden"}]
)
def test_what_is_read_and_written_is_the_formula(settings: dict[str, object], seeded: None) -> None:
    context = Context(tgt_len=4)
    model = build("recurrent_tokens", **SMALL | {"n_memory_token": M} | settings)
    plain = build("no_memory", **SMALL | {"pre_lnorm": settings["pre_lnorm"]})
    begin_MD = model.layers[0].memory.begin_MD
    weights = {
        name: p for name, p in model.state_dict(keep_vars=True).items() if ".memory." not in name
    }
    segments = [torch.randn(2, n, 8).double().requires_grad_() for n in (4, 1, 3)]
    memory, found = None, []
    read_BMD, expected = begin_MD.expand(2, -1, -1), []
    for segment_BTD in segments:
        hidden_BTD, memory = model.read(segment_BTD, memory, context)
        found.append(hidden_BTD)
        whole_BLD = torch.cat([read_BMD, segment_BTD, read_BMD], dim=1)
        with torch.nn.utils.stateless._reparametrize_module(plain, weights):
            out_BLD = plain.read(whole_BLD, None, context).hidden_BTD
        expected.append(out_BLD[:, M:-M])
        read_BMD = written_BMD = out_BLD[:, -M:]
        if settings == NORMED:
            read_BMD = model.layers[0].attn_norm(written_BMD)
    assert memory is not None
    of = [
        begin_MD,
        segments[0],
        *(p for name, p in model.named_parameters() if name.startswith("layers.1")),
    ]
    grads, own = (torch.autograd.grad(outs[-1].square().sum(), of) for outs in (found, expected))
    for ours, theirs in zip(
        [*found, memory.states[0].extra["tokens"], *grads],
        [*expected, written_BMD, *own],
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert bool(grads[0].any())


def test_with_pre_lnorm_tokens_do_not_grow(seeded: None) -> None:
    context = Context(tgt_len=4)
    sizes = []
    for tokens_of in ("hidden", "normed"):
        model = build("recurrent_tokens", **SMALL | NORMED | {"tokens_of": tokens_of})
        memory = None
        for segment_BTD in torch.randn(60, 2, 4, 8).double():
            _, memory = model.read(segment_BTD, memory, context)
        sizes.append(memory.states[0].extra["tokens"].square().mean(-1).sqrt())
    of_hidden_BM, of_normed_BM = sizes
    assert of_hidden_BM.min() > 10 > 3 > of_normed_BM.max()
