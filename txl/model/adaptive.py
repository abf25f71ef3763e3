"""Adaptive embedding and adaptive softmax; without cutoffs, the plain ones.

Source: Grave et al. 2017 (softmax), Baevski and Auli 2019 (input, tied), Dai et al. 2019, sec. 4.1.
The vocabulary, most frequent words first, is split into a shortlist and C tail clusters; cluster i
has embedding width E_i = d_embed // div_val^i and a projection of d_model x E_i.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.ops.linear_cross_entropy import linear_cross_entropy, whole
from txl.ops.lookup import Members, check_ids, classes_and_members, look_up, members, to_device
from txl.ops.numbers import at_least_float32, is_autocast_on, widened
from txl.ops.table import split_table


def _table(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * 0.02)


class AdaptiveEmbedding(nn.Module):
    """Token ids to hidden states, scaled by sqrt(d_model) unless `scale_embedding` is off.

    With div_val 1 all clusters share one table, projected only if d_embed differs from d_model;
    with a larger div_val each cluster has a table and a projection.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_token = config.n_token
        self.scale = config.d_model**0.5 if config.scale_embedding else 1.0
        self.sizes = config.cluster_sizes
        widths = config.cluster_widths
        if config.div_val == 1:
            self.sizes = (config.n_token,)
            widths = (config.d_embed,)
        self.tables = nn.ParameterList(map(_table, self.sizes, widths))
        is_projected = config.div_val > 1 or config.d_embed != config.d_model
        self.projs = nn.ParameterList(_table(config.d_model, E) for E in widths if is_projected)

    def forward(self, token_BT: Tensor, tables: list[Tensor] | None = None) -> Tensor:
        """Hidden states (B, T, D) on the device of the tables.

        Ids on the CPU avoid synchronisation with a GPU; ids on it take one for each of its tables.

        Args:
            tables: an empty list gets those for a tied softmax, see `txl.ops.lookup.look_up`.
        Raises:
            ValueError: if an id is outside the vocabulary (checked for ids on the CPU).
        """
        check_ids(token_BT, self.n_token)
        if len(self.tables) == 1:
            h_BTD = look_up(to_device(token_BT, self.tables[0].device), self.tables[0], tables)
            if len(self.projs):  # autocast returns half precision
                h_BTD = F.linear(h_BTD, self.projs[0]).to(h_BTD.dtype)
        else:
            h_BTD = self._by_cluster(token_BT.flatten(), tables).view(*token_BT.shape, -1)
        if is_autocast_on(h_BTD.device):  # weights in half precision; sums of layers are not
            h_BTD = widened(h_BTD)
        return h_BTD * self.scale

    def _by_cluster(self, token_L: Tensor, tables: list[Tensor] | None) -> Tensor:
        found = members(token_L, self.sizes, self.projs[0].device)
        parts = zip(found.places(), self.tables, self.projs, strict=True)
        # empty clusters are computed with zero rows, so that their weights get a gradient
        row_LD = torch.cat([F.linear(look_up(p, table, tables), proj) for p, table, proj in parts])
        return found.in_order(row_LD.to(self.projs[0].dtype), len(token_L))


class Cluster(NamedTuple):
    """Of its tokens the hidden states (L, E) and targets (L,); weights and biases in parts."""

    hidden_LE: Tensor
    weights: list[Tensor]
    biases: list[Tensor]
    target_L: Tensor


