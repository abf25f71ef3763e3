"""Attention by distance: how far back each head looks."""

import functools
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from txl.attention_rules.softmax import logits
from txl.config import Context, require
from txl.evaluation.measures.bins import bin_of, log_edges, spans
from txl.evaluation.reading import Predictor, Segments
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
    q_BNTH, k_BNSH = pos.transform_qk(q_BNTH, k_BNSH, span)
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
