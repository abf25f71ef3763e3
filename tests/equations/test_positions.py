"""What the equations leave open: shifts, sinusoids, borders of buckets, precision, sharing, refusals."""

import math
import sys
from typing import Any

import pytest
import torch

from tests.equations.loops import D, H, N, bucket
from txl import Context, ModelConfig, Span, TransformerXL
from txl.attention_rules.softmax import is_plain_triangle
from txl.config import UsageError
from txl.ops.numbers import sinusoid
from txl.positions import build_position_encodings
from txl.positions.base import rel_shift, rel_unshift
from txl.training.config import TrainConfig
from txl.training.init import init_weights

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "n_token": 9,
    "n_layer": 2,
    "n_head": N,
    "d_head": H,
    "d_model": D,
    "d_inner": 5,
}


def model_of(position: str, **settings: Any) -> TransformerXL:
    if position == "floater":
        pytest.importorskip("torchdiffeq")
    return TransformerXL(ModelConfig(**SIZES | {"position": position} | settings))


def encoding(position: str, **settings: Any) -> Any:
    """Of the first layer, in float64, with weights from N(0, 1)."""
    pos = model_of(position, **settings).layers[0].attn.pos.double()
    with torch.no_grad():
        for parameter in pos.parameters():
            parameter.normal_()
    return pos


def test_sinusoids_are_the_formula() -> None:
    """Vaswani et al. 2017, sec. 3.5, sines before cosines; to float32, in which the original keeps the frequencies."""
    for distance in (0, 1, 7, 100):
        angles = [distance / 10000 ** (2 * i / D) for i in range(D // 2)]
        expected = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)]).double()
        found = sinusoid(torch.tensor([distance]), D, torch.float64)[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-7 * (1 + distance))


@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 9), (4, 4), (5, 9), (7, 8)])
def test_shifts_are_gathers_and_each_others_inverse(T: int, S: int) -> None:
    x, visible = torch.randn(2, 3, T, S), Span(S - T, T).mask_TS(CPU)
    shifted, by_distance = rel_shift(x), rel_unshift(x * visible)
    for t in range(T):
        for s in range(S - T + t + 1):
            assert torch.equal(shifted[..., t, s], x[..., t, s + T - 1 - t])
    assert torch.equal(rel_shift(by_distance) * visible, x * visible)
    assert all(not by_distance[..., t, : T - 1 - t].any() for t in range(T))


@pytest.mark.parametrize(
    ("M", "T", "window"), [(0, 5, -1), (0, 5, 4), (0, 5, 5), (3, 5, -1), (2, 1, -1)]
)
def test_a_triangle_is_what_the_mask_says(M: int, T: int, window: int) -> None:
    span = Span(M, T, window=window)
    triangle_TS = torch.ones(T, M + T, dtype=torch.bool).tril()
    assert is_plain_triangle(span) == torch.equal(span.mask_TS(CPU), triangle_TS)


def test_what_is_far_is_not_rounded_to_half_precision() -> None:
    """Angles of sinusoids and of rotations, and linear biases."""
    far, half = torch.tensor([5000]), torch.bfloat16
    assert torch.equal(sinusoid(far, 8, half), sinusoid(far, 8, torch.float32).to(half))
    pos, span = encoding("rotary"), Span(4000, 1)
    q, k = torch.randn(1, 2, 1, H).to(half), torch.randn(1, 2, 4001, H).to(half)
    exact = pos.transform_qk(q.float(), k.float(), pos.prepare(span, like=q.float()), span)
    rounded = pos.transform_qk(q, k, pos.prepare(span, like=q), span)
    assert all(map(torch.equal, rounded, [x.to(half) for x in exact]))
    rows_SN = encoding("alibi").prepare(span, like=torch.zeros(1, dtype=half))
    assert len(rows_SN.unique(dim=0)) == 4001


