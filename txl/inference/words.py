"""Probabilities of words, cluster by cluster, with weights that do not change."""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from txl.model.adaptive import AdaptiveSoftmax
from txl.model.transformer import TransformerXL
from txl.ops.linear import linear, linear_in_part
from txl.ops.numbers import at_least_float32
from txl.ops.packed import PackedLinear


class WordProbabilities:
    """What `AdaptiveSoftmax.log_prob` gives, of the head first, and of a tail cluster where it is
    needed.

    Under autocast whole tables are multiplied where there are several, whose casts it caches.

    Args:
        packed_head: the head's weights, if those of the model are packed.
    """

    def __init__(self, softmax: AdaptiveSoftmax, packed_head: PackedLinear | None = None) -> None:
        self.softmax = softmax
        self.sizes = softmax.sizes
        self.n_tail = softmax.n_tail
        self._packed_head = packed_head

    @classmethod
    def of(cls, model: TransformerXL) -> "WordProbabilities":
        """Those of a model, whose weights must not change any more."""
        o_net = model.layers[0].attn.o_net
        if isinstance(o_net, PackedLinear) and o_net.is_ordered:
            return cls(model.softmax, _packed_head(model.softmax))
        return cls(model.softmax)

    def all(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of all words, (..., V), for hidden states (..., D)."""
        shortlist, clusters = self.head(hidden)
        tails = []
        for c in range(self.n_tail):
            tails.append(clusters[..., c : c + 1] + self.tail(hidden, c))
        return torch.cat([shortlist, *tails], dim=-1)

    def head(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the shortlist's words, and of each tail cluster as a whole."""
        shortlist, clusters = _log_softmax(self._head_logits(hidden)).split(
            [self.sizes[0], self.n_tail], dim=-1
        )
        return shortlist, clusters

    def tail(self, hidden: Tensor, c: int) -> Tensor:
        """Log-probabilities of the words of tail cluster c, given that cluster."""
        return _log_softmax(linear_in_part(*self._cluster(hidden, 1 + c)))

    def _head_logits(self, hidden: Tensor) -> Tensor:
        hidden, weight, bias = self._cluster(hidden, 0)
        if self._packed_head is not None:
            return self._packed_head(hidden)
        logit = linear_in_part(hidden, weight, bias)
        if self.n_tail:
            of_clusters = linear(hidden, self.softmax.cluster_weight, self.softmax.cluster_bias)
            logit = torch.cat([logit, of_clusters], dim=-1)
        return logit

    def _cluster(self, hidden: Tensor, i: int) -> tuple[Tensor, Tensor, Tensor]:
        """The projected hidden state, and the weight and bias of cluster i's words; the shortlist
        is cluster 0.
        """
        tables = self.softmax.tables
        biases = self.softmax.biases_of([*tables])
        if len(self.softmax.projs):
            hidden = hidden @ self.softmax.projs[i]
        if len(tables) == len(self.sizes):
            return hidden, tables[i], biases[i]
        return hidden, tables[0].split(self.sizes)[i], biases[0].split(self.sizes)[i]


_PACKED: WeakKeyDictionary[AdaptiveSoftmax, PackedLinear] = WeakKeyDictionary()
"""The heads of models that are there: a copy of their weights, made once."""


def _packed_head(softmax: AdaptiveSoftmax) -> PackedLinear:
    if softmax not in _PACKED:
        weights, biases = softmax.parameters_of([*softmax.tables])
        _PACKED[softmax] = PackedLinear(torch.cat(weights[0]), torch.cat(biases[0]))
    return _PACKED[softmax]


def _log_softmax(logit: Tensor) -> Tensor:
    return logit.log_softmax(-1, dtype=at_least_float32(logit.dtype))
