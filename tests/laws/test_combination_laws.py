"""Laws 1 to 5 and 10 for every position encoding with every attention rule, in every kind of layer and of memory.

Layers that remember what they returned (`--recurrence same`) read a text otherwise if it is cut otherwise, by
definition: of laws 1 and 3 only what cuts it in the same way is tested of them. Models and texts are as small as can
be, because there are many; `test_memory_laws` and `test_kernel_laws` have longer ones.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.laws.conftest import N_TOKEN, PAIRS, RULE_SIZES, build
from tests.laws.test_memory_laws import FAR, read
from txl import Context, TransformerXL

SMALLER = {"n_layer": 2, "d_head": 4, "d_model": 8, "d_inner": 6, "n_bucket": 4, "max_distance": 3, "lsh_bucket": 2}
SIZES = [1, 1, 3]


def combinations(*recurrences: str) -> list[Any]:
    """Each pair in two of the four kinds of layers, so that every two settings meet."""
    return [
        pytest.param(
            {"position": position, "attention": rule, "recurrence": recurrence}
            | {"reversible": reversible, "pre_lnorm": reversible},
            id="-".join([position, rule, recurrence, *["reversible"] * reversible]),
        )
        for i, (position, rule) in enumerate(PAIRS)
        for recurrence in recurrences
        for reversible in [(i + (recurrence == "same")) % 2 == 1]
    ]


@pytest.fixture(scope="module", params=combinations("below", "same"))
def model(request: pytest.FixtureRequest) -> TransformerXL:
    torch.manual_seed(0)
    return build("plain", **RULE_SIZES | SMALLER | request.param)


@pytest.fixture(scope="module")
def token_BT() -> Tensor:
    """Two texts, and the first one once more with another end."""
    token_BT = torch.randint(0, N_TOKEN, (2, 5), generator=torch.Generator().manual_seed(1))
    return torch.cat([token_BT, (token_BT[:1] + torch.tensor([0, 0, 0, 7, 7])) % N_TOKEN])


@pytest.fixture(scope="module")
def hidden_BTD(model: TransformerXL, token_BT: Tensor) -> Tensor:
    """The texts read in segments, as in training."""
    return read(model.train(), token_BT, SIZES, FAR)[0].detach()


def evaluated(model: TransformerXL, token_BT: Tensor, sizes: list[int]) -> Tensor:
    """The texts read in segments of these sizes with the memory of evaluation."""
    memory, hiddens = model.eval().fresh_memory(len(token_BT)), []
    with torch.inference_mode():
        for segment_BT in token_BT.split(sizes, dim=1):
            hidden_BTD, memory = model(segment_BT, memory, FAR)
            hiddens.append(hidden_BTD)
    return torch.cat(hiddens, dim=1)


def assert_all_have_gradients(model: TransformerXL) -> None:
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


@pytest.mark.parametrize("model", combinations("below"), indirect=True)
def test_segments_equal_one_pass(model: TransformerXL, token_BT: Tensor, hidden_BTD: Tensor) -> None:
    """And so do single tokens."""
    for sizes in ([5], [1] * 5):
        torch.testing.assert_close(evaluated(model, token_BT, sizes), hidden_BTD)


def test_the_future_is_invisible(hidden_BTD: Tensor) -> None:
    torch.testing.assert_close(hidden_BTD[2, :3], hidden_BTD[0, :3])
    assert not torch.isclose(hidden_BTD[2, 3:], hidden_BTD[0, 3:]).all(-1).any()


def test_rows_of_a_batch_do_not_mix(model: TransformerXL, token_BT: Tensor, hidden_BTD: Tensor) -> None:
    torch.testing.assert_close(evaluated(model, token_BT[1:2], SIZES)[0], hidden_BTD[1])


def test_evaluation_remembers_what_training_remembers(model: TransformerXL, token_BT: Tensor) -> None:
    """Keys and values, where they can be remembered, equal hidden states in a memory that forgets."""
    context = Context(tgt_len=3, mem_len=2)
    trained, fresh = None, model.fresh_memory(3)
    for segment_BT in token_BT.split([3, 2], dim=1):
        one, trained = model(segment_BT, trained, context)
        with torch.inference_mode():
            two, fresh = model(segment_BT, fresh, context)
        torch.testing.assert_close(two, one.detach())
        assert fresh.length == trained.length == 2


def test_a_layer_remembers_what_it_read_or_what_it_returned(model: TransformerXL, token_BT: Tensor) -> None:
    states: list[tuple[Tensor, Tensor]] = []
    hooks = [layer.register_forward_hook(lambda _, args, out: states.append((args[0], out))) for layer in model.layers]
    with torch.no_grad():
        memory = model(token_BT, None, FAR).memory
    for hook in hooks:
        hook.remove()
    for layer, state, layer_BMD in zip(model.layers, states, memory.layers, strict=True):
        assert torch.equal(layer_BMD, layer.read(state[model.config.recurrence == "same"]))


def test_memory_is_detached_bounded_and_never_written_to(model: TransformerXL, token_BT: Tensor) -> None:
    """And every parameter gets a gradient where there is a memory."""
    model.zero_grad()
    memory = model.train()(token_BT[:, :2], None, Context(mem_len=1)).memory
    assert memory.length == 1
    assert not any(layer.requires_grad for layer in memory.layers)
    before = [layer.clone() for layer in memory.layers]
    nll_BT, _ = model.nll(token_BT[:, 2:4], token_BT[:, 3:], memory, FAR)
    nll_BT.mean().backward()
    assert all(torch.equal(a, b) for a, b in zip(before, memory.layers, strict=True))
    assert_all_have_gradients(model)


def test_a_segment_of_one_token_gives_every_parameter_a_gradient(model: TransformerXL, token_BT: Tensor) -> None:
    model.zero_grad()
    nll_BT, _ = model.train().nll(token_BT[:, :1], token_BT[:, 1:2], None, FAR)
    nll_BT.mean().backward()
    assert_all_have_gradients(model)
