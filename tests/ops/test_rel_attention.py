"""Law 11: every way to compute relative attention gives the definition's values and gradients, whatever the shape."""

import importlib

import pytest
import torch
from torch import Tensor

from tests.ops.conftest import LargestTensor
from txl.ops.rel_attention import refusal, rel_attention, resolved

dense = importlib.import_module("txl.ops.rel_attention.dense")
NAMES = ("out", "q", "k", "v", "r", "u", "w")
# B, N, T, M, H, window; T (but for single queries) and S = T + M are primes, which no block divides
SHAPES = [
    (1, 1, 1, 0, 5, -1),
    (1, 2, 1, 6, 4, 3),
    (2, 3, 7, 0, 8, -1),
    (1, 1, 2, 0, 41, 1),
    (3, 2, 13, 30, 8, -1),
    (2, 2, 13, 30, 8, 5),
    (1, 4, 31, 6, 3, 17),
    (2, 2, 17, 24, 8, 41),
    (1, 1, 11, 12, 128, -1),
    (1, 2, 293, 156, 8, 97),
    (2, 1, 61, 190, 64, -1),
    (1, 1, 17, 2000, 41, -1),
]


def operands(
    B: int, N: int, T: int, M: int, H: int, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """q, k, v, r, u, w, laid out as the model has them: heads are a view of the last axis of a projection."""
    generator = torch.Generator().manual_seed(T * 1000 + M)
    shapes = [(B, T, N, H), (B, T + M, N, H), (B, T + M, N, H), (T + M, N, H), (N, H), (N, H)]
    drawn = [
        torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype) for shape in shapes
    ]
    return [
        x.transpose(1, 2).requires_grad_() if x.dim() == 4 else x.requires_grad_() for x in drawn
    ]


def value_and_gradients(
    impl: str, inputs: list[Tensor], window: int, dropout: float = 0.0, **more
) -> list[Tensor]:  # type: ignore[no-untyped-def]
    out = rel_attention(*inputs, scale=0.3, window=window, dropout=dropout, impl=impl, **more)
    dout = torch.randn(
        out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    ).to(out.dtype)
    return [out, *torch.autograd.grad(out, inputs, dout)]


