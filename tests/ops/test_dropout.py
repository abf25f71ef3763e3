"""Dropout: the share, the mean, one mask in both directions."""

import pytest
import torch

from txl.ops.dropout import Dropout, dropout, splitmix


@pytest.mark.parametrize(
    ("p", "dtype"),
    [(0.1, torch.float32), (0.5, torch.bfloat16), (0.9, torch.float64), (1 / 3, torch.float32)],
)
def test_a_share_is_dropped_and_the_rest_scaled(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ones(400, 501, dtype=dtype)
    out = dropout(x, p)
    kept = out != 0
    assert kept.float().mean() == pytest.approx(1 - p, abs=0.005)
    assert torch.equal(
        out[kept],
        torch.full_like(out[kept], round(65536 * p) and 65536 / (65536 - round(65536 * p))),
    )
    for axis in (0, 1):  # no row or column is spared
        assert (kept.float().mean(axis) - (1 - p)).abs().max() < 0.13


@pytest.mark.parametrize("apart", [4, 8, 1024])
def test_neighbours_are_drawn_apart(apart: int) -> None:
    """The four numbers of one word are independent, and those of neighbours, as far as 10^6 of them show."""
    torch.manual_seed(0)
    kept = (dropout(torch.ones(1_000_000 // apart, apart), 0.5) != 0).float() - 0.5
    correlation = 4 * kept.T @ kept / len(kept) - torch.eye(apart)
    assert correlation.abs().max() < 6 / len(kept) ** 0.5


def test_tables_are_splitmix() -> None:
    """Steele et al. 2014, figure 17, in whole numbers."""
    words = splitmix(3, 1000)
    for index in (0, 1, 2, 999):
        z = (3 + index * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        assert int(words[index]) % 2**64 == z ^ z >> 31


def test_masks_have_nothing_in_common() -> None:
    """Of one call and of another, nor the parts of one that has several stretches; as far as 10^5 elements show."""
    torch.manual_seed(0)
    n = 100_000
    masks = [(dropout(torch.ones(n), 0.5) != 0).float() - 0.5 for _ in range(30)]
    long = (dropout(torch.ones(2**22 + 100), 0.5) != 0).float() - 0.5
    masks += [long[begin : begin + n] for begin in range(0, len(long), 2**18)][:-1]
    together = torch.stack(masks)
    correlation = 4 * together @ together.T / n - torch.eye(len(together))
    assert correlation.abs().max() < 6 / n**0.5


def test_masks_have_nothing_in_common_at_any_distance() -> None:
    """Although their bits are stretches of the same tables."""
    torch.manual_seed(0)
    n = 2**19
    kept_2N = (dropout(torch.ones(2, 2 * n), 0.5)[:, :n] != 0).float() - 0.5
    spectrum_2F = torch.fft.rfft(kept_2N, n=2 * n)
    correlation_L = 4 / n * torch.fft.irfft(spectrum_2F[0] * spectrum_2F[1].conj())
    assert correlation_L.abs().max() < 8 / n**0.5


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (0, 4)], ids=str)
def test_the_gradient_has_the_same_mask(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    out = dropout(x, 0.4)
    (grad,) = torch.autograd.grad(out, x, torch.ones_like(out))
    torch.testing.assert_close(out, x * grad)


def test_it_repeats_with_the_seed_and_draws_anew_without() -> None:
    x = torch.randn(50, 50)
    torch.manual_seed(1)
    first, second = dropout(x, 0.3), dropout(x, 0.3)
    torch.manual_seed(1)
    assert torch.equal(dropout(x, 0.3), first)
    assert not torch.equal(first, second)


def test_nothing_or_nearly_all_can_be_dropped() -> None:
    x = torch.randn(5)
    assert dropout(x, 0.0) is x
    assert Dropout(0.5).eval()(x) is x
    assert (dropout(torch.ones(9999), 1 - 1e-9) != 0).sum() < 10
