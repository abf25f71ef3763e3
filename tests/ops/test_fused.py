"""Fused attention against the definition, run by Triton's interpreter; lab/benchmarks/gpu_check.py asks a GPU."""

from functools import partial

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is published for Linux only", exc_type=ImportError)

from txl import Context, ModelConfig, TransformerXL
from txl.attention_rules import use_attention
from txl.ops.rel_attention import fused as in_triton
from txl.ops.rel_attention import launch, rel_attention
from txl.ops.rel_attention.fused import fused, operator
from txl.ops.rel_attention.launch import Tile
from txl.ops.rel_attention.naive import naive

TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3}  # the interpreter has no bfloat16 dot


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles at the sizes an interpreter can do."""
    monkeypatch.setattr(launch, "TILES", {key: Tile(16, 4, 2) for key in launch.TILES})


@pytest.fixture(params=[0, 1], ids=["three_passes", "kept"])
def keep_mib(request: pytest.FixtureRequest) -> int:
    """Both ways of the backward pass."""
    return request.param


def inputs(
    B: int, N: int, T: int, S: int, H: int, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """q, k, v as a projection leaves them, (B, L, N, H) in memory with heads before length; r; u and w in float32."""

    def heads(L: int) -> Tensor:
        return torch.randn(B, L, N, H).to(dtype).transpose(1, 2)

    shared = [torch.randn(S, N, H).to(dtype), *torch.randn(2, N, H)]
    return [x.requires_grad_() for x in (heads(T), heads(S), heads(S), *shared)]


def in_float64(tensors: list[Tensor]) -> list[Tensor]:
    return [x.detach().double().requires_grad_() for x in tensors]


def with_gradients(attention, args: list[Tensor], dout: Tensor, **options: float) -> list[Tensor]:
    out = attention(*args, scale=args[0].shape[3] ** -0.5, **options)
    return [out.detach(), *torch.autograd.grad(out, args, dout.to(out.dtype))]


def assert_close(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Each tensor to `tolerance` of the expected one's largest entry."""
    for name, x, y in zip(
        ("out", "dq", "dk", "dv", "dr", "du", "dw"), found, expected, strict=True
    ):
        assert x.shape == y.shape
        off = (x.double() - y).abs().max()
        assert off <= tolerance * max(1.0, y.abs().max().item()), f"{name} is off by {off:.1e}"


SHAPES = [
    # B, N, T, S, H, window, keep_mib: both ways of the backward pass
    (1, 1, 1, 1, 8, -1, 0),
    (2, 1, 1, 37, 8, -1, 1),
    (2, 2, 7, 19, 8, 5, 1),
    (1, 1, 37, 53, 41, -1, 1),
    (1, 1, 17, 51, 128, 29, 1),
    (1, 2, 16, 48, 16, 32, 0),
    (1, 1, 23, 23, 41, -1, 0),
    (1, 1, 23, 61, 8, 60, 0),
]


@pytest.mark.parametrize(("B", "N", "T", "S", "H", "window", "keep_mib"), SHAPES)
def test_fused_equals_the_definition_in_values_and_gradients(
    B, N, T, S, H, window, keep_mib
) -> None:
    args, dout = inputs(B, N, T, S, H), torch.randn(B, N, T, H)
    expected = with_gradients(naive, in_float64(args), dout.double(), window=window)
    found = with_gradients(fused, args, dout, window=window, keep_mib=keep_mib)
    assert_close(found, expected, TOLERANCE[torch.float32])


def test_clamped_distances_are_distances_like_others() -> None:
    """Their rows of r are alike, each with a gradient of its own; the promise that they are is not needed here."""
    args, dout = inputs(1, 1, 7, 23, 8), torch.randn(1, 1, 7, 8)
    with torch.no_grad():
        args[3][:17] = args[3][17].clone()
    expected = with_gradients(naive, in_float64(args), dout.double())
    by_name = partial(rel_attention, impl="fused", clamp_len=5)
    assert_close(with_gradients(by_name, args, dout), expected, TOLERANCE[torch.float32])