def assert_same(found: list[Tensor], expected: list[Tensor], tol: float = 1e-12) -> None:
    for name, a, b in zip(NAMES, found, expected, strict=True):
        assert a.shape == b.shape, name
        torch.testing.assert_close(
            a, b, rtol=tol, atol=tol, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.fixture(params=["whole", "cut"])
def cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks as they are, or so small that every shape is cut into many, with remainders."""
    if request.param == "cut":
        monkeypatch.setattr(dense, "_QUERIES", 7)
        monkeypatch.setattr(dense, "_CACHE", 60)


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fast_equals_the_definition(shape: tuple[int, ...]) -> None:
    *sizes, window = shape
    if sizes[2] * sizes[3] > 2000 and dense._CACHE == 60:
        pytest.skip("thousands of little blocks tell no more than the smaller shapes")
    inputs = operands(*sizes)
    expected = value_and_gradients("naive", inputs, window)
    assert_same(value_and_gradients("dense", inputs, window), expected)
    with torch.no_grad():
        out = rel_attention(*inputs, scale=0.3, window=window, impl="dense")
    torch.testing.assert_close(out, expected[0], rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize(
    "shape",
    [
        (3, 2, 13, 30, 8, -1),
        (2, 2, 13, 30, 8, 5),
        (2, 2, 13, 30, 8, 42),
        (2, 1, 131, 36, 8, -1),
        (3, 2, 1, 9, 8, 4),
    ],
    ids=str,
)
def test_masks_by_row(shape: tuple[int, ...]) -> None:
    """Each query of each row has a first key of its own, up to itself."""
    *sizes, window = shape
    B, _, T, M, _ = sizes
    generator = torch.Generator().manual_seed(2)
    first_BT = (torch.rand(B, T, generator=generator) * (torch.arange(M, M + T) + 2)).long() - 1
    first_BT[0, 0] = M  # sees itself only
    inputs, more = operands(*sizes), {"first_BT": first_BT}
    expected = value_and_gradients("naive", inputs, window, **more)
    assert_same(value_and_gradients("dense", inputs, window, **more), expected)
    with torch.no_grad():
        out = rel_attention(*inputs, scale=0.3, window=window, impl="dense", **more)
    torch.testing.assert_close(out, expected[0], rtol=1e-12, atol=1e-12)
    if window < 0:
        torch.testing.assert_close(expected[0][0, :, 0], inputs[2][0, :, M])


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize(("T", "clamp_len"), [(13, 1), (13, 12), (13, 40), (1, 5), (1, 28)])
def test_clamped_distances_make_no_difference(T: int, clamp_len: int) -> None:
    """To the dense path, which multiplies them once, as to the one that does not ask for them."""
    inputs, far = operands(2, 3, T, 29 - T, 8), max(0, 29 - clamp_len - 1)
    with torch.no_grad():
        inputs[3][:far] = inputs[3][far].clone()
    for window in (-1, 1, 7, 40):
        expected = value_and_gradients("naive", inputs, window)
        assert_same(value_and_gradients("dense", inputs, window, clamp_len=clamp_len), expected)
        with torch.no_grad():
            found = rel_attention(
                *inputs, scale=0.3, window=window, clamp_len=clamp_len, impl="dense"
            )
        torch.testing.assert_close(found, expected[0], rtol=1e-12, atol=1e-12)


def test_operands_of_any_layout_and_of_half_precision() -> None:
    inputs = operands(2, 3, 5, 6, 8)
    expected = value_and_gradients("naive", inputs, -1)
    other = [x.detach().mT.contiguous().mT.requires_grad_() for x in inputs]
    assert_same(value_and_gradients("dense", other, -1), expected)
    for dtype in (torch.bfloat16, torch.float16):
        half = [
            x.detach().to(dtype if i < 4 else torch.float32).requires_grad_()
            for i, x in enumerate(inputs)
        ]
        for found, right in zip(value_and_gradients("dense", half, -1), expected, strict=True):
            assert ((found - right).norm() / right.norm()) < 0.03


@pytest.mark.usefixtures("cut")
def test_dropout_is_the_same_in_both_directions() -> None:
    """The output is linear in the values, so that values of one-hot rows show the probabilities that were kept; with
    these the gradients are those of the definition."""
    B, N, T, M, window, dropout = 2, 2, 9, 8, 11, 0.375  # as it is drawn: a multiple of 2^-16
    S = T + M
    q, k, _, r, u, w = operands(B, N, T, M, S)
    v = torch.eye(S, dtype=torch.float64).expand(B, N, S, S).contiguous().requires_grad_()
    inputs = [q, k, v, r, u, w]
    torch.manual_seed(3)
    found, other = (value_and_gradients("dense", inputs, window, dropout) for _ in range(2))
    assert not torch.equal(found[0], other[0])
    torch.manual_seed(3)
    assert torch.equal(found[0], value_and_gradients("dense", inputs, window, dropout)[0])
    prob = rel_attention(q, k, v.detach(), r, u, w, scale=0.3, window=window, impl="naive")
    kept = found[0].detach() != 0
    torch.testing.assert_close(found[0], prob * kept / (1 - dropout), rtol=1e-12, atol=1e-12)
    assert 0.5 < kept.sum() / (prob > 0).sum() < 0.7
    expected = prob * kept / (1 - dropout) @ v
    dout = torch.randn(
        expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )
    assert_same(found, [expected, *torch.autograd.grad(expected, inputs, dout)])


def test_the_operator_is_registered_as_it_behaves() -> None:
    operator = dense.operator.custom_op
    last = (True, -1, None, None)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(
        operator, (*operands(2, 3, 5, 6, 8), 0.3, 4, 0.0, *last), test_utils=checks
    )


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("T", [1, 13])
@torch.no_grad()
def test_factors_multiply_the_probabilities_which_then_sum_to_one(T: int) -> None:
    B, N, S = 2, 3, 29
    q, k, v, r, u, w = operands(B, N, T, S - T, S)
    one_hot = torch.eye(S, dtype=torch.float64).expand(B, N, S, S)
    log_weight_BTS = torch.randn(B, T, S, dtype=torch.float64)
    for window in (-1, 7):
        prob = rel_attention(q, k, one_hot, r, u, w, scale=0.3, window=window, impl="naive")
        weighed = prob * log_weight_BTS.exp()[:, None]
        expected = weighed / weighed.sum(-1, keepdim=True) @ v
        more = {"window": window, "log_weight_BTS": log_weight_BTS}
        found = rel_attention(q, k, v, r, u, w, scale=0.3, **more)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_without_gradients_memory_grows_with_the_length_alone() -> None:
    n_head = 2 * torch.get_num_threads()
    for M in (1000, 4000):
        inputs = operands(1, n_head, 512, M, 8)
        with LargestTensor() as mode:
            rel_attention(*inputs, scale=0.3, impl="dense")
        assert mode.elements <= n_head * 128 * (M + 512) < n_head * 512 * M


CPU, GPU = torch.device("cpu"), torch.device("cuda")
CHOICES = [  # of auto: the device, the dtype, d_head
    (CPU, torch.float32, 41, "dense"),
    (CPU, torch.bfloat16, 41, "dense"),
    (GPU, torch.bfloat16, 41, "fused"),
    (GPU, torch.float32, 41, "dense"),
    (GPU, torch.bfloat16, 129, "dense"),
]


def test_each_device_is_asked_for_what_it_is_good_at() -> None:
    for device, dtype, d_head, expected in CHOICES:
        if device == GPU:
            pytest.importorskip("triton")
        assert resolved("auto", device, dtype, d_head=d_head) == expected
    assert "needs a GPU" in (refusal("fused", CPU, d_head=41) or "")
    assert "up to 128" in (refusal("fused", GPU, d_head=129) or "")
