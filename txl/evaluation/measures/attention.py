"""Where attention looks. By distance: how far back each head looks. By token: which earlier tokens
each prediction looked at, kept small.
"""

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from txl.attention_rules.softmax import logits
from txl.config import Context, require
from txl.evaluation.measures.bins import bin_of, log_edges, spans
from txl.evaluation.reading import Predictor, Segments, warmup_segments
from txl.evaluation.score import evaluate
from txl.inference.frozen import Frozen
from txl.model.attention import Attention
from txl.model.parts import attends_by_softmax
from txl.model.span import Span
from txl.model.streams import Memory
from txl.model.transformer import TransformerXL
from txl.ops.numbers import widened
from txl.runtime.distributed import Ranks


@dataclass(frozen=True)
class AttentionByDistance:
    """Attention probability by the distance of the key, summed over the scored tokens.

    Attributes:
        edges: of the distance bins, see `log_edges`; the token itself has distance 0.
        mass_LNK: summed probability, float64, by layer, head and bin; sums to `n_query` over the
            bins.
        pairs_K: visible (query, key) pairs in each bin.
        n_query: scored tokens.
    """

    edges: list[int]
    mass_LNK: Tensor
    pairs_K: Tensor
    n_query: int

    @property
    def share_LNK(self) -> Tensor:
        """Average share of a token's attention in each bin; sums to 1 over the bins."""
        return self.mass_LNK / self.n_query

    @property
    def per_key_LNK(self) -> Tensor:
        """Average probability of a key in each bin; NaN for empty bins."""
        return self.mass_LNK / self.pairs_K

    @property
    def mean_distance_LN(self) -> Tensor:
        """Average attended distance, using the middle of each bin."""
        middle_K = torch.tensor(
            [(first + last) / 2 for first, last in spans(self.edges)], dtype=torch.float64
        )
        return self.share_LNK @ middle_K

    def __add__(self, other: "AttentionByDistance") -> "AttentionByDistance":
        return AttentionByDistance(
            self.edges,
            self.mass_LNK + other.mass_LNK,
            self.pairs_K + other.pairs_K,
            self.n_query + other.n_query,
        )

    def over(self, ranks: Ranks) -> "AttentionByDistance":
        """The sum over all ranks."""
        return functools.reduce(operator.add, ranks.gathered(self))

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: per layer, per head, per bin, without empty bins."""
        keep = self.pairs_K.nonzero().squeeze(1)
        bins = spans(self.edges)
        return {
            "tokens": self.n_query,
            "bins": [
                {"from": bins[k][0], "to": bins[k][1], "pairs": int(self.pairs_K[k])}
                for k in keep.tolist()
            ],
            "share": self.share_LNK[..., keep].tolist(),
            "per_key": self.per_key_LNK[..., keep].tolist(),
            "mean_distance": self.mean_distance_LN.tolist(),
        }


def attention_by_distance(
    model: TransformerXL,
    streams: Iterable[Segments],
    context: Context,
    *,
    predictor: Predictor | None = None,
) -> AttentionByDistance:
    """Read a text and average each head's attention by distance, as in figure 5 of Dai et al. 2019.

    Forward hooks recompute the probabilities from each layer's input, row by row: memory grows with
    n_head x tgt_len x (mem_len + tgt_len), whatever implementation the model uses.

    Args:
        streams: each is read with an empty memory; scored targets are averaged over.
        predictor: a wrapper that reads the text with the model; by default the model.
        context: of the pass; distances reach tgt_len + ext_len + mem_len - 1.
    Raises:
        UsageError: if the model has no softmax attention.
    """
    require(
        attends_by_softmax(model.config),
        f"--attention_by_distance: a model of --attention {model.config.attention} does not attend"
        " by softmax",
    )
    watch = _Watch(
        log_edges(context.tgt_len + context.ext_len + context.mem_len - 1), model.config.n_head
    )
    hooks = []
    for i, layer in enumerate(model.layers):
        hooks.append(layer.attn.register_forward_hook(watch.of_layer(i)))
    try:
        for segments in streams:
            evaluate(
                model,
                watch.segments(segments),
                context,
                predictor=_OfHiddenStates(predictor or Frozen(model), model),
            )
    finally:
        for hook in hooks:
            hook.remove()
    return watch.result(len(model.layers))


class _OfHiddenStates:
    """A predictor whose memory is one of hidden states, which the hooks need."""

    def __init__(self, predictor: Predictor, model: TransformerXL) -> None:
        self.predictor = predictor
        self.model = model
        self.nll = predictor.nll

    def fresh_memory(self, batch_size: int) -> Memory:
        fresh = self.predictor.fresh_memory(batch_size)
        if isinstance(fresh, Memory):
            return fresh
        return self.model.empty_memory(batch_size)


def probabilities(
    attention: Attention, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span
) -> Tensor:
    """The attention probabilities (B, N, T, S) of a layer; arguments as for `Attention.forward`."""
    pos = attention.pos
    q_BNTH, k_BNSH, _ = attention.project(x_BTD, mem_BMD, feats, span)
    q_BNTH, k_BNSH = pos.transform_qk(q_BNTH, k_BNSH, feats, span)
    logit_BNTS = logits(q_BNTH, k_BNSH, pos, pos.project(feats), span)
    return widened(logit_BNTS).masked_fill(~span.mask_TS(x_BTD.device), -torch.inf).softmax(-1)


class _Watch:
    """Accumulates the probabilities of all layers."""

    def __init__(self, edges: list[int], n_head: int) -> None:
        self.edges = edges
        self.n_head = n_head
        self.counted_BT = torch.empty(0, 0, dtype=torch.bool)
        self.mass: dict[int, Tensor] = {}
        self.pairs_K = torch.zeros(len(edges) - 1, dtype=torch.int64)
        self.n_query = 0

    def segments(self, segments: Segments) -> Segments:
        """The same segments, whose scored targets are noted in passing."""
        for segment in segments:
            _, target_BT, counted_BT = segment
            if counted_BT is None:
                self.counted_BT = torch.ones_like(target_BT, dtype=torch.bool)
            else:
                self.counted_BT = counted_BT
            yield segment

    def of_layer(self, i: int) -> Any:
        """A forward hook for layer i."""

        def hook(attention: nn.Module, args: tuple[Any, ...], _: Tensor) -> None:
            assert isinstance(attention, Attention)
            x_BTD, mem_BMD, feats, span = args[:4]  # what is read beside attention has no distances
            counted_BT = self.counted_BT.to(x_BTD.device)
            # the segment's last tokens; with ext_len, others are before them
            n_target = counted_BT.shape[1]
            visible_TS = span.mask_TS(x_BTD.device)[-n_target:]
            distance_TS = Span(span.n_mem, span.n_new).distances_TS(x_BTD.device)[-n_target:]
            bin_TS = bin_of(distance_TS, self.edges).masked_fill(~visible_TS, 0)
            n_bin = len(self.edges) - 1
            mass_NK = self.mass.setdefault(
                i, x_BTD.new_zeros(self.n_head, n_bin, dtype=torch.float64)
            )
            for x_1TD, mem_1MD, counted_T in zip(
                x_BTD.split(1), mem_BMD.split(1), counted_BT, strict=True
            ):
                prob_NTS = probabilities(attention, x_1TD, mem_1MD, feats, span)[0, :, -n_target:][
                    :, counted_T
                ]
                mass_NK.index_add_(1, bin_TS[counted_T].flatten(), prob_NTS.flatten(1).double())
            if i == 0:
                times_TS = counted_BT.sum(0)[:, None] * visible_TS
                pairs_K = times_TS.new_zeros(n_bin).index_add_(
                    0, bin_TS.flatten(), times_TS.flatten()
                )
                self.pairs_K += pairs_K.cpu()
                self.n_query += int(counted_BT.sum())

        return hook

    def result(self, n_layer: int) -> AttentionByDistance:
        nothing_NK = torch.zeros(self.n_head, len(self.edges) - 1, dtype=torch.float64)
        mass_LNK = torch.stack([self.mass.get(i, nothing_NK).cpu() for i in range(n_layer)])
        return AttentionByDistance(self.edges, mass_LNK, self.pairs_K, self.n_query)


MOST_KEYS = 6
"""Keys that are kept of a token and a map, at most: those with the largest shares."""
LEAST_SHARE = 0.03
"""Of a token's attention, below which a key is not kept."""
MOST_HEADS = 32
"""Of a model of more heads, only `FURTHEST` are kept: those that look back furthest."""
FURTHEST = 8


