"""Attention within buckets of a locality-sensitive hash: linear time, except for a sort."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from txl.config import ModelConfig, PartSettings, option, require
from txl.model.parts import require_no_dropatt, require_scoreless
from txl.model.span import Span
from txl.ops.numbers import widened
from txl.positions import PositionEncoding


class LshAttention(nn.Module):
    """Softmax attention over the keys in the query's bucket in any of several rounds (Reformer).

        out_t       = sum_s softmax_s(scale * q_t . k_s) v_s over the s in P_t
        k_s         = sqrt(H) q_s / |q_s|
        P_t         = union over rounds r of the last `lsh_reach` tokens s < t with
                      bucket_r(s) = bucket_r(t), without those that `span` masks; { t } if empty
        bucket_r(s) = argmax [x R_r ; -x R_r]      x = q_s before the position encoding,
                                                   R_r of size H x (lsh_bucket / 2)

    Source: Kitaev et al. 2020, sec. 2, eq. 2 to 6: shared queries and keys, sorted chunks, several
    rounds; a key in several rounds counts once, as by N_(i,j) in appendix A, eq. 11 to 16. Keys
    have norm sqrt(H), as in google/trax, to keep the logits' scale. The rotations R are saved with
    the weights; only `redraw` changes them.

    Differs from the paper in the visible part of a bucket. There it is the same and the previous
    chunk of the sorted sequence, whose boundaries depend on later tokens and on the start of the
    segment. Here it is a number of tokens counted back from the query, so results depend on the
    past only and segments equal one pass. For the same reason buckets depend on content only and
    their number is fixed. Values that differ by rounding can get different buckets.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(PartSettings):
        # shared rounds are counted in a byte
        lsh_round: int = option(4, "rounds of hashing", minimum=1, maximum=255)
        lsh_bucket: int = option(64, "buckets per round (even)", minimum=2)
        lsh_reach: int = option(
            64,
            "earlier tokens of its bucket that a token attends to, and size of the sorted chunks",
            minimum=1,
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            n = self.lsh_bucket
            even = "must be even and at least 2, buckets are directions and their opposites"
            require(n % 2 == 0, f"--lsh_bucket {n}: {even}; use {n + 1}")

    shared_qk = True
    impl = "auto"
    keep_mib = 0
    rotation_RHK: Tensor

    def __init__(self, config: ModelConfig, *, dropatt: float = 0.0) -> None:
        super().__init__()
        require_scoreless(config)
        require_no_dropatt(config, dropatt)
        settings = config.settings(self.Settings)
        self.reach = settings.lsh_reach
        rotation_RHK = torch.randn(settings.lsh_round, config.d_head, settings.lsh_bucket // 2)
        self.register_buffer("rotation_RHK", rotation_RHK)

    def redraw(self, generator: torch.Generator) -> None:
        """Redraw the rotations; the result depends on the generator, not on the device."""
        self.rotation_RHK.copy_(torch.randn(self.rotation_RHK.shape, generator=generator))

    @classmethod
    def of_model(cls, config: ModelConfig, *, dropatt: float = 0.0) -> "LshAttention":
        """See `AttentionRule.of_model`."""
        return cls(config, dropatt=dropatt)

    @classmethod
    def n_product(cls, config: ModelConfig) -> int:
        """See `AttentionRule.n_product`."""
        settings = config.settings(cls.Settings)
        return 2 * settings.lsh_round * settings.lsh_reach

    def forward(
        self,
        q_BNTH: Tensor,
        k_BNSH: Tensor,
        v_BNSH: Tensor,
        *,
        pos: PositionEncoding,
        feats: Tensor,
        span: Span,
    ) -> Tensor:
        bucket_RBNS = self.buckets(k_BNSH)
        k_BNSH = F.normalize(widened(k_BNSH), dim=-1)  # 1e-12 is 0 in float16
        k_BNSH = k_BNSH * k_BNSH.shape[-1] ** 0.5
        q_BNTH, k_BNSH = pos.transform_qk(q_BNTH, k_BNSH.type_as(q_BNTH), feats, span)
        return sorted_chunks(
            pos.scale * q_BNTH, k_BNSH, v_BNSH, bucket_RBNS, reach=self.reach, span=span
        )

    @torch.no_grad()
    def buckets(self, x_BNSH: Tensor) -> Tensor:
        """The bucket of each token in each round, (R, B, N, S)."""
        with torch.autocast(x_BNSH.device.type, enabled=False):
            turned_RBNSK = x_BNSH.to(self.rotation_RHK.dtype) @ self.rotation_RHK[:, None, None]
        return torch.cat([turned_RBNSK, -turned_RBNSK], dim=-1).argmax(-1)


def sorted_chunks(
    q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, bucket_RBNS: Tensor, *, reach: int, span: Span
) -> Tensor:
    """The formula of `LshAttention` without the matrix of pairs, in time S log S + R S reach (H +
    R), memory R S reach.

    Args:
        q_BNTH: scaled.
        bucket_RBNS: of every key in every round; query t is key n_mem + t.
        reach: number of earlier tokens of its bucket that a token sees.
    Returns:
        (B, N, T, H).

    Tokens are sorted by bucket, then position, and split into chunks of `reach`: the keys of a
    token are in its chunk and the previous one. Rounds are combined by their log-sum-exp, with each
    pair divided by the rounds it occurs in.
    """
    n_key = span.n_key
    q_BNSH = F.pad(q_BNTH, (0, 0, span.n_mem, 0))  # remembered tokens have no queries
    rounds = []
    for bucket_BNS in bucket_RBNS:
        rounds.append(_Round.of(bucket_BNS, span, reach))
    lonely_BNS = torch.stack([r.first_BNS for r in rounds]).all(0)
    outs = []
    logsums = []
    for mine in rounds:
        logit_BNJCK = widened(mine.chunked(q_BNSH) @ mine.chunked_keys(k_BNSH).mT)
        seen_BNJCK, count_BNJCK = mine.seen(rounds, lonely_BNS, n_key)
        # finite, not -inf: a round without visible keys gets weight 0, and its gradient must not be
        # NaN
        lowest = torch.finfo(logit_BNJCK.dtype).min / 2
        logit_BNJCK = logit_BNJCK - count_BNJCK.to(logit_BNJCK.dtype).log()
        logit_BNJCK = logit_BNJCK.masked_fill(~seen_BNJCK, lowest)
        logsum_BNJC = logit_BNJCK.logsumexp(-1)
        prob_BNJCK = (logit_BNJCK - logsum_BNJC[..., None]).exp().to(v_BNSH.dtype)
        out_BNJCH = prob_BNJCK @ mine.chunked_keys(v_BNSH)
        outs.append(mine.unsorted(rearrange(out_BNJCH, "b n j c h -> b n (j c) h")))
        logsums.append(mine.unsorted(rearrange(logsum_BNJC, "b n j c -> b n (j c) 1")))
    weight_RBNT1 = torch.stack(logsums)[..., span.n_mem :, :].softmax(0)
    out_RBNTH = torch.stack(outs)[..., span.n_mem :, :]
    return (weight_RBNT1.to(v_BNSH.dtype) * out_RBNTH).sum(0)


class _Round(NamedTuple):
    """One round's sorting, (B, N, S): `order` is the token at each sorted place, `place` the place
    of each token.

    J chunks of C places; the keys of a chunk are those of the previous chunk and its own.
    """

    bucket_BNS: Tensor
    order_BNS: Tensor
    place_BNS: Tensor
    first_BNS: Tensor
    """True if the token sees no earlier token of its bucket."""
    window: int
    reach: int

    @classmethod
    def of(cls, bucket_BNS: Tensor, span: Span, reach: int) -> "_Round":
        at_S = span.key_positions_S(bucket_BNS.device)
        order_BNS = (bucket_BNS * span.n_key + at_S).argsort(-1)
        place_BNS = torch.empty_like(order_BNS).scatter_(-1, order_BNS, at_S.expand_as(order_BNS))
        sorted_BNS = bucket_BNS.gather(-1, order_BNS)
        first_BNS = F.pad(sorted_BNS[..., 1:] != sorted_BNS[..., :-1], (1, 0), value=True)
        if span.window > 0:
            first_BNS |= F.pad(order_BNS.diff(dim=-1) >= span.window, (1, 0), value=True)
        return cls(
            bucket_BNS, order_BNS, place_BNS, first_BNS.gather(-1, place_BNS), span.window, reach
        )

    def chunked(self, x_BNSH: Tensor) -> Tensor:
        """The tokens' rows in this round's order, (B, N, J, C, H)."""
        x_BNSH = x_BNSH.gather(-2, self.order_BNS[..., None].expand_as(x_BNSH))
        return self._cut(x_BNSH, fill=0)

    def chunked_keys(self, x_BNSH: Tensor) -> Tensor:
        """The same for each chunk and its predecessor, (B, N, J, 2C, H)."""
        return _with_chunk_before(self.chunked(x_BNSH), fill=0)

    def unsorted(self, x_BNPH: Tensor) -> Tensor:
        """From this round's places P back to the tokens' order, (B, N, S, H)."""
        return x_BNPH.gather(-2, self.place_BNS[..., None].expand(-1, -1, -1, x_BNPH.shape[-1]))

    def seen(self, rounds: list["_Round"], lonely_BNS: Tensor, n_key: int) -> tuple[Tensor, Tensor]:
        """Which keys of its chunks a token sees, and in how many rounds; both (B, N, J, C, 2C)."""
        at_BNJC, at_BNJK = self._pairs(
            torch.arange(n_key, device=lonely_BNS.device).expand_as(lonely_BNS)
        )
        earlier_BNJCK = at_BNJC[..., :, None] > at_BNJK[..., None, :]
        seen_BNJCK = self._near(self) & earlier_BNJCK
        if self.window > 0:
            seen_BNJCK &= at_BNJC[..., :, None] - at_BNJK[..., None, :] < self.window
        count_BNJCK = sum(self._near(other).to(torch.uint8) for other in rounds)
        itself_BNJCK = at_BNJC[..., :, None] == at_BNJK[..., None, :]
        alone_BNJC, _ = self._pairs(lonely_BNS)
        alone_BNJCK = itself_BNJCK & (alone_BNJC == 1)[..., None]
        return seen_BNJCK | alone_BNJCK, torch.where(seen_BNJCK, count_BNJCK, 1)

    def _near(self, other: "_Round") -> Tensor:
        """Which of this round's pairs share a bucket in the other round, at most `reach` apart
        there.
        """
        bucket_BNJC, bucket_BNJK = self._pairs(other.bucket_BNS)
        place_BNJC, place_BNJK = self._pairs(other.place_BNS)
        same_BNJCK = bucket_BNJC[..., :, None] == bucket_BNJK[..., None, :]
        return same_BNJCK & (place_BNJC[..., :, None] - place_BNJK[..., None, :] <= self.reach)

    def _pairs(self, x_BNS: Tensor) -> tuple[Tensor, Tensor]:
        """Integers of the tokens as queries (B, N, J, C) and as keys (B, N, J, 2C); padding equals
        no token's.
        """
        x_BNJC1 = self._cut(x_BNS.to(torch.int32).gather(-1, self.order_BNS)[..., None], fill=-2)
        return x_BNJC1.squeeze(-1), _with_chunk_before(x_BNJC1, fill=-3).squeeze(-1)

    def _cut(self, x_BNSH: Tensor, *, fill: int) -> Tensor:
        n_key = x_BNSH.shape[-2]
        size = min(self.reach, n_key)
        x_BNPH = F.pad(x_BNSH, (0, 0, 0, -n_key % size), value=fill)
        return rearrange(x_BNPH, "b n (j c) h -> b n j c h", c=size)


def _with_chunk_before(x_BNJCH: Tensor, *, fill: int) -> Tensor:
    before_BNJCH = F.pad(x_BNJCH[..., :-1, :, :], (0, 0, 0, 0, 1, 0), value=fill)
    return torch.cat([before_BNJCH, x_BNJCH], dim=-2)
