"""A layer as the plainest loop over heads, queries i and keys j, and what each position encoding adds to it."""

import cmath
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from txl import ModelConfig, Span
from txl.model.layer import Layer
from txl.ops.numbers import sinusoid

N, H, D = 2, 4, 6


class Formula(NamedTuple):
    """An encoding. Positions i and j count from the first remembered token."""

    logit: Callable[[int, Tensor, Tensor, int, int], Tensor]
    """Of head n, query and key (H,), and their positions."""
    value: Callable[[int, int], Any] = lambda i, j: 0
    """Added to the value of key j that query i gathers, (H,)."""
    placed: Callable[[int], Any] = lambda p: 0
    """Added to what queries and keys at a position are projected from, (D,)."""
    factor: Callable[[int, int], Any] = lambda i, j: 1
    """Of the probability of position j for query i."""
    added: Callable[[int], Any] = lambda p: 0
    """Added to what the layer reads at a position, (D,)."""


def normed(net: nn.LayerNorm, x_LD: Tensor) -> Tensor:
    centred_LD = x_LD - x_LD.mean(-1, keepdim=True)
    return (
        centred_LD / (centred_LD.square().mean(-1, keepdim=True) + 1e-5).sqrt() * net.weight
        + net.bias
    )


def heads(net: nn.Linear, n_head: int) -> Tensor:
    return net.weight.unflatten(0, (n_head, -1))


def attention_by_loop(layer: Layer, x_SD: Tensor, span: Span, formula: Formula) -> Tensor:
    """What tokens M ... S-1 gather, (T, D), one softmax at a time; Vaswani et al. 2017, eq. 1, with a memory's
    factors of the probabilities, which then sum to 1 again."""
    attn = layer.attn
    W_q, W_k, W_v = (heads(net, attn.n_head) for net in (attn.q_net, attn.k_net, attn.v_net))
    placed = [x_D + formula.placed(p) for p, x_D in enumerate(x_SD)]
    gathered: list[list[Any]] = [[] for _ in range(span.n_mem, span.n_key)]
    for n in range(attn.n_head):
        keys, values = [W_k[n] @ x_D for x_D in placed], [W_v[n] @ x_D for x_D in x_SD]
        for row, i in zip(gathered, range(span.n_mem, span.n_key), strict=True):
            seen, q = (
                [j for j in range(i + 1) if span.window < 0 or i - j < span.window],
                W_q[n] @ placed[i],
            )
            softmax = torch.stack([formula.logit(n, q, keys[j], i, j) for j in seen]).softmax(0)
            counted = [formula.factor(i, j) * a for a, j in zip(softmax, seen, strict=True)]
            weights = [a / sum(counted) for a in counted]
            row.append(
                sum(
                    w * (values[j] + formula.value(i, j))
                    for w, j in zip(weights, seen, strict=True)
                )
            )
    return torch.stack([attn.o_net(torch.cat(row)) for row in gathered])


def layer_by_loop(layer: Layer, x_SD: Tensor, span: Span, formula: Formula) -> Tensor:
    """Vaswani et al. 2017, sec. 3.1, of tokens M ... S-1: norm(x + f(x)), or x + f(norm(x)), of both parts, (T, D)."""
    read_SD = torch.stack([x_D + formula.added(p) for p, x_D in enumerate(x_SD)])
    new_TD = read_SD[span.n_mem :]

    def fed(x_LD: Tensor) -> Tensor:
        (W_1, b_1), (W_2, b_2) = ((net.weight, net.bias) for net in (layer.ff[0], layer.ff[3]))
        return (x_LD @ W_1.T + b_1).clamp(min=0) @ W_2.T + b_2

    if layer.pre_lnorm:
        new_TD = new_TD + attention_by_loop(layer, normed(layer.attn_norm, read_SD), span, formula)
        return new_TD + fed(normed(layer.ff_norm, new_TD))
    new_TD = normed(layer.attn_norm, new_TD + attention_by_loop(layer, read_SD, span, formula))
    return normed(layer.ff_norm, new_TD + fed(new_TD))