class Map(NamedTuple):
    """What an attention map is of.

    Attributes:
        layer: from 0; None: the mean of all layers and heads.
        head: from 0; None: the mean of the layer's heads.
    """

    layer: int | None
    head: int | None


@dataclass(frozen=True)
class AttentionByToken:
    """The keys that got most of the attention of each token, map by map.

    A token is looked for by the query before it, whose output predicts it. So its distance to a key
    is counted from the token itself: the token before it is at 1.

    Attributes:
        maps: the mean, the layers, then heads.
        n_token: how many tokens, from the first that was asked for.
        count_PN: keys of each map and token, uint8.
        back_K: their distances in tokens, at least 1, uint16; map by map, token by token, largest
            share first.
        share_K: their shares of the attention, in 255ths, uint8.
        beyond_P: the share of each map that lies further back than a segment, averaged over the
            tokens.
    """

    maps: list[Map]
    n_token: int
    count_PN: np.ndarray
    back_K: np.ndarray
    share_K: np.ndarray
    beyond_P: np.ndarray


def attention_by_token(
    model: TransformerXL,
    ids: np.ndarray,
    context: Context,
    *,
    first: int,
    n_token: int,
    starts: np.ndarray | None = None,
) -> AttentionByToken:
    """Read a part of a text in one stream, as it is cut, and keep what each token looked at.

    Args:
        ids: of the text.
        first: index of the first token that is kept; the text before it is read as far as the model
            sees.
        n_token: how many are kept.
        starts: where documents begin, each of which is read with an empty memory; None: the text is
            read as one.
    Raises:
        UsageError: if the model has no softmax attention, or looks back further than 65,535 tokens.
    """
    require(
        attends_by_softmax(model.config),
        f"a model of --attention {model.config.attention} does not attend by softmax",
    )
    reach = context.mem_len + context.ext_len + context.tgt_len
    require(
        reach <= 65_535, f"--mem_len {context.mem_len}: distances are kept up to 65,535; use less"
    )
    watch = _PartWatch(model.config.n_layer, model.config.n_head, context.tgt_len)
    hooks = []
    for i, layer in enumerate(model.layers):
        hooks.append(layer.attn.register_forward_hook(watch.of_layer(i)))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for part in _parts(
                model, ids, context, first=first, last=first + n_token, starts=starts
            ):
                _read(model, ids, context, part, watch)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return watch.result()


