"""Every parameter gets a gradient in every step (law 5), and the gradient is right."""

import pytest
import torch
from torch import Tensor

from tests.laws.conftest import SHAPES, build
from txl import Context, TransformerXL

CONTEXT = Context(mem_len=8)


@pytest.mark.parametrize("remembered", [True, False])
def test_every_parameter_gets_a_gradient(model: TransformerXL, remembered: bool) -> None:
    """Whichever clusters the words of a batch are from; without clusters, with all words."""
    some = [range(10), range(30, 50), [10], [0], [49]]  # the shortlist, the last cluster, one word of each
    for ids in (range(50), *(some if model.config.cutoffs else [])):
        choice = torch.tensor(list(ids))
        token_BT = choice[torch.randint(0, len(choice), (2, 17))]
        memory = model(token_BT[:, :8], None, CONTEXT).memory if remembered else None
        model.zero_grad()
        nll_BT, _ = model.train().nll(token_BT[:, 8:16], token_BT[:, 9:], memory, CONTEXT)
        nll_BT.mean().backward()
        assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", sorted(set(SHAPES) - {"learned_absolute", "learned_relative_short", "floater_untied"})
)
def test_gradients_equal_finite_differences(shape: str) -> None:
    small = {"n_layer": 2, "d_model": 4, "d_inner": 6, "d_head": 4 if shape == "rotary" else 3}
    model = build(shape, **small).train()
    if model.config.d_embed == 16:
        model = build(shape, **small, d_embed=4).train()
    token_BT = torch.randint(0, 50, (2, 10))
    memory = model(token_BT[:, :4], None, CONTEXT).memory
    names, parameters = zip(*model.named_parameters(), strict=True)

    def loss(*values: Tensor) -> Tensor:
        inputs = (token_BT[:, 4:9], token_BT[:, 5:], memory, CONTEXT)
        hidden, _ = torch.func.functional_call(model, dict(zip(names, values, strict=True)), (inputs[0], *inputs[2:]))
        return hidden.square().mean()

    assert torch.autograd.gradcheck(loss, parameters, fast_mode=True)
