"""The kernel of the head's loss against the definition, run by Triton's interpreter."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tests.laws.conftest import SIZES
from tests.ops.test_linear_cross_entropy import case, definition
from txl import ModelConfig
from txl.model.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from txl.ops import linear_cross_entropy as module
from txl.ops.linear_cross_entropy import linear_cross_entropy
from txl.ops.lookup import Room, shapes_for_any_ids
from txl.ops.table import split_table

pytest.importorskip("triton", reason="Triton is published for Linux only", exc_type=ImportError)

from txl.ops.softmax_kernel import gradients_in_place


@pytest.mark.parametrize(("n_token", "n_word"), [(1, 1), (5, 7), (3, 4096), (4, 9001)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_computes_what_the_definition_says(
    n_token: int, n_word: int, dtype: torch.dtype
) -> None:
    """By Triton's interpreter; rows shorter than a block, and of several, with logits far apart."""
    logit_CV = (30 * torch.randn(n_token, n_word)).to(dtype)
    logit_CV[:, 0] = -torch.inf
    target_C = torch.randint(n_word - 1, n_word, (n_token,))
    if n_word == 1:
        logit_CV[:] = 2
    exact_CV = logit_CV.double().requires_grad_()
    expected_C = F.cross_entropy(exact_CV, target_C, reduction="none")
    expected_C.sum().backward()
    found_C = gradients_in_place(logit_CV, target_C)
    torch.testing.assert_close(found_C, expected_C.float(), rtol=1e-5, atol=1e-5)
    atol = 1e-5 if dtype == torch.float32 else 2e-3
    torch.testing.assert_close(logit_CV.double(), exact_CV.grad, rtol=4e-3, atol=atol)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_number_that_is_none_spoils_its_row_in_the_kernel() -> None:
    logit_CV = torch.randn(3, 9)
    logit_CV[1, 4] = torch.nan
    logit_CV[2, 4] = torch.inf
    found_C = gradients_in_place(logit_CV, torch.tensor([0, 1, 2]))
    assert found_C.isnan().tolist() == [False, True, True]
    assert logit_CV.isnan().any(1).tolist() == [False, True, True]


@pytest.mark.parametrize("n_chunk", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_head_by_the_kernel_keeps_no_logits(
    dtype: torch.dtype, n_chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one part and in several."""
    monkeypatch.setattr(module, "_has_kernel", lambda *_: True)
    monkeypatch.setattr(module, "BUDGET", {"cpu": 30 // n_chunk * 40})
    *leaves, target_L, _ = case(30, 40)
    leaves = [leaf.float() for leaf in leaves]
    found = []
    kept = []
    for loss in (partial(linear_cross_entropy, same_weight=True), definition):
        own = [leaf.clone().requires_grad_() for leaf in leaves]
        with (
            torch.autocast("cpu", dtype, enabled=dtype != torch.float32),
            torch.autograd.graph.saved_tensors_hooks(
                lambda x: kept.append(x.numel()) or x, lambda x: x
            ),
        ):
            nll_L = loss(*own, target_L)
        if not found:
            assert max(kept) < 30 * 40
        found.append([nll_L, *torch.autograd.grad(nll_L.mean(), own)])
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(*found, rtol=tolerance, atol=tolerance)


def test_a_row_without_a_target_has_no_nats_and_no_gradient() -> None:
    logit_CV = torch.randn(3, 9)
    expected_CV = logit_CV.clone()
    expected_C = gradients_in_place(expected_CV, torch.tensor([4, 0, 8]))
    found_C = gradients_in_place(logit_CV, torch.tensor([4, -1, 8]))
    torch.testing.assert_close(found_C, expected_C * torch.tensor([1, 0, 1]))
    torch.testing.assert_close(logit_CV, expected_CV * torch.tensor([[1], [0], [1]]))


@pytest.mark.parametrize("n_more", [0, 3])
def test_clusters_with_room_by_the_kernel_are_those_of_the_definition(
    n_more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values, and gradients: those of a tied table are written where they belong."""
    config = ModelConfig(**SIZES | {"n_token": 12, "cutoffs": (3, 7)})
    embedding = AdaptiveEmbedding(config)
    softmax = AdaptiveSoftmax(config, embedding)
    wanted = list(dict.fromkeys([*embedding.parameters(), *softmax.parameters()]))
    ids = torch.tensor([[0, 5, 11, 4, 0, 8, 8, 2, 1, 10]])
    room = Room(config.cluster_sizes, [10, 2 + n_more, 4 + n_more])

    def results() -> list[torch.Tensor]:
        tables: list[torch.Tensor] = []
        nll_BT = softmax.nll(embedding(ids, tables).tanh(), ids, tables, same_weight=True)
        return [nll_BT, *torch.autograd.grad(nll_BT.mean(), wanted)]

    expected = results()
    monkeypatch.setattr(module, "_has_kernel", lambda *_: True)
    with shapes_for_any_ids(room):
        found = results()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_part_of_a_table_that_is_used_twice_has_both_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_has_kernel", lambda *_: True)
    table_VE = torch.randn(12, 6, requires_grad=True)
    hidden_LE = torch.randn(5, 6)
    targets = torch.randint(0, 5, (2, 5))

    def gradient(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        losses = [
            linear_cross_entropy(hidden_LE, parts[1], torch.zeros(5), t, same_weight=True)
            for t in targets
        ]
        return torch.autograd.grad(torch.cat(losses).mean(), table_VE)[0]

    torch.testing.assert_close(
        gradient(split_table(table_VE, [7, 5])), gradient(table_VE.split([7, 5]))
    )