def product(n: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
    return q @ k / H**0.5


def clamped(span: Span, distance: int) -> int:
    return min(distance, span.clamp_len) if span.clamp_len > 0 else distance


def sinusoid_of(p: int) -> Tensor:
    return sinusoid(torch.tensor([p]), D, torch.float64)[0]  # test_positions.py has its formula


def none(c: ModelConfig, pos: Any, span: Span) -> Formula:
    return Formula(product)


def rel_sinusoid(c: ModelConfig, pos: Any, span: Span) -> Formula:
    """Dai et al. 2019, sec. 3.3: A_ij = [q_i k_j + q_i W_r R_(i-j) + u k_j + v W_r R_(i-j)] / sqrt(H)."""
    W_r = heads(pos.r_net, N)

    def logit(n: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        r = W_r[n] @ sinusoid_of(clamped(span, i - j))
        return (q @ k + q @ r + pos.u_NH[n] @ k + pos.v_NH[n] @ r) / H**0.5

    return Formula(logit)


def learned_relative(c: ModelConfig, pos: Any, span: Span) -> Formula:
    """The original's attn_type 1: A_ij = [(q_i + u) k_j + q_i r_(i-j) + b_(i-j)] / sqrt(H); the last row, or
    clamp_len - 1, for all beyond it."""
    last = min(c.n_position - 1, span.clamp_len - 1 if span.clamp_len > 0 else c.n_position)

    def logit(n: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        row = min(i - j, last)
        return ((q + pos.u_NH[n]) @ k + q @ pos.r_RNH[row, n] + pos.b_RN[row, n]) / H**0.5

    return Formula(logit)


def relative_keys(c: ModelConfig, pos: Any, span: Span) -> Formula:
    """A_ij = [q_i k_j + q_i W_r P_(i-j)] / sqrt(H), the last row of P for all distances beyond it."""
    W_r = heads(pos.r_net, N)

    def logit(n: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        row = min(clamped(span, i - j), c.n_position - 1)
        return (q @ k + q @ (W_r[n] @ pos.p_RD[row])) / H**0.5

    return Formula(logit)


def shaw(c: ModelConfig, pos: Any, span: Span) -> Formula:
    """Shaw et al. 2018. Eq. 4: e_ij = q_i (k_j + aK_ij) / sqrt(H); eq. 3: z_i = sum_j alpha_ij (v_j + aV_ij);
    a_ij = w_clip(j - i, k)."""

    def row(i: int, j: int) -> int:
        return min(clamped(span, i - j), c.max_distance)

    def logit(n: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        return q @ (k + pos.key_RH[row(i, j)]) / H**0.5

    return Formula(logit, value=lambda i, j: pos.value_RH[row(i, j)])


def deberta(c: ModelConfig, pos: Any, span: Span) -> Formula:
    """He et al. 2021, eq. 3 and 4: [Qc_i Kc_j + Qc_i Kr_delta(i,j) + Kc_j Qr_delta(j,i)] / sqrt(3 H)."""
    W_kr, W_qr, reach = heads(pos.kr_net, N), heads(pos.qr_net, N), c.max_distance

    def delta(relative: int) -> int:
        """Eq. 3, of i - j."""
        if relative <= -reach:
            return 0
        return 2 * reach - 1 if relative >= reach else relative + reach

    def logit(n: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        distance = clamped(span, i - j)
        content_to_position = q @ (W_kr[n] @ pos.p_RD[delta(distance)])
        position_to_content = k @ (W_qr[n] @ pos.p_RD[delta(-distance)])
        return (q @ k + content_to_position + position_to_content) / (3 * H) ** 0.5

    return Formula(logit)


def bucket(d: int, n_bucket: int, max_distance: int) -> int:
    """T5: half of the buckets for single distances, the other half logarithmic up to max_distance; exact fractions."""
    exact = n_bucket // 2
    if d < exact:
        return d
    n_log = n_bucket - exact
    ratio, whole = Fraction(d, exact) ** n_log, Fraction(max_distance, exact)
    return min(exact + max(i for i in range(d + n_log) if whole**i <= ratio), n_bucket - 1)


def t5(c: ModelConfig, pos: Any, span: Span) -> Formula:
    def logit(n: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        return (
            product(n, q, k, i, j)
            + pos.b_RN[bucket(clamped(span, i - j), c.n_bucket, c.max_distance), n]
        )

    return Formula(logit)


def slope(n: int, n_head: int) -> float:
    """Press et al. 2022, sec. 3: a geometric sequence from 2^(-8/N) on, with that ratio; see the class for other N."""
    power = max(2**i for i in range(8) if 2**i <= n_head)
    if n < power:
        return 2 ** (-8 * (n + 1) / power)
    return 2 ** (-8 * (2 * (n - power) + 1) / (2 * power))


def alibi(c: ModelConfig, pos: Any, span: Span) -> Formula:
    return Formula(
        lambda n, q, k, i, j: product(n, q, k, i, j) - slope(n, c.n_head) * clamped(span, i - j)
    )


def rotary(c: ModelConfig, pos: Any, span: Span) -> Formula:
    """Su et al. 2021, eq. 12 for every pair of channels: Re[q conj(k) e^(i (m - n) theta)] / sqrt(H)."""

    def logit(n: int, q: Tensor, k: Tensor, i: int, j: int) -> Tensor:
        total = torch.zeros(()).double()
        for channel in range(H // 2):
            turned = cmath.exp(1j * (i - j) * 10000 ** (-2 * channel / H))
            pair = torch.tensor([channel, channel + H // 2])
            total = total + (torch.complex(*q[pair]) * torch.complex(*k[pair]).conj() * turned).real
        return total / H**0.5

    return Formula(logit)


def learned_absolute(c: ModelConfig, pos: Any, span: Span) -> Formula:
    """q_i = W_q (x_i + P_i), k_j = W_k (x_j + P_j), v_j = W_v x_j; of a longer text the last R tokens have rows."""
    before_the_table = max(0, span.n_key - c.n_position)
    return Formula(product, placed=lambda p: pos.p_RD[max(0, p - before_the_table)])


def derivative(pos: Any, time: float, z: Tensor) -> Tensor:
    """f(tau, z) = W_2 tanh(W_1 [z, tau] + b_1) + b_2."""
    first, second = pos.motion[0], pos.motion[2]
    inner = torch.tanh(first.weight[:, :D] @ z + first.weight[:, D] * time + first.bias)
    return second.weight @ inner + second.bias


def floater(c: ModelConfig, pos: Any, span: Span) -> Formula:
    """Liu et al. 2020: as learned_absolute with P_i = S_i + z(0.1 i); z by the 3/8 rule of Runge and Kutta."""
    path, h = [pos.z0_D], 0.1
    for i in range(span.n_key - 1):
        t, z = h * i, path[i]
        k1 = derivative(pos, t, z)
        k2 = derivative(pos, t + h / 3, z + h * k1 / 3)
        k3 = derivative(pos, t + 2 * h / 3, z + h * (k2 - k1 / 3))
        k4 = derivative(pos, t + h, z + h * (k1 - k2 + k3))
        path.append(z + h * (k1 + 3 * k2 + 3 * k3 + k4) / 8)
    return Formula(product, placed=lambda p: sinusoid_of(p) + path[p])


def place(c: ModelConfig, span: Span, p: int, last: int) -> int:
    """Where a position added to the input is looked up, in a table whose last row is `last`."""
    from_end = min(clamped(span, span.n_key - 1 - p), last)
    return from_end if c.count_back else max(0, min(span.n_key - 1, last) - (span.n_key - 1 - p))


def sinusoid_input(c: ModelConfig, pos: Any, span: Span) -> Formula:
    """Vaswani et al. 2017, sec. 3.5: x + S_p, for what is remembered too; in the first layer."""
    return Formula(
        product, added=lambda p: sinusoid_of(place(c, span, p, span.n_key)) if pos.layer == 0 else 0
    )


def learned_per_layer(c: ModelConfig, pos: Any, span: Span) -> Formula:
    """Al-Rfou et al. 2019: x + P_p, for what is remembered too."""
    return Formula(product, added=lambda p: pos.p_RD[place(c, span, p, c.n_position - 1)])
