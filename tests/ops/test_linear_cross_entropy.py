"""The loss of the head, in pieces, against its definition."""

import weakref
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.ops.conftest import LargestTensor
from txl.ops import linear_cross_entropy as module
from txl.ops import onednn
from txl.ops.linear_cross_entropy import linear_cross_entropy


def case(n_token: int, n_word: int, width: int = 5) -> tuple[Tensor, ...]:
    """Hidden states, weight, bias, targets, and a weight for each token."""
    leaves = [
        torch.randn(*shape, dtype=torch.float64)
        for shape in ((n_token, width), (n_word, width), (n_word,))
    ]
    return (*leaves, torch.randint(n_word, (n_token,)), torch.randn(n_token, dtype=torch.float64))


def definition(hidden_LE: Tensor, weight_VE: Tensor, bias_V: Tensor, target_L: Tensor) -> Tensor:
    logprob_LV = (hidden_LE @ weight_VE.T + bias_V).log_softmax(-1)
    return -logprob_LV.gather(1, target_L[:, None])[:, 0]


@pytest.mark.parametrize("same_weight", [False, True])
@pytest.mark.parametrize(("n_token", "n_word"), [(1, 1), (13, 7), (8, 7), (0, 7), (3, 29)])
def test_pieces_compute_what_the_definition_says(
    n_token: int, n_word: int, same_weight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of 4 tokens, and of 1 where a row is longer than the budget. Gradients for any weights of the tokens, or
    made with the loss for one weight of all."""
    monkeypatch.setattr(module, "BUDGET", {"cpu": 28})
    *leaves, target_L, weight_L = case(n_token, n_word)
    upstream_L = torch.full_like(weight_L, 0.3) if same_weight else weight_L
    found = []
    for loss in (partial(linear_cross_entropy, same_weight=same_weight), definition):
        own = [leaf.clone().requires_grad_() for leaf in leaves]
        nll_L = loss(*own, target_L)
        found.append([nll_L, *torch.autograd.grad(nll_L, own, upstream_L)])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)
    monkeypatch.setattr(module, "checkpoint", None)  # without gradients nothing is recomputed
    hidden, weight, bias = leaves
    parts = [x.split([n_word // 2, 0, n_word - n_word // 2]) for x in (weight, bias)]
    with torch.no_grad():
        for tables in (leaves[1:], parts):
            torch.testing.assert_close(
                linear_cross_entropy(hidden, *tables, target_L), found[1][0].detach()
            )


def test_logits_of_a_chunk_are_gone_before_the_next_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory is that of one chunk; and where logits lie beside others, how much it is depends on the allocator."""
    made: list[weakref.ref[Tensor]] = []
    alive: list[int] = []
    product = module.linear

    def watched(*args: Tensor) -> Tensor:
        alive.append(sum(one() is not None for one in made))
        logit_CV = product(*args)
        made.append(weakref.ref(logit_CV))
        return logit_CV

    monkeypatch.setattr(module, "BUDGET", {"cpu": 28})
    monkeypatch.setattr(module, "linear", watched)
    *leaves, target_L, _ = case(13, 7)
    linear_cross_entropy(
        *(leaf.requires_grad_() for leaf in leaves), target_L, same_weight=True
    ).sum().backward()
    assert alive == [0] * 4


def test_a_promise_of_one_weight_that_is_broken_gives_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But hidden states their gradients, which do not need it."""
    monkeypatch.setattr(module, "BUDGET", {"cpu": 28})
    *leaves, target_L, weight_L = case(13, 7)
    own = [leaf.requires_grad_() for leaf in leaves]
    hidden, *shared = torch.autograd.grad(
        linear_cross_entropy(*own, target_L, same_weight=True), own, weight_L
    )
    assert all(x.isnan().all() for x in shared)
    (expected,) = torch.autograd.grad(definition(*own, target_L), own[:1], weight_L)
    torch.testing.assert_close(hidden, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_weights_get_a_gradient_that_is_summed_in_float32(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUDGET", {"cpu": 7 * 64})
    *leaves, target_L, _ = case(2048, 7)
    exact = [leaf.clone().requires_grad_() for leaf in leaves]
    nll_L = definition(*exact, target_L)
    expected = [nll_L.detach(), *torch.autograd.grad(nll_L.mean(), exact)]
    errors = []
    for same_weight in (False, True):
        own = [leaf.float().requires_grad_() for leaf in leaves]
        with torch.autocast("cpu", dtype):
            nll_L = linear_cross_entropy(*own, target_L, same_weight=same_weight)
        found = [nll_L, *torch.autograd.grad(nll_L.mean(), own)]
        assert [x.dtype for x in found] == [torch.float32] * 4
        errors.append(
            [
                float((x - y).detach().norm() / y.norm())
                for x, y in zip(found, expected, strict=True)
            ]
        )
    recomputed, made = errors
    assert made[0] == pytest.approx(recomputed[0], rel=1e-4)
    assert made[1] <= 1.01 * recomputed[1]
    assert all(one < 0.8 * other for one, other in zip(made[2:], recomputed[2:], strict=True))


def test_in_bfloat16_gradients_that_take_the_place_of_logits_are_those_of_autograd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As near to the exact ones, in groups of rows the last of which is shorter."""
    monkeypatch.setattr(onednn, "CAN_PACK", torch.ops.mkldnn._is_mkldnn_bf16_supported())
    *leaves, target_L, _ = case(203, 31)
    exact = [leaf.clone().requires_grad_() for leaf in leaves]
    expected = torch.autograd.grad(definition(*exact, target_L).mean(), exact)
    found, errors = [], []
    for in_cache in (2**20, 31 * 20):
        monkeypatch.setattr(module, "IN_CACHE", in_cache)
        own = [leaf.float().requires_grad_() for leaf in leaves]
        with torch.autocast("cpu", torch.bfloat16), LargestTensor() as largest:
            found.append(linear_cross_entropy(*own, target_L, same_weight=True))
        made = torch.autograd.grad(found[-1].mean(), own)
        errors.append(
            [float((x - y).norm() / y.norm()) for x, y in zip(made, expected, strict=True)]
        )
    assert largest.elements == 203 * 31  # of the logits, in 16 bits
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-6)
    assert all(
        0 < one < 1.2 * other < 0.02 for one, other in zip(errors[1], errors[0], strict=True)
    )


