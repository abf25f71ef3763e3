"""The loss without the logits is the loss with them, and so are its gradients."""

from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from txl.ops import linear_cross_entropy as op
from txl.ops.linear_cross_entropy import blockwise, naive, tiles
from txl.ops.linear_cross_entropy.blockwise import Parameters, Shape


class Case(NamedTuple):
    """Arguments of `grouped_linear_cross_entropy`."""

    hidden_LE: Tensor
    weight_VE: Tensor
    bias_V: Tensor
    target_L: Tensor
    lengths: list[int]
    sizes: list[int]
    more_weight_CE: Tensor | None = None
    more_bias_C: Tensor | None = None


CASES = {
    "one_group": ([13], [37], 0),
    "one_token": ([1], [37], 0),
    "one_word": ([5], [1], 0),
    "one_group_with_entries": ([13], [37], 3),
    "groups": ([13, 5, 7], [11, 17, 2], 2),
    "groups_without_tokens": ([13, 0, 7, 0], [11, 17, 2, 5], 3),
    "no_token_at_all": ([0, 0], [11, 17], 1),
}
WIDTH = 7


def case_of(name: str, dtype: torch.dtype = torch.float64) -> Case:
    lengths, sizes, n_more = CASES[name]
    n_word = [size + n_more * (i == 0) for i, size in enumerate(sizes)]
    parts = [torch.randint(0, n, (length,)) for n, length in zip(n_word, lengths, strict=True)]
    tensors = [
        torch.randn(*shape, dtype=dtype) for shape in ((sum(lengths), WIDTH), (sum(sizes), WIDTH), (sum(sizes),))
    ]
    more = [torch.randn(n_more, WIDTH, dtype=dtype), torch.randn(n_more, dtype=dtype)] if n_more else []
    return Case(*tensors, torch.cat(parts), lengths, sizes, *more)


def with_gradients(function: object, case: Case, weight_L: Tensor) -> list[Tensor]:
    """The loss, and the gradients of sum(weight_L * loss)."""
    floats = [i for i, part in enumerate(case) if isinstance(part, Tensor) and part.is_floating_point()]
    leaves = [part.clone().requires_grad_() if i in floats else part for i, part in enumerate(case)]
    nll_L = function(*leaves)
    (nll_L * weight_L).sum().backward()
    return [nll_L.detach(), *(leaves[i].grad for i in floats)]


def weights(n: int, *, same: bool) -> Tensor:
    return torch.full((n,), 0.3).double() if same else torch.randn(n).double()


