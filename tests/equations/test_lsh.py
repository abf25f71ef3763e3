"""Attention within buckets: loops from the definition, the sorted form against the full matrix, recall."""

import pytest
import torch
from torch import Tensor

from txl import ModelConfig, Span
from txl.attention_rules.lsh import LshAttention, sorted_chunks
from txl.positions.none import NoPosition

B, N, H = 2, 2, 4


def kernel_of(**settings: int) -> LshAttention:
    config = {"n_token": 5, "n_head": N, "d_head": H, "position": "none"} | settings
    return LshAttention(ModelConfig(**config)).double()


def operands(span: Span, n_bucket: int, n_round: int) -> tuple[list[Tensor], Tensor]:
    shapes = ((B, N, span.n_new, H), (B, N, span.n_key, H), (B, N, span.n_key, H))
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    return leaves, torch.randint(0, n_bucket, (n_round, B, N, span.n_key))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_key_of_zeros_is_no_trouble_in_16_bits(dtype: torch.dtype) -> None:
    kernel, span = kernel_of().to(dtype), Span(0, 6)
    q, k, v = (torch.zeros(B, N, 6, H, dtype=dtype) for _ in range(3))
    out = kernel(
        q,
        k,
        v,
        pos=NoPosition(ModelConfig(n_token=5, n_head=N, d_head=H)),
        feats=q.new_empty(0),
        span=span,
    )
    assert out.isfinite().all()


def full_matrix(
    q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, bucket_RBNS: Tensor, *, reach: int, span: Span
) -> Tensor:
    """`sorted_chunks` by its definition, with the matrix of all pairs."""
    at_S = torch.arange(span.n_key, device=q_BNTH.device)
    same_RBNSS = bucket_RBNS[..., :, None] == bucket_RBNS[..., None, :]
    earlier_SS = at_S[:, None] > at_S[None, :]
    rank_RBNS = (same_RBNSS & earlier_SS).sum(-1)  # earlier tokens of the same bucket
    near_RBNSS = rank_RBNS[..., :, None] - rank_RBNS[..., None, :] <= reach
    seen_BNSS = (same_RBNSS & near_RBNSS & earlier_SS).any(0)
    seen_BNTS = seen_BNSS[..., span.n_mem :, :] & span.mask_TS(q_BNTH.device)
    itself_TS = at_S[span.n_mem :, None] == at_S[None, :]
    seen_BNTS = seen_BNTS | (itself_TS & ~seen_BNTS.any(-1, keepdim=True))
    logit_BNTS = (q_BNTH @ k_BNSH.mT).masked_fill(~seen_BNTS, -torch.inf)
    return logit_BNTS.softmax(-1) @ v_BNSH


SPANS = [(0, 1, 1, -1), (0, 7, 1, 4), (0, 7, 100, -1), (5, 1, 3, -1), (5, 1, 8, 1)]
SPANS += [(9, 17, 1, 20), (9, 17, 3, -1), (9, 17, 8, 4), (30, 12, 3, 20), (30, 12, 100, -1)]


@pytest.mark.parametrize(("M", "T", "reach", "window"), SPANS)
def test_sorted_chunks_equal_the_full_matrix(M: int, T: int, reach: int, window: int) -> None:
    span = Span(M, T, window=window)
    for n_round, n_bucket in ((1, 1), (2, 3), (3, 50)):
        leaves, bucket_RBNS = operands(span, n_bucket, n_round)
        full = full_matrix(*leaves, bucket_RBNS, reach=reach, span=span)
        fast = sorted_chunks(*leaves, bucket_RBNS, reach=reach, span=span)
        torch.testing.assert_close(fast, full, rtol=0, atol=1e-9)
        upstream = torch.randn_like(full)
        grads = [torch.autograd.grad(out, leaves, upstream) for out in (fast, full)]
        torch.testing.assert_close(*grads, rtol=0, atol=1e-9)


@pytest.mark.parametrize("window", [-1, 3])
def test_the_rule_is_the_formula(window: int) -> None:
    """Kitaev et al. 2020: hash, share queries and keys, join rounds, look at oneself only where nothing else is."""
    kernel, pos = (
        kernel_of(lsh_round=2, lsh_bucket=6, lsh_reach=2),
        NoPosition(ModelConfig(n_token=5, d_head=H)),
    )
    span = Span(6, 9, window=window)
    x_BNSH, v_BNSH = torch.randn(2, B, N, 15, H).double()
    ours = kernel(x_BNSH[:, :, 6:], x_BNSH, v_BNSH, pos=pos, feats=x_BNSH.new_empty(0), span=span)
    n_alone = 0
    for b, n in ((b, n) for b in range(B) for n in range(N)):
        x, v, buckets = x_BNSH[b, n], v_BNSH[b, n], []
        for R in kernel.rotation_RHK:
            turned = [x[s] @ R for s in range(15)]
            buckets.append([int(torch.cat([t, -t]).argmax()) for t in turned])
        for i in range(6, 15):
            found = (
                j
                for bucket in buckets
                for j in [j for j in range(i) if bucket[j] == bucket[i]][-2:]
            )
            seen = sorted({j for j in found if window < 0 or i - j < window}) or [i]
            n_alone += seen == [i]
            weights = torch.stack(
                [x[i] @ x[j] / x[j].norm() * H**0.5 / H**0.5 for j in seen]
            ).softmax(0)
            expected = sum(w * v[j] for w, j in zip(weights, seen, strict=True))
            torch.testing.assert_close(ours[b, n, i - 6], expected, rtol=0, atol=1e-12)
    assert n_alone > 0