class AdaptiveSoftmax(nn.Module):
    """Hidden states to losses in nats, or to log-probabilities of all words.

    p(w) = p_head(w) for a word of the shortlist, p_head(c) p_c(w) for a word of tail cluster c. The
    head's classes are the shortlist and an entry per tail cluster, all with the shortlist's width.
    Differs from kimiyoung/transformer-xl: `cluster_weight` row c belongs to tail cluster c (there
    to cluster C - c), and nats come in the order of the tokens (there sorted by cluster).
    """

    def __init__(self, config: ModelConfig, embedding: AdaptiveEmbedding) -> None:
        super().__init__()
        self.n_token = config.n_token
        self.sizes = config.cluster_sizes
        self.n_tail = len(self.sizes) - 1
        tables = embedding.tables
        self.tables = nn.ParameterList(_table(*t.shape) if config.not_tied else t for t in tables)
        biases = (nn.Parameter(torch.zeros(len(t))) for t in self.tables if config.softmax_bias)
        self.biases = nn.ParameterList(biases)
        self.projs = nn.ParameterList()
        for i in range(len(self.sizes) if len(embedding.projs) else 0):
            of_words = embedding.projs[0 if config.div_val == 1 else i]
            is_tied = i < len(config.tie_projs) and config.tie_projs[i]
            self.projs.append(of_words if is_tied else _table(*of_words.shape))
        if self.n_tail:
            self.cluster_weight = _table(self.n_tail, config.d_embed)
            self.cluster_bias = nn.Parameter(torch.zeros(self.n_tail))

    def nll(
        self,
        hidden: Tensor,
        target: Tensor,
        tables: Sequence[Tensor] | None = None,
        *,
        same_weight: bool = False,
    ) -> Tensor:
        """Negative log-likelihood of each target in nats, in memory for a part of the words.

        Args:
            hidden: output of the last layer, (..., D).
            target: ids, (...); on the CPU they are grouped by cluster without synchronisation.
            tables: those of a tied embedding, see `AdaptiveEmbedding.forward`.
            same_weight: promises that all losses have the same gradient.
        Raises:
            ValueError: if an id is outside the vocabulary (checked for ids on the CPU).
        """
        (head, *clusters), tail = self.by_cluster(hidden, target, tables)
        nll_L = linear_cross_entropy(*head, same_weight=same_weight)
        how = {"same_weight": same_weight, "all_count": tail.all_count}
        of_tail = [linear_cross_entropy(*cluster, **how) for cluster in clusters]
        return tail.added(nll_L, of_tail).view(target.shape)

    def by_cluster(
        self, hidden: Tensor, target: Tensor, tables: Sequence[Tensor] | None = None
    ) -> tuple[list[Cluster], Members]:
        """The head with all tokens, then the tail clusters; and the tail's tokens."""
        check_ids(target, self.n_token)
        class_L, tail = classes_and_members(target.flatten(), self.sizes, hidden.device)
        targets = [class_L, *tail.places()]
        hiddens = [hidden.flatten(0, -2)]
        if self.n_tail:
            hiddens += hiddens[0].index_select(0, tail.order_P).split(tail.lengths)
        if len(self.projs):
            hiddens = list(map(torch.matmul, hiddens, self.projs))
        parts = zip(hiddens, *self.parameters_of(tables or [*self.tables]), targets, strict=True)
        return [Cluster(*part) for part in parts], tail

    def parameters_of(self, tables: Sequence[Tensor]) -> tuple[list[Any], list[Any]]:
        """Weights and biases of all clusters; the head's last part are the tail clusters' entries."""
        weights = [*tables]
        biases = self.biases_of(tables)
        if len(weights) < len(self.sizes):  # one split has one gradient table, slices one each
            weights = split_table(weights[0], self.sizes)
            biases = [*biases[0].split(self.sizes)]
        parts = [[weight] for weight in weights], [[bias] for bias in biases]
        if self.n_tail:
            parts[0][0].append(self.cluster_weight)
            parts[1][0].append(self.cluster_bias)
        return parts

    def biases_of(self, tables: Sequence[Tensor]) -> list[Tensor]:
        """One for each word of the tables; zeros where words have none."""
        return [*self.biases] or [table.new_zeros(len(table)) for table in tables]

    def log_prob(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of all words, (..., V), for hidden states (..., D)."""
        logprobs = []
        parameters = self.parameters_of([*self.tables])
        for i, (weights, biases) in enumerate(zip(*parameters, strict=True)):
            projected = hidden @ self.projs[i] if len(self.projs) else hidden
            logit = F.linear(projected, whole(weights), whole(biases))
            logprobs.append(logit.log_softmax(-1, dtype=at_least_float32(logit.dtype)))
        head, *tails = logprobs
        shortlist, clusters = head.split([self.sizes[0], self.n_tail], dim=-1)
        tails = [clusters[..., c : c + 1] + tail for c, tail in enumerate(tails)]
        return torch.cat([shortlist, *tails], dim=-1)