def assert_same(ours: list[Tensor], definition: list[Tensor]) -> None:
    for one, other in zip(ours, definition, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that every dimension is cut, unevenly."""
    monkeypatch.setitem(blockwise.TILE, "cpu", 19)
    monkeypatch.setattr(blockwise, "EAGER_TILE", 19)
    monkeypatch.setattr(blockwise, "EAGER_TOKENS", 3)


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Memory that is not filled holds NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=["large_tiles", "small_tiles"])
def tile_size(request: pytest.FixtureRequest) -> None:
    if request.param == "small_tiles":
        request.getfixturevalue("small_tiles")


@pytest.mark.usefixtures("tile_size", "poisoned")
@pytest.mark.parametrize("same", [True, False], ids=["mean", "weighted"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_loss_and_gradients_are_those_of_the_definition(name: str, same: bool) -> None:
    case = case_of(name)
    weight_L = weights(len(case.target_L), same=same)
    ours = with_gradients(op.grouped_linear_cross_entropy, case, weight_L)
    assert_same(ours, with_gradients(naive.grouped_linear_cross_entropy, case, weight_L))


@pytest.mark.usefixtures("tile_size", "poisoned")
@pytest.mark.parametrize("name", sorted(CASES))
def test_logits_computed_twice_are_as_good(name: str) -> None:
    """The way of a GPU, on the CPU."""
    case = case_of(name)
    assert_same(*both_ways(case, torch.float64))


def both_ways(case: Case, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Loss and gradients from `loss` and `gradients`, and from the definition."""
    weight_L = weights(len(case.target_L), same=False)
    definition = with_gradients(naive.grouped_linear_cross_entropy, Case(*map(as_double, case)), weight_L)
    parameters = Parameters(case.weight_VE, case.bias_V, case.more_weight_CE, case.more_bias_C)
    shape = Shape(case.lengths, case.sizes, dtype)
    nll_L, lse_L = blockwise.loss(case.hidden_LE, parameters, case.target_L, shape)
    of = {"of_hidden": True, "of_parameters": True}
    grad, grads = blockwise.gradients(weight_L, case.hidden_LE, parameters, case.target_L, lse_L, shape, **of)
    return [nll_L, grad, *(part for part in grads if part is not None)], definition


def as_double(part: object) -> object:
    return part.double() if isinstance(part, Tensor) and part.is_floating_point() else part


def test_one_table_for_all_tokens_is_the_simple_form() -> None:
    case = case_of("one_group")
    ours = op.linear_cross_entropy(*case[:4])
    torch.testing.assert_close(ours, naive.linear_cross_entropy(*case[:4]))


@pytest.mark.usefixtures("small_tiles")
def test_logits_far_apart_neither_overflow_nor_vanish() -> None:
    hidden_LE, weight_VE = torch.eye(3).double() * 3000, torch.randn(9, 3).double()
    args = (hidden_LE, weight_VE, torch.zeros(9).double(), torch.tensor([0, 4, 8]))
    expected = naive.linear_cross_entropy(*args)
    assert expected.max() > 2000
    torch.testing.assert_close(op.linear_cross_entropy(*args), expected)
    torch.testing.assert_close(op.linear_cross_entropy(hidden_LE.requires_grad_(), *args[1:]), expected)


@pytest.mark.usefixtures("tile_size")
@pytest.mark.parametrize("same", [True, False], ids=["mean", "weighted"])
@pytest.mark.parametrize("frozen", [{0}, {1, 2, 6, 7}, {2, 7}])
def test_what_is_frozen_gets_no_gradient_and_the_others_theirs(frozen: set[int], same: bool) -> None:
    case = case_of("groups")
    weight_L = weights(len(case.target_L), same=same)
    _, *expected = with_gradients(naive.grouped_linear_cross_entropy, case, weight_L)
    floats = [0, 1, 2, 6, 7]
    leaves = [p.clone().requires_grad_(i not in frozen) if i in floats else p for i, p in enumerate(case)]
    (op.grouped_linear_cross_entropy(*leaves) * weight_L).sum().backward()
    for i, grad in zip(floats, expected, strict=True):
        assert (leaves[i].grad is None) == (i in frozen)
        if i not in frozen:
            torch.testing.assert_close(leaves[i].grad, grad)


def test_gradients_can_be_asked_for_twice() -> None:
    case = case_of("groups")
    weight_VE = case.weight_VE.clone().requires_grad_()
    loss = op.grouped_linear_cross_entropy(case[0], weight_VE, *case[2:]).mean()
    once, twice = (torch.autograd.grad(loss, weight_VE, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(once, twice)


@pytest.mark.usefixtures("tile_size")
@pytest.mark.parametrize("same", [True, False], ids=["mean", "weighted"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_sums_and_gradients_stay_in_float32(dtype: torch.dtype, same: bool) -> None:
    case = case_of("groups", torch.float32)
    weight_L = weights(len(case.target_L), same=same).float()

    def under_autocast(*args: object) -> Tensor:
        with torch.autocast("cpu", dtype):
            return op.grouped_linear_cross_entropy(*args)

    ours = with_gradients(under_autocast, case, weight_L)
    exact = with_gradients(naive.grouped_linear_cross_entropy, Case(*map(as_double, case)), weight_L)
    for one, other in zip(ours, exact, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other.float(), rtol=0, atol=0.08 if dtype == torch.bfloat16 else 0.01)


@pytest.mark.usefixtures("tile_size")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_parameters_of_any_type_get_gradients_of_their_own(dtype: torch.dtype) -> None:
    case = case_of("groups", dtype)
    for same in (True, False):
        weight_L = weights(len(case.target_L), same=same).float()
        ours = with_gradients(op.grouped_linear_cross_entropy, case, weight_L)
        exact = with_gradients(naive.grouped_linear_cross_entropy, Case(*map(as_double, case)), weight_L)
        assert [one.dtype for one in ours] == [torch.float32, *[dtype] * 5]
        for one, other in zip(ours, exact, strict=True):
            tolerance = {torch.float32: 1e-5, torch.float16: 0.01, torch.bfloat16: 0.08}[dtype]
            torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("same", [True, False], ids=["mean", "weighted"])
def test_many_small_gradients_add_up_in_half_precision(same: bool) -> None:
    """Summed in bfloat16, the sum would stand still after 256 equal parts."""
    n = 2048
    weight_VE = torch.zeros(4, 2, requires_grad=True)
    weight_L = torch.ones(n) if same else torch.ones(n).index_fill(0, torch.tensor([5]), 1.5)
    with torch.autocast("cpu", torch.bfloat16):
        nll_L = op.linear_cross_entropy(torch.ones(n, 2), weight_VE, torch.zeros(4), torch.ones(n, dtype=torch.int64))
    (nll_L * weight_L).sum().backward()
    torch.testing.assert_close(weight_VE.grad[0], (weight_L.sum() / 4).expand(2), rtol=1e-3, atol=0)


def test_the_backward_pass_fills_no_table_with_zeros() -> None:
    """As it would for the gradients of gradients that were made with the loss."""
    weight_VE = torch.randn(90, 70, requires_grad=True)
    nll_L = op.linear_cross_entropy(torch.randn(3, 70), weight_VE, torch.zeros(90), torch.arange(3))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        nll_L.sum().backward()
    zeros = [event for event in profile.events() if event.name in ("aten::zeros", "aten::zeros_like")]
    assert len(profile.events()) > 5
    assert [event.name for event in zeros if [90, 70] in (event.concrete_inputs or []) + event.input_shapes] == []


class LargestTensor(TorchDispatchMode):
    """Notes the most elements that the memory of any result has."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, tuple | list) else [out]:
            if isinstance(part, Tensor):
                self.elements = max(self.elements, part.untyped_storage().nbytes() // part.element_size())
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_never_are_there_as_many_logits_as_tokens_times_words(dtype: torch.dtype) -> None:
    n_token, n_word = 6000, 3000
    hidden_LE, weight_VE, bias_V = torch.randn(n_token, 2), torch.randn(n_word, 2), torch.zeros(n_word)
    target_L, shape = torch.randint(0, n_word, (n_token,)), Shape([n_token], [n_word], dtype)
    parameters = Parameters(weight_VE, bias_V, None, None)
    of = {"of_hidden": True, "of_parameters": True}
    with LargestTensor() as eager:
        blockwise.loss_and_gradients(hidden_LE, parameters, target_L, shape, of_parameters=True)
    with LargestTensor() as twice:
        nll_L, lse_L = blockwise.loss(hidden_LE, parameters, target_L, shape)
        blockwise.gradients(torch.ones_like(nll_L), hidden_LE, parameters, target_L, lse_L, shape, **of)
    assert n_token * n_word / 100 < twice.elements <= blockwise.TILE["cpu"]
    assert n_token * n_word / 100 < eager.elements <= blockwise.EAGER_TILE < n_token * n_word / 4


def test_nothing_of_the_size_of_the_logits_is_kept_for_the_backward_pass() -> None:
    n_token, n_word = 300, 200
    hidden_LE, weight_VE = torch.randn(n_token, 5, requires_grad=True), torch.randn(n_word, 5, requires_grad=True)
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        op.linear_cross_entropy(hidden_LE, weight_VE, torch.zeros(n_word), torch.arange(n_token) % n_word)
    assert max(kept) == max(n_token, n_word) * 5


def test_without_gradients_to_make_only_the_loss_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(op, "loss_and_gradients")
    case = case_of("groups")
    op.grouped_linear_cross_entropy(*case)
    with torch.no_grad():
        op.grouped_linear_cross_entropy(case.hidden_LE.requires_grad_(), *case[1:])


@pytest.mark.parametrize("is_eager", [True, False])
@pytest.mark.parametrize("name", ["groups", "one_group"])
def test_the_operator_is_registered_in_full(name: str, is_eager: bool) -> None:
    case = case_of(name)
    leaves = [
        part.requires_grad_() if i in (0, 1, 2, 6, 7) and part is not None else part for i, part in enumerate(case)
    ]
    tensors = (*leaves[:3], *leaves[6:], case.target_L)
    torch.library.opcheck(op._operator, (*tensors, case.lengths, case.sizes, torch.float64, is_eager, is_eager))


def test_it_may_stand_in_a_compiled_graph() -> None:
    case = case_of("groups")

    def loss(*args: object) -> Tensor:
        return op.grouped_linear_cross_entropy(args[0] * 2, *args[1:]).mean()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_same(with_gradients(compiled, case, torch.ones(())), with_gradients(loss, case, torch.ones(())))


@pytest.mark.parametrize(("lengths", "sizes"), [([3], [8]), ([4], [9]), ([4], [4, 4])])
def test_groups_that_do_not_fit_are_refused(lengths: list[int], sizes: list[int]) -> None:
    args = torch.zeros(4, 2), torch.zeros(8, 2), torch.zeros(8), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match="are not 4 and 8"):
        op.grouped_linear_cross_entropy(*args, lengths, sizes)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The kernels, through Triton's interpreter."""
    pytest.importorskip("triton", reason="Triton is published for Linux only", exc_type=ImportError)
    from txl.ops.linear_cross_entropy import fused

    monkeypatch.setattr(blockwise, "_tile_functions", lambda device, dtype: fused)
    return fused


@pytest.mark.usefixtures("tile_size")
@pytest.mark.parametrize("name", ["groups", "groups_without_tokens", "one_word"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_kernels_compute_what_the_definition_says(fused: ModuleType, name: str, dtype: torch.dtype) -> None:
    ours, exact = both_ways(case_of(name, dtype), dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    for one, other in zip(ours, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


def test_kernels_take_more_words_than_a_block_and_rows_with_a_gap(
    fused: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "_BLOCK", 8)
    room_TU = torch.randn(3, 24)
    logit_TU, bias_U, target_T = room_TU[:, :21], torch.randn(21), torch.tensor([20, -4, 30])
    state = torch.tensor([-torch.inf, 0.4, 90.0]), torch.tensor([0.0, 1.0, 2.0])
    ours, plain = [part.clone() for part in state], [part.clone() for part in state]
    fused.add_statistics(logit_TU, bias_U, target_T, *ours)
    tiles.add_statistics(logit_TU.clone(), bias_U, target_T, *plain)
    torch.testing.assert_close(ours, plain)
    grad_T, gap = torch.randn(3), room_TU[:, 21:].clone()
    expected = tiles.logit_gradient(logit_TU.clone(), bias_U, target_T, plain[0], grad_T)
    torch.testing.assert_close(fused.logit_gradient(logit_TU, bias_U, target_T, plain[0], grad_T), expected)
    assert torch.equal(room_TU[:, 21:], gap)
