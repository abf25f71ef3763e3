"""DeBERTa's disentangled attention against the paper's formula."""

import pytest
from torch import Tensor

from tests.equations.loops import SIZES, D, H, N, assert_same, attended, attention_with, by_loop, tokens
from txl import Span


@pytest.mark.parametrize(("M", "T"), SIZES)
@pytest.mark.parametrize("clamp_len", [-1, 2])
@pytest.mark.parametrize("k", [1, 3, 30])
def test_attention_is_the_formula(M: int, T: int, clamp_len: int, k: int) -> None:
    """He et al. 2021, eq. 3 and 4: [Qc_i Kc_j + Qc_i Kr_delta(i,j) + Kc_j Qr_delta(j,i)] / sqrt(3 H)."""
    attention, pos = attention_with("deberta", max_distance=k)
    W_kr, W_qr = (net.weight.view(N, H, D) for net in (pos.kr_net, pos.qr_net))

    def delta(relative: int) -> int:
        """Eq. 3, of i - j."""
        if relative <= -k:
            return 0
        return 2 * k - 1 if relative >= k else relative + k

    def logit(n: int, q: Tensor, key: Tensor, i: int, j: int) -> Tensor:
        distance = min(i - j, clamp_len) if clamp_len > 0 else i - j
        content_to_position = q @ (W_kr[n] @ pos.p_RD[delta(distance)])
        position_to_content = key @ (W_qr[n] @ pos.p_RD[delta(-distance)])
        return (q @ key + content_to_position + position_to_content) / (3 * H) ** 0.5

    x_SD = tokens(M, T)
    assert_same(attended(attention, x_SD, Span(M, T, clamp_len=clamp_len)), by_loop(attention, x_SD, M, logit=logit))