@pytest.mark.parametrize("gap", [101.0, 200.0])
def test_in_bfloat16_a_word_of_hardly_any_probability_has_its_nats(
    gap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """e^-101 has a few digits in float32, and e^-200 is 0: their logarithms are taken from the logits."""
    monkeypatch.setattr(module, "IN_CACHE", 8)
    weight_VE, target_L = torch.tensor([[0.0], [-gap]], requires_grad=True), torch.arange(64) % 2
    with torch.autocast("cpu", torch.bfloat16):
        nll_L = linear_cross_entropy(
            torch.ones(64, 1), weight_VE, torch.zeros(2), target_L, same_weight=True
        )
    assert nll_L.tolist() == [0.0, gap] * 32


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_softmax_is_never_in_half_precision(dtype: torch.dtype, needs_grad: bool) -> None:
    """In which 300 words of the same logit have not the probability 1."""
    zeros = tuple(
        torch.zeros(*n, dtype=dtype, requires_grad=needs_grad) for n in ((2, 3), (300, 3), (300,))
    )
    expected = torch.full((2,), 300.0).log()
    target_L = torch.tensor([0, 299])
    torch.testing.assert_close(linear_cross_entropy(*zeros, target_L), expected)
    with torch.autocast("cpu", dtype):
        torch.testing.assert_close(
            linear_cross_entropy(*(x.float() for x in zeros), target_L), expected
        )


@pytest.mark.parametrize("same_weight", [False, True])
def test_there_are_never_more_logits_than_the_budget_and_none_are_kept(
    same_weight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUDGET", {"cpu": 5000})
    hidden_LE, weight_VE, bias_V, target_L, _ = case(300, 200)
    kept = []
    with LargestTensor() as largest:
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: kept.append(x.numel()) or x, lambda x: x
        ):
            leaves = hidden_LE.requires_grad_(), weight_VE.requires_grad_(), bias_V
            nll_L = linear_cross_entropy(*leaves, target_L, same_weight=same_weight)
        nll_L.sum().backward()
    assert 200 * 20 < largest.elements <= 5000
    assert max(kept, default=0) <= 300 * 5
