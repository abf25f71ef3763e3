"""Relative attention against the paper's formula, written as the plainest loop over (query i, key j)."""

import math

import pytest
import torch
from torch import Tensor

from txl import Context, ModelConfig, Span, TransformerXL
from txl.model.attention import Attention
from txl.positions import build_position_encodings
from txl.positions.base import rel_shift, sinusoid

N, H, D = 2, 3, 6


def sinusoid_of(distance: int) -> Tensor:
    return sinusoid(torch.tensor([distance]), D, torch.float64)[0]


def test_sinusoids_are_the_formula() -> None:
    """Vaswani et al. 2017, sec. 3.5, sines before cosines; to float32, in which the original keeps the frequencies."""
    for distance in (0, 1, 7, 100):
        angles = [distance / 10000 ** (2 * i / D) for i in range(D // 2)]
        expected = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)]).double()
        torch.testing.assert_close(sinusoid_of(distance), expected, rtol=0, atol=1e-7 * (1 + distance))


@pytest.mark.parametrize(("M", "T"), [(0, 1), (0, 5), (1, 1), (3, 4), (7, 2), (5, 5)])
@pytest.mark.parametrize("clamp_len", [-1, 1, 4])
@pytest.mark.parametrize("window", [-1, 1, 3])
def test_attention_is_the_formula(M: int, T: int, clamp_len: int, window: int) -> None:
    """Dai et al. 2019, sec. 3.3: A_ij = [q_i k_j + q_i W_r R_(i-j) + u k_j + v W_r R_(i-j)] / sqrt(H)."""
    config = ModelConfig(n_token=5, n_layer=1, n_head=N, d_head=H, d_model=D, d_inner=4)
    pos = build_position_encodings(config)[0]
    attention = Attention(config, pos).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_()
    x_SD = torch.randn(M + T, D).double()
    W_q, W_k, W_v, W_r = (
        net.weight.view(N, H, D) for net in (attention.q_net, attention.k_net, attention.v_net, pos.r_net)
    )

    gathered = torch.zeros(T, N, H).double()
    for n in range(N):
        for t in range(T):
            i = M + t
            seen = [j for j in range(i + 1) if window < 0 or i - j < window]
            logits = []
            for j in seen:
                q, k = W_q[n] @ x_SD[i], W_k[n] @ x_SD[j]
                r = W_r[n] @ sinusoid_of(min(i - j, clamp_len) if clamp_len > 0 else i - j)
                logits.append((q @ k + q @ r + pos.u_NH[n] @ k + pos.v_NH[n] @ r) / H**0.5)
            weights = torch.stack(logits).softmax(0)
            gathered[t, n] = sum(w * (W_v[n] @ x_SD[j]) for w, j in zip(weights, seen, strict=True))
    expected = attention.o_net(gathered.flatten(1))

    span = Span(M, T, clamp_len=clamp_len, window=window)
    feats = pos.prepare(span, like=x_SD)
    ours = attention(x_SD[None, M:], x_SD[None, :M], feats, span)[0]
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 9), (4, 4), (5, 9), (7, 8)])
def test_rel_shift_is_a_gather(T: int, S: int) -> None:
    x = torch.randn(2, 3, T, S)
    shifted = rel_shift(x)
    for t in range(T):
        for s in range(S - T + t + 1):
            assert torch.equal(shifted[..., t, s], x[..., t, s + T - 1 - t])


def test_columns_of_distances_become_columns_of_keys() -> None:
    span = Span(4, 5, clamp_len=6)
    device = torch.device("cpu")
    shifted_TS = rel_shift(span.distances_S(device).expand(1, 1, 5, 9))[0, 0]
    visible_TS = span.mask_TS(device)
    assert torch.equal(shifted_TS[visible_TS], span.distances_TS(device)[visible_TS])


def test_angles_are_not_computed_in_half_precision() -> None:
    far = torch.tensor([5000])
    exact = sinusoid(far, 8, torch.float32)
    torch.testing.assert_close(sinusoid(far, 8, torch.bfloat16), exact.bfloat16(), rtol=0, atol=0)


def test_distances_are_dropped_out_once_for_all_layers() -> None:
    """As the 2019 code does: one mask of R, whose other entries grow by 1 / (1 - p); none in evaluation."""
    config = ModelConfig(n_token=5, n_layer=2, n_head=N, d_head=H, d_model=64, d_inner=4)
    pos = TransformerXL(config, dropout=0.25).layers[0].attn.pos
    span, like = Span(40, 20), torch.zeros(1)
    plain = sinusoid(span.distances_S(like.device), 64, torch.float32)
    assert torch.equal(pos.eval().prepare(span, like), plain)
    dropped = pos.train().prepare(span, like)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], plain[kept] / 0.75)
    assert kept[plain != 0].float().mean() == pytest.approx(0.75, abs=0.05)
    model, seen = TransformerXL(config, dropout=0.25).train(), []
    for layer in model.layers:
        layer.attn.pos.r_net.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(torch.zeros(1, 3, dtype=torch.long), None, Context())
    assert len(seen) == 2
    assert torch.equal(*seen)
    assert (seen[0] == 0).any()
