"""Adaptive embedding and adaptive softmax; without cutoffs, the plain ones.

Source: Grave et al. 2017 (adaptive softmax), Baevski and Auli 2019 (adaptive input, tied), Dai et al. 2019, sec. 4.1.
The vocabulary, most frequent words first, is split into a shortlist and C tail clusters; cluster i has embedding width
E_i = d_embed // div_val^i and a projection of d_model x E_i.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.ops.linear import linear, linear_in_part
from txl.ops.linear_cross_entropy import linear_cross_entropy, whole
from txl.ops.numbers import at_least_float32, is_autocast_on, widened
from txl.ops.operator import is_traced
from txl.ops.packed import PackedLinear


def _table(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * 0.02)


def check_ids(ids: Tensor, n_token: int) -> None:
    """Raise `ValueError` if an id is outside the vocabulary."""
    if is_traced():
        return
    # on a GPU this would synchronise in every step; there the kernels' own assertions apply
    if ids.device.type == "cpu" and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < n_token:
        raise ValueError(f"token ids must lie in [0, {n_token}), got {int(ids.min())} to {int(ids.max())}")


def _log_softmax(logit: Tensor) -> Tensor:
    return logit.log_softmax(-1, dtype=at_least_float32(logit.dtype))


def _to_device(ids: Tensor, device: torch.device) -> Tensor:
    """Copy to a GPU without synchronisation, which needs pinned memory."""
    return (ids.pin_memory() if device.type == "cuda" and not ids.is_cuda else ids).to(device, non_blocking=True)


def _cluster_members(id_L: Tensor, first: int, sizes: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """For each cluster, starting at word `first`: which tokens are in it, and their index within it. Synchronises
    if the ids are on a GPU."""
    for size in sizes:
        index = ((id_L >= first) & (id_L < first + size)).nonzero().squeeze(1)
        yield index, id_L[index] - first
        first += size


class _LookUp(torch.autograd.Function):
    """Rows of a table, and the table itself for further use; one gradient for both."""

    @staticmethod
    def forward(id_L: Tensor, table_VE: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return F.embedding(id_L, table_VE), table_VE.view_as(table_VE)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, drow_LE: Tensor, dtable_VE: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        id_L, _ = ctx.saved_tensors
        add = Tensor.index_add if torch.is_grad_enabled() else Tensor.index_add_  # the first: for second derivatives
        return None, add(dtable_VE, 0, id_L.flatten(), drow_LE.flatten(0, -2))


class AdaptiveEmbedding(nn.Module):
    """Token ids to hidden states, scaled by sqrt(d_model).

    With div_val 1 all clusters share one table, projected only if d_embed differs from d_model; with a larger div_val
    each cluster has a table and a projection.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_token, self.d_model = config.n_token, config.d_model
        self.sizes = config.cluster_sizes
        if config.div_val == 1:
            tables = [(config.n_token, config.d_embed)]
            projs = [(config.d_model, config.d_embed)] if config.d_embed != config.d_model else []
        else:
            tables = list(zip(config.cluster_sizes, config.cluster_widths, strict=True))
            projs = [(config.d_model, width) for width in config.cluster_widths]
        self.tables = nn.ParameterList(_table(*shape) for shape in tables)
        self.projs = nn.ParameterList(_table(*shape) for shape in projs)

    def forward(self, token_BT: Tensor, tables: list[Tensor] | None = None) -> Tensor:
        """Hidden states (B, T, D) on the device of the tables.

        Ids may be on the CPU while the tables are on a GPU, which avoids synchronisation; ids on a GPU synchronise once
        per cluster if div_val > 1.

        Args:
            tables: an empty list gets the tables for a softmax tied to them: a gradient of these takes up that of the
                words in place, which else is as large as the tables and almost all zeros.
        Raises:
            ValueError: if an id is outside the vocabulary (checked for ids on the CPU).
        """
        check_ids(token_BT, self.n_token)

        def look_up(id_L: Tensor, table: Tensor) -> Tensor:
            if tables is None:
                return F.embedding(id_L, table)
            row_LE, same_table = _LookUp.apply(id_L, table)
            tables.append(same_table)
            return row_LE

        if len(self.tables) == 1:
            out = look_up(_to_device(token_BT, self.tables[0].device), self.tables[0])
            out = (
                F.linear(out, self.projs[0]).to(out.dtype) if len(self.projs) else out
            )  # autocast returns half precision
        else:
            out = self._by_cluster(token_BT.flatten(), look_up).view(*token_BT.shape, -1)
        if is_autocast_on(out.device):  # weights in half precision; sums of layers are not
            out = widened(out)
        return out * self.d_model**0.5

    def _by_cluster(self, token_L: Tensor, look_up: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        orders, places = zip(*_cluster_members(token_L, 0, self.sizes), strict=True)
        lengths = [len(order) for order in orders]
        order_L, place_L = _to_device(torch.stack([torch.cat(orders), torch.cat(places)]), self.projs[0].device)
        parts = zip(place_L.split(lengths), self.tables, self.projs, strict=True)
        # empty clusters are computed with zero rows, so that their weights get a gradient
        row_LD = torch.cat([F.linear(look_up(place, table), proj) for place, table, proj in parts])
        return self.projs[0].new_zeros(row_LD.shape).index_copy(0, order_L, row_LD.to(self.projs[0].dtype))


class AdaptiveSoftmax(nn.Module):
    """Hidden states to losses in nats, or to log-probabilities of all words.

    p(w) = p_head(w) for a word of the shortlist, p_head(cluster c) p_c(w) for a word of tail cluster c.
    The head's classes are the shortlist and one entry per tail cluster, all with the shortlist's width.

    Differs from kimiyoung/transformer-xl: `cluster_weight` row c belongs to tail cluster c (there to cluster C - c),
    and nats come in the order of the tokens (there sorted by cluster).
    """

    def __init__(self, config: ModelConfig, embedding: AdaptiveEmbedding) -> None:
        super().__init__()
        self.n_token = config.n_token
        self.sizes = config.cluster_sizes
        self.n_tail = len(self.sizes) - 1
        self.tables = nn.ParameterList(_table(*t.shape) if config.not_tied else t for t in embedding.tables)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(len(t))) for t in self.tables)
        self.projs = nn.ParameterList(self._projs(config, embedding))
        if self.n_tail:
            self.cluster_weight = _table(self.n_tail, config.d_embed)
            self.cluster_bias = nn.Parameter(torch.zeros(self.n_tail))
        self._packs_head = False
        self._packed_head: list[PackedLinear] = []  # in a list: no layer of the model

    def _projs(self, config: ModelConfig, embedding: AdaptiveEmbedding) -> Iterator[nn.Parameter]:
        if not len(embedding.projs):
            return
        for i in range(len(self.sizes)):
            theirs = embedding.projs[0 if config.div_val == 1 else i]
            tied = i < len(config.tie_projs) and config.tie_projs[i]
            yield theirs if tied else _table(*theirs.shape)

    def nll(
        self, hidden: Tensor, target: Tensor, tables: Sequence[Tensor] | None = None, *, same_weight: bool = False
    ) -> Tensor:
        """Negative log-likelihood of each target, in nats, in the order of the tokens.

        Memory does not grow with tokens times words.

        Args:
            hidden: output of the last layer, (..., D).
            target: token ids, (...). Keep them on the CPU while `hidden` is on a GPU: they are grouped by cluster there
                without synchronisation; on a GPU it takes one per tail cluster.
            tables: those of a tied embedding, see `AdaptiveEmbedding.forward`.
            same_weight: promises that all losses have the same gradient, see `txl.ops.linear_cross_entropy`.
        Raises:
            ValueError: if an id is outside the vocabulary (checked for ids on the CPU).
        """
        check_ids(target, self.n_token)
        target_M, order_P, lengths = self._group(target.flatten(), hidden.device)
        hiddens = self._hiddens(rearrange(hidden, "... d -> (...) d"), order_P, lengths)
        parts = zip(hiddens, *self._clusters(tables or self.tables), target_M.split(lengths), strict=True)
        head_nll_L, *tail_nlls = [linear_cross_entropy(*part, same_weight=same_weight) for part in parts]
        if self.n_tail:
            head_nll_L = head_nll_L.index_add(0, order_P, torch.cat(tail_nlls))
        return head_nll_L.view(target.shape)

    def smoothing(self, hidden: Tensor, target: Tensor) -> Tensor:
        """The loss that label smoothing adds to each target, per unit of smoothing; arguments and order as in `nll`.

        With smoothing e the target distribution over C classes is 1 - e on the target plus e / C on every class
        (Szegedy et al. 2016, sec. 7). Its cross-entropy exceeds the nats by e (target logit - mean logit); this returns
        the difference without e, which needs no other logits. The head's softmax and a tail cluster's are each smoothed
        over their own classes.
        """
        target_M, order_P, lengths = self._group(target.flatten(), hidden.device)
        gaps = []
        hiddens = self._hiddens(rearrange(hidden, "... d -> (...) d"), order_P, lengths)
        parts = zip(hiddens, *self._clusters(self.tables), target_M.split(lengths), strict=True)
        for hidden_LE, weights, biases, column_L in parts:
            weight_CE, bias_C = whole(weights), whole(biases)
            apart_LE = F.embedding(column_L, weight_CE) - weight_CE.mean(0)
            gaps.append((hidden_LE * apart_LE).sum(-1) + bias_C[column_L] - bias_C.mean())
        head_L, *tails = gaps
        if self.n_tail:
            head_L = head_L.index_add(0, order_P, torch.cat(tails))
        return head_L.view(target.shape)

    def _hiddens(self, hidden_LD: Tensor, order_P: Tensor, lengths: list[int]) -> list[Tensor]:
        """The projected hidden states of each cluster's tokens; the head has all tokens."""
        hiddens = [hidden_LD]
        if self.n_tail:
            hiddens += hidden_LD.index_select(0, order_P).split(lengths[1:])
        if len(self.projs):
            hiddens = [hidden @ proj for hidden, proj in zip(hiddens, self.projs, strict=True)]
        return hiddens

    def _clusters(self, tables: Iterable[Tensor]) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        """Weights and biases of all clusters, in parts; the head's last part are the entries of the tail clusters."""
        weights, biases = list(tables), list(self.biases)
        if len(weights) < len(self.sizes):  # one split has one gradient table; slices would have one each
            weights, biases = list(weights[0].split(self.sizes)), list(biases[0].split(self.sizes))
        parts = [[weight] for weight in weights], [[bias] for bias in biases]
        if self.n_tail:
            parts[0][0].append(self.cluster_weight)
            parts[1][0].append(self.cluster_bias)
        return parts

    def _group(self, target_L: Tensor, device: torch.device) -> tuple[Tensor, Tensor, list[int]]:
        """The class of each target in the head, then those of the tail targets within their clusters; the indices of
        the tail targets; and the number of targets in the head (all) and in each tail cluster."""
        column_L, orders, places = target_L.to(torch.int64, copy=True), [], []
        for c, (order, place) in enumerate(_cluster_members(target_L, self.sizes[0], self.sizes[1:])):
            column_L[order] = self.sizes[0] + c
            orders.append(order)
            places.append(place)
        lengths = [len(target_L), *map(len, orders)]
        packed = _to_device(torch.cat([column_L, *places, *orders]), device)  # one copy
        target_M, order_P = packed.split([sum(lengths), sum(lengths[1:])])
        return target_M, order_P, lengths

    def log_prob(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of all words, (..., V), for hidden states (..., D)."""
        shortlist, cluster = self.head_log_prob(hidden)
        tails = [cluster[..., c : c + 1] + self.tail_log_prob(hidden, c) for c in range(self.n_tail)]
        return torch.cat([shortlist, *tails], dim=-1)

    def pack_head(self) -> None:
        """Multiply the head's weights, which must not change any more, as a `PackedLinear`. That is a copy, made when
        log-probabilities are first asked for: losses of many tokens do without."""
        self._packs_head = True

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._packs_head, self._packed_head = False, []  # the weights change
        return super()._apply(fn, recurse)

    def head_log_prob(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the shortlist's words, and of each tail cluster as a whole."""
        hidden, weight, bias = self._cluster(hidden, 0)
        if self._packs_head and not self._packed_head:
            weights, biases = self._clusters(self.tables)
            self._packed_head = [PackedLinear(whole(weights[0]), whole(biases[0]))]
        if self._packed_head:
            logit = self._packed_head[0](hidden)
        else:
            logit = linear_in_part(hidden, weight, bias)
            if self.n_tail:
                logit = torch.cat([logit, linear(hidden, self.cluster_weight, self.cluster_bias)], dim=-1)
        shortlist, cluster = _log_softmax(logit).split([self.sizes[0], self.n_tail], dim=-1)
        return shortlist, cluster

    def tail_log_prob(self, hidden: Tensor, c: int) -> Tensor:
        """Log-probabilities of the words of tail cluster c, given that cluster."""
        return _log_softmax(linear_in_part(*self._cluster(hidden, 1 + c)))

    def _cluster(self, hidden: Tensor, i: int) -> tuple[Tensor, Tensor, Tensor]:
        """The projected hidden state, and the weight and bias of cluster i's words; the shortlist is cluster 0."""
        if len(self.projs):
            hidden = hidden @ self.projs[i]
        if len(self.tables) == len(self.sizes):  # whole tables: autocast caches casts of parameters, not of their parts
            return hidden, self.tables[i], self.biases[i]
        return hidden, self.tables[0].split(self.sizes)[i], self.biases[0].split(self.sizes)[i]