@pytest.mark.slow
def test_tiles_as_large_as_on_a_gpu_change_nothing(
    keep_mib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles of 64 turn in halves."""
    monkeypatch.setattr(launch, "TILES", {key: Tile(64, 4, 2) for key in launch.TILES})
    args, dout = inputs(1, 1, 65, 97, 24), torch.randn(1, 1, 65, 24)
    expected = with_gradients(naive, in_float64(args), dout.double(), window=70)
    found = with_gradients(fused, args, dout, window=70, keep_mib=keep_mib)
    assert_close(found, expected, TOLERANCE[torch.float32])


@pytest.mark.parametrize("sides", [(16, 32, 64), (64, 32, 16)])
def test_kept_gradients_do_not_depend_on_tiles(
    sides: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel may read a tile that another, with smaller ones, has written only in part."""
    of = dict(zip(("kept_keys", "kept_queries", "kept_places"), sides, strict=True))
    monkeypatch.setattr(
        launch, "TILES", {key: Tile(of.get(key[0], 16), 4, 2) for key in launch.TILES}
    )
    args, dout = inputs(1, 1, 35, 71, 8), torch.randn(1, 1, 35, 8)
    expected = with_gradients(naive, in_float64(args), dout.double(), window=43)
    assert_close(with_gradients(fused, args, dout, window=43), expected, TOLERANCE[torch.float32])


def test_sequences_may_be_taken_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last part may be smaller; values that are dropped are those of the whole batch."""
    monkeypatch.setattr(in_triton, "PROGRAMS", 2)  # so that parts of dr are of several sequences
    args, dout = inputs(3, 1, 5, 9, 8), torch.randn(3, 1, 5, 8)

    def found(keep_mib: int) -> list[Tensor]:
        torch.manual_seed(1)
        return with_gradients(fused, args, dout, dropout=0.3, keep_mib=keep_mib)

    expected = [x.double() for x in found(0)]
    monkeypatch.setattr("txl.ops.rel_attention.fused.sequences_that_fit", lambda call, mib: 2)
    assert_close(found(1), expected, TOLERANCE[torch.float32])


@pytest.mark.parametrize(
    ("mib", "n_sequence"), [(0, 0), (5, 0), (6, 1), (11, 1), (65, 10), (120, 20), (999, 20)]
)
def test_as_many_sequences_are_kept_as_fit_in_parts_of_one_size(mib: int, n_sequence: int) -> None:
    """A sequence takes 4 heads x 512 queries x 768 keys x 4 bytes = 6 MiB: 20 in parts of at most 11 are 10 and 10."""
    q, k = torch.empty(20, 4, 512, 8), torch.empty(20, 4, 767, 8)
    call = launch.Call(q, q, k, k, k[0], None, 8, 1.0, -1, 0.0)
    assert in_triton.sequences_that_fit(call, mib) == n_sequence


@pytest.mark.parametrize("window", [-1, 40])
def test_several_programs_may_share_the_keys_of_a_query(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few queries over a long memory; the last splits see nothing where the window or the future hides their keys."""
    monkeypatch.setattr(launch, "KEYS_PER_SPLIT", 20)
    args = inputs(1, 1, 3, 131, 8)
    expected = naive(*in_float64(args), scale=0.3, window=window)
    torch.testing.assert_close(
        fused(*args, scale=0.3, window=window).double(), expected, rtol=0, atol=1e-5
    )


def test_half_precision_sums_in_float32_and_gives_each_gradient_in_its_inputs_dtype(
    keep_mib: int,
) -> None:
    dtype = torch.float16
    args, dout = inputs(1, 1, 17, 23, 24, dtype), torch.randn(1, 1, 17, 24).to(dtype)
    found = with_gradients(fused, args, dout, keep_mib=keep_mib)
    assert_close(found, with_gradients(naive, in_float64(args), dout.double()), TOLERANCE[dtype])
    assert [x.dtype for x in found] == [dtype] * 5 + [torch.float32] * 2


def test_inputs_may_be_slices_of_one_projection_and_gradients_may_be_expanded() -> None:
    """Rows then start wherever they happen to, and strides may be zero; the output joins its heads without a copy."""
    qkv = torch.randn(1, 23, 3 * 2 * 20 + 1)[..., 1:]
    q, k, v = (x.unflatten(-1, (2, 20)).transpose(1, 2) for x in qkv.chunk(3, dim=-1))
    shared = [torch.randn(23, 2, 20), *torch.randn(2, 2, 20)]
    args = [x.requires_grad_() for x in (q[:, :, 10:], k, v.mT.contiguous().mT, *shared)]
    dout = torch.randn(1).expand(1, 2, 13, 20)
    expected = with_gradients(naive, in_float64(args), dout.double())
    found = with_gradients(fused, args, dout)
    assert_close(found, expected, TOLERANCE[torch.float32])
    assert found[0].transpose(1, 2).is_contiguous()


@pytest.mark.slow
@pytest.mark.parametrize(("window", "keep_mib"), [(-1, 1), (11, 0)])
def test_dropout_keeps_its_share_in_both_directions(
    window: int, keep_mib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask is read off a run whose values are the identity, then applied to the definition.

    It is drawn from the generator, and does not depend on tiles: those of the backward are of several sizes.
    """
    sides = {"queries": 32, "places": 32, "kept_keys": 32}
    monkeypatch.setattr(
        launch, "TILES", {key: Tile(sides.get(key[0], 16), 4, 2) for key in launch.TILES}
    )
    B, N, T, S, H = 1, 1, 19, 32, 32
    args, dout = inputs(B, N, T, S, H), torch.randn(B, N, T, H)
    options = {"scale": H**-0.5, "window": window}
    eye = torch.eye(S).expand(B, N, S, H)
    torch.manual_seed(3)
    keep, other = (
        fused(*args[:2], eye, *args[3:], **options, dropout=0.25).detach() != 0 for _ in range(2)
    )
    torch.manual_seed(3)
    found = with_gradients(fused, args, dout, window=window, dropout=0.25, keep_mib=keep_mib)

    exact = in_float64(args)
    eye = eye.double()
    prob = naive(*exact[:2], eye, *exact[3:], **options)
    kept = keep[prob > 0].double()
    assert abs(kept.mean() - 0.75) < 5 * (0.25 * 0.75 / kept.numel()) ** 0.5
    assert not torch.equal(keep, other)
    out = (prob * keep / 0.75) @ exact[2]
    expected = [out.detach(), *torch.autograd.grad(out, exact, dout.double())]
    assert_close(found, expected, TOLERANCE[torch.float32])


def test_the_operator_is_registered_as_it_behaves() -> None:
    """And a compiler makes one graph of it."""
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    args, dout = inputs(1, 1, 5, 7, 8), torch.randn(1, 1, 5, 8)
    torch.library.opcheck(operator.custom_op, (*args, None, 0.5, -1, 0.0, 1), test_utils=checks)
    compiled = torch.compile(fused, backend="aot_eager", fullgraph=True)
    assert_close(
        with_gradients(compiled, args, dout),
        [x.double() for x in with_gradients(fused, args, dout)],
        1e-6,
    )


def test_what_cannot_be_served_is_refused() -> None:
    q, k, v, r, u, w = inputs(1, 1, 3, 5, 8)
    with pytest.raises(ValueError, match="must share float32, bfloat16 or float16"):
        fused(q, k, v.double(), r, u, w, scale=1.0)
    with pytest.raises(ValueError, match="heads of up to 128, not 136"):
        fused(*inputs(1, 1, 3, 5, 136), scale=1.0)
    with pytest.raises(ValueError, match="5 queries need as many keys"):
        fused(k, q, q, r, u, w, scale=1.0)
    with pytest.raises(ValueError, match="dropout must be at least 0"):
        fused(q, k, v, r, u, w, scale=1.0, dropout=1.0)


def test_a_models_budget_is_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    from txl.ops.rel_attention import IMPLEMENTATIONS

    asked = []
    monkeypatch.setitem(
        IMPLEMENTATIONS,
        "fused",
        lambda *args, keep_mib, **options: asked.append(keep_mib) or args[0],
    )
    model = TransformerXL(
        ModelConfig(n_token=5, n_layer=2, n_head=1, d_head=4, d_model=4, d_inner=4)
    )
    use_attention(model, "auto", keep_mib=3)
    for layer in model.layers:  # use_attention would ask for a GPU
        layer.attn.rule.impl = "fused"
    model(torch.zeros(1, 2, dtype=torch.long), None, Context())
    assert asked == [3, 3]
