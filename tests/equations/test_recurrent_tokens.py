"""Recurrent tokens against a model without memory that reads [tokens, segment, tokens], in float64."""

import torch

from tests.laws.conftest import SMALL, build
from txl import Context

M = 3


def test_what_is_read_and_written_is_the_formula(seeded: None) -> None:
    context = Context(tgt_len=4)
    model = build("recurrent_tokens", **SMALL | {"n_memory_token": M})
    plain = build("no_memory", **SMALL)
    begin_MD = model.layers[0].memory.begin_MD
    weights = {
        name: p for name, p in model.state_dict(keep_vars=True).items() if "begin_MD" not in name
    }
    segments = [torch.randn(2, n, 8).double().requires_grad_() for n in (4, 1, 3)]
    memory, found = None, []
    tokens_BMD, expected = begin_MD.expand(2, -1, -1), []
    for segment_BTD in segments:
        hidden_BTD, memory = model.read(segment_BTD, memory, context)
        found.append(hidden_BTD)
        whole_BLD = torch.cat([tokens_BMD, segment_BTD, tokens_BMD], dim=1)
        with torch.nn.utils.stateless._reparametrize_module(plain, weights):
            out_BLD = plain.read(whole_BLD, None, context).hidden_BTD
        expected.append(out_BLD[:, M:-M])
        tokens_BMD = out_BLD[:, -M:]
    assert memory is not None
    of = [
        begin_MD,
        segments[0],
        *(p for name, p in model.named_parameters() if name.startswith("layers.1")),
    ]
    grads, own = (torch.autograd.grad(outs[-1].square().sum(), of) for outs in (found, expected))
    for ours, theirs in zip(
        [*found, memory.states[0].extra["tokens"], *grads],
        [*expected, tokens_BMD, *own],
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert bool(grads[0].any())