def test_turning_keeps_distances_however_far_the_window_reaches() -> None:
    pos, q, k = (
        encoding("rotary"),
        torch.randn(1, 2, 1, H).double(),
        torch.randn(1, 2, 1001, H).double(),
    )
    far, near = Span(1000, 1), Span(4, 1)
    far_q, far_k = pos.transform_qk(q, k, pos.prepare(far, like=q), far)
    near_q, near_k = pos.transform_qk(q, k[:, :, -5:], pos.prepare(near, like=q), near)
    torch.testing.assert_close((far_q @ far_k.mT)[..., -5:], near_q @ near_k.mT, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rope_part", [1.0, 0.5])
def test_frequencies_of_rotary_positions(rope_part: float) -> None:
    """Llama 3's by cases, as its authors say them: slow ones divided, fast ones kept."""
    H, base, length = 32, 500.0, 64
    settings: dict[str, Any] = {"rope_base": base, "rope_factor": 8.0, "rope_part": rope_part}
    llama3 = {"rope_scaling": "llama3", "rope_low": 1.5, "rope_high": 3.0}
    n = int(H * rope_part)
    plain = [base ** (-2 * c / n) for c in range(n // 2)]
    expected = []
    for w in plain:
        n_turn = length * w / (2 * math.pi)
        share = (n_turn - 1.5) / 1.5
        if n_turn < 1.5:
            expected.append(w / 8)
        elif n_turn > 3:
            expected.append(w)
        else:
            expected.append((1 - share) * w / 8 + share * w)
    assert len({w / e for w, e in zip(plain, expected, strict=True)}) > 2
    # yarn: s falls from 1 to 0 between the channels that turn 3 and 1.5 times
    first, last = (
        n * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (3, 1.5)
    )
    yarn = {"rope_scaling": "yarn", "rope_low": 1.5, "rope_high": 3.0, "rope_trained_len": length}
    by_channel = []
    in_whole_channels = []
    for c, w in enumerate(plain):
        share = min(1, max(0, (last - c) / (last - first)))
        by_channel.append((1 - share) * w / 8 + share * w)
        share = min(1, max(0, (math.ceil(last) - c) / (math.ceil(last) - math.floor(first))))
        in_whole_channels.append((1 - share) * w / 8 + share * w)
    by_place = {
        f"rope_{name}": tuple(range(i, i + n // 2)) for i, name in ((1, "short"), (2, "long"))
    }
    longrope = {"rope_scaling": "longrope", "rope_trained_len": length} | by_place
    for scaling, frequencies in (
        ({}, plain),
        (yarn | {"rope_truncate": False}, by_channel),
        (yarn, in_whole_channels),
        (longrope, [w / (1 + c) for c, w in enumerate(plain)]),
        ({"rope_scaling": "linear"}, [w / 8 for w in plain]),
        (llama3 | {"rope_trained_len": length}, expected),
    ):
        pos = encoding("rotary", **settings | scaling | {"d_head": H})
        torch.testing.assert_close(pos.freq_C, torch.tensor(frequencies), rtol=1e-5, atol=0)
        assert pos.frequencies(CPU, torch.float64) is pos.frequencies(CPU, torch.float64)
    for_long = encoding("rotary", **settings | longrope | {"d_head": H}).frequencies(
        CPU, torch.float32, reach=length + 1
    )
    expected_C = torch.tensor([w / (2 + c) for c, w in enumerate(plain)])
    torch.testing.assert_close(for_long, expected_C, rtol=1e-5, atol=0)


def test_distances_are_dropped_out_once_for_all_layers() -> None:
    """As the 2019 code does: one mask of R, whose other entries grow by 1 / (1 - p); none in evaluation."""
    config = ModelConfig(**SIZES | {"d_model": 64})
    model, seen = TransformerXL(config, dropout=0.25), []
    pos, span, like = model.layers[0].attn.pos, Span(40, 20), torch.zeros(1)
    plain = sinusoid(span.distances_S(CPU), 64, torch.float32)
    assert torch.equal(pos.eval().prepare(span, like), plain)
    dropped = pos.train().prepare(span, like)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], plain[kept] / 0.75)
    assert kept[plain != 0].float().mean() == pytest.approx(0.75, abs=0.05)
    for layer in model.train().layers:
        layer.attn.pos.r_net.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(torch.zeros(1, 3, dtype=torch.long), None, Context())
    assert len(seen) == 2
    assert torch.equal(*seen)
    assert (seen[0] == 0).any()


@pytest.mark.parametrize(
    ("n_bucket", "max_distance"), [(32, 128), (8, 64), (6, 8), (7, 100), (32, 17)]
)
def test_every_distance_falls_in_its_bucket(n_bucket: int, max_distance: int) -> None:
    pos = encoding("t5", n_bucket=n_bucket, max_distance=max_distance)
    rows_S = pos.prepare(Span(0, 150), like=torch.zeros(1))
    assert rows_S.tolist() == [bucket(d, n_bucket, max_distance) for d in range(149, -1, -1)]


@pytest.mark.parametrize("untie_r", [False, True])
def test_training_of_floater_begins_at_the_sinusoids(untie_r: bool) -> None:
    """Layers share the equation unless they are untied."""
    model = model_of("floater", untie_r=untie_r)
    init_weights(model, TrainConfig())
    first, second = (layer.attn.pos for layer in model.layers)
    assert (first.motion is second.motion) == (first.z0_D is second.z0_D) == (not untie_r)
    span, x_BSD = Span(3, 5), torch.zeros(1, 8, D)
    for pos in (first, second):
        placed_BTD, placed_BMD = pos.qk_input(
            x_BSD[:, 3:], x_BSD[:, :3], first.prepare(span, like=x_BSD), span
        )
        placed_SD = torch.cat([placed_BMD, placed_BTD], dim=1)[0]
        assert torch.equal(placed_SD, sinusoid(torch.arange(8), D, torch.float32))
        assert pos.motion[0].weight.std() > 0.005


TABLES = ["learned_relative", "learned_per_layer", "learned_absolute", "relative_keys"]
REFUSALS: list[tuple[dict[str, Any], str]] = [
    *(
        (
            {"position": name},
            f"--position {name}: learns a row for each position; set the number with",
        )
        for name in TABLES
    ),
    (
        {"position": "rotary", "d_head": 5},
        "--d_head 5: --position rotary rotates pairs of channels; use an even one",
    ),
    (
        {"position": "t5", "max_distance": 16},
        "--max_distance 16: must be above half of --n_bucket 32",
    ),
    ({"position": "t5", "n_bucket": 1}, "--n_bucket 1: --position t5 needs at least 2"),
    ({"position": "floater"}, r"--position floater: needs torchdiffeq, .* pip install torchdiffeq"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSALS, ids=str)
def test_settings_that_do_not_fit_are_refused(
    settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    with pytest.raises(UsageError, match=message):
        build_position_encodings(ModelConfig(**SIZES | settings))