class _Part(NamedTuple):
    """A part of a text that is read with an empty memory: tokens `begin` to `end - 1` are read,
    which predict those after them; of these, `first` to `last - 1` are kept.
    """

    begin: int
    end: int
    first: int
    last: int


def _parts(
    model: TransformerXL,
    ids: np.ndarray,
    context: Context,
    *,
    first: int,
    last: int,
    starts: np.ndarray | None,
) -> list[_Part]:
    last = min(last, len(ids))
    n_before = warmup_segments(model.config.n_layer, context) * context.tgt_len
    if starts is None:
        begin = max(0, first - 1 - n_before) // context.tgt_len * context.tgt_len
        return [_Part(begin, last - 1, first, last)]
    edges = np.union1d(starts[starts > 0], [1, len(ids)]).tolist()
    parts = []
    for begin, end in pairwise(edges):
        if begin < last and end > first:
            skipped = max(0, first - begin - n_before) // context.tgt_len * context.tgt_len
            until = min(end, last)
            parts.append(_Part(begin - 1 + skipped, until - 1, max(first, begin), until))
    return parts


def _read(
    model: TransformerXL, ids: np.ndarray, context: Context, part: _Part, watch: "_PartWatch"
) -> None:
    memory = model.empty_memory(1)
    for begin in range(part.begin, part.end, context.tgt_len):
        end = min(begin + context.tgt_len, part.end)
        before = max(part.begin, begin - context.ext_len)
        watch.kept = slice(
            max(begin, part.first - 1) - before, max(begin, min(end, part.last - 1)) - before
        )
        piece_1T = torch.from_numpy(np.asarray(ids[before:end], dtype=np.int64))[None]
        memory = model(piece_1T.to(model.device), memory, context).memory


class _PartWatch:
    """Collects the largest shares of all maps, segment by segment.

    Attributes:
        kept: the queries of the next segment whose tokens are kept.
    """

    def __init__(self, n_layer: int, n_head: int, tgt_len: int) -> None:
        self.n_layer = n_layer
        self.n_head = n_head
        self.tgt_len = tgt_len
        self.kept = slice(0, 0)
        self._mean_TS: Tensor | None = None
        n_map = 1 + n_layer * (1 + n_head)
        self._shares: list[list[np.ndarray]] = [[] for _ in range(n_map)]
        self._backs: list[list[np.ndarray]] = [[] for _ in range(n_map)]
        self._beyond_P = np.zeros(n_map)

    def of_layer(self, i: int) -> Any:
        """A forward hook for layer i."""

        def hook(attention: nn.Module, args: tuple[Any, ...], _: Tensor) -> None:
            assert isinstance(attention, Attention)
            if self.kept.start >= self.kept.stop:
                return
            x_1TD, mem_1MD, feats, span = args[:4]
            prob_NTS = (
                probabilities(attention, x_1TD, mem_1MD, feats, span)[0, :, self.kept].float().cpu()
            )
            query_T = span.n_mem + torch.arange(span.n_new)[self.kept]
            back_TS = query_T[:, None] - torch.arange(span.n_key) + 1
            of_layer_TS = prob_NTS.mean(0)
            self._add(1 + i, of_layer_TS[None], back_TS)
            self._add(1 + self.n_layer + i * self.n_head, prob_NTS, back_TS)
            if i == 0:
                self._mean_TS = torch.zeros_like(of_layer_TS)
            assert self._mean_TS is not None
            self._mean_TS += of_layer_TS / self.n_layer
            if i == self.n_layer - 1:
                self._add(0, self._mean_TS[None], back_TS)

        return hook

    def _add(self, first: int, prob_PTS: Tensor, back_TS: Tensor) -> None:
        share_PTK, at_PTK = prob_PTS.topk(min(MOST_KEYS, prob_PTS.shape[-1]), dim=-1)
        back_PTK = back_TS.expand_as(prob_PTS).gather(-1, at_PTK)
        room = (0, MOST_KEYS - share_PTK.shape[-1])
        share_PTK = nn.functional.pad(share_PTK, room)
        back_PTK = nn.functional.pad(back_PTK, room, value=1)
        beyond_P = (prob_PTS * (back_TS > self.tgt_len)).sum((1, 2))
        for k in range(len(prob_PTS)):
            self._shares[first + k].append(share_PTK[k].numpy())
            self._backs[first + k].append(back_PTK[k].numpy())
            self._beyond_P[first + k] += float(beyond_P[k])

    def result(self) -> AttentionByToken:
        share_PNK = np.stack([np.concatenate(parts) for parts in self._shares])
        back_PNK = np.stack([np.concatenate(parts) for parts in self._backs])
        n_token = share_PNK.shape[1]
        beyond_P = self._beyond_P / max(1, n_token)
        chosen_P = self._chosen(beyond_P)
        share_PNK = share_PNK[chosen_P]
        keep_PNK = share_PNK >= LEAST_SHARE
        return AttentionByToken(
            maps=[self._map(index) for index in chosen_P],
            n_token=n_token,
            count_PN=keep_PNK.sum(-1).astype(np.uint8),
            back_K=back_PNK[chosen_P][keep_PNK].astype(np.uint16),
            share_K=np.rint(share_PNK[keep_PNK] * 255).astype(np.uint8),
            beyond_P=beyond_P[chosen_P],
        )

    def _chosen(self, beyond_P: np.ndarray) -> Sequence[int]:
        """The maps that are kept: the mean, the layers, and all heads or those that look back
        furthest.
        """
        n_mean = 1 + self.n_layer
        heads = list(range(n_mean, len(beyond_P)))
        if len(heads) > MOST_HEADS:
            furthest = sorted(heads, key=lambda index: -beyond_P[index])[:FURTHEST]
            heads = sorted(furthest)
        return [*range(n_mean), *heads]

    def _map(self, index: int) -> Map:
        if index == 0:
            return Map(None, None)
        if index <= self.n_layer:
            return Map(index - 1, None)
        layer, head = divmod(index - 1 - self.n_layer, self.n_head)
        return Map(layer, head)
