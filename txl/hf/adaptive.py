"""The adaptive word embedding and softmax and the encoding of distances, under their published
names.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.convert.kimiyoung import inv_freq
from txl.hf.layers import is_plain, part_of_linear, resized
from txl.ops.linear_cross_entropy import linear_cross_entropy
from txl.ops.lookup import check_ids
from txl.ops.numbers import at_least_float32, is_autocast_on, sinusoid, widened
from txl.ops.operator import is_traced


class AdaptiveEmbedding(nn.Module):
    """Token ids to hidden states, scaled by sqrt(d_model); see `txl.model.adaptive`.

    Every table reads all tokens, and the states of those that lie in its cluster are taken: sizes
    do not depend on the ids, so the module can be exported.
    """

    def __init__(self, shape: ModelConfig) -> None:
        super().__init__()
        self.scale = shape.d_model**0.5
        if shape.div_val == 1:
            self.sizes = [shape.n_token]
            widths = [shape.d_embed]
        else:
            self.sizes = list(shape.cluster_sizes)
            widths = list(shape.cluster_widths)
        self.emb_layers = nn.ModuleList(map(nn.Embedding, self.sizes, widths))
        self.emb_projs = nn.ParameterList()
        if shape.div_val > 1 or shape.d_embed != shape.d_model:
            self.emb_projs.extend(
                nn.Parameter(torch.empty(shape.d_model, width)) for width in widths
            )

    def forward(self, token_BT: Tensor) -> Tensor:
        """Hidden states (B, T, D).

        Raises `ValueError` if an id is outside the vocabulary (on a CPU).
        """
        check_ids(token_BT, sum(self.sizes))
        h_BTD = self._embedded(0, token_BT)
        first = self.sizes[0]
        for i in range(1, len(self.sizes)):
            is_before_BT = (token_BT < first)[..., None]
            h_BTD = h_BTD.where(is_before_BT, self._embedded(i, token_BT - first))
            first += self.sizes[i]
        if is_autocast_on(h_BTD.device):  # weights in half precision; sums of layers are not
            h_BTD = widened(h_BTD)
        return h_BTD * self.scale

    def resize(self, n_token: int, std: float | None) -> None:
        """Add words to the last cluster, or take its last ones away; see `resized`."""
        self.sizes[-1] += n_token - sum(self.sizes)
        table = self.emb_layers[-1]
        assert isinstance(table, nn.Embedding)
        table.weight = resized(table.weight, self.sizes[-1], std)
        table.num_embeddings = self.sizes[-1]

    def _embedded(self, i: int, place_BT: Tensor) -> Tensor:
        """The states of words of cluster i; those of words of other clusters are arbitrary."""
        if i > 0:
            place_BT = place_BT.clamp(min=0)
        if i < len(self.sizes) - 1:
            place_BT = place_BT.clamp(max=self.sizes[i] - 1)
        h_BTE = self.emb_layers[i](place_BT)
        if len(self.emb_projs):
            return F.linear(h_BTE, self.emb_projs[i])
        return h_BTE


class DistanceEncoding(nn.Module):
    """Sinusoids of distances. The buffer is saved because transformers 4 has it, and never read:
    computed anew, the frequencies are right in every dtype.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.register_buffer("inv_freq", inv_freq(d_model))

    def forward(self, distance_S: Tensor, dtype: torch.dtype) -> Tensor:
        """(S,) to (S, D)."""
        return sinusoid(distance_S, self.d_model, dtype)


class AdaptiveSoftmax(nn.Module):
    """Hidden states to log-probabilities, or to losses in nats; see `txl.model.adaptive`.

    With div_val 1 one linear layer holds the words of all clusters.
    """

    def __init__(self, shape: ModelConfig) -> None:
        super().__init__()
        self.sizes = list(shape.cluster_sizes)
        self.n_tail = len(self.sizes) - 1
        if self.n_tail:
            self.cluster_weight = nn.Parameter(torch.empty(self.n_tail, shape.d_embed))
            self.cluster_bias = nn.Parameter(torch.empty(self.n_tail))
        if shape.div_val == 1:
            self.out_layers = nn.ModuleList([nn.Linear(shape.d_embed, shape.n_token)])
            widths = [shape.d_embed] * len(self.sizes)
        else:
            self.out_layers = nn.ModuleList(map(nn.Linear, shape.cluster_widths, self.sizes))
            widths = list(shape.cluster_widths)
        self.out_projs = nn.ParameterList()
        if shape.div_val > 1 or shape.d_embed != shape.d_model:
            self.out_projs.extend(
                nn.Parameter(torch.empty(shape.d_model, width)) for width in widths
            )

    def forward(self, hidden: Tensor, target: Tensor | None = None) -> Tensor:
        """Log-probabilities of all words, (..., V), for hidden states (..., D); the nats of
        `target` (...), if given. Raises `ValueError` if a target is outside the vocabulary (on a
        CPU).
        """
        if target is None:
            return self._log_prob(hidden)
        check_ids(target, sum(self.sizes))
        if is_traced():  # the tokens of a cluster are no fixed number
            return -self._log_prob(hidden).gather(-1, target[..., None]).squeeze(-1)
        return self._nats(hidden.flatten(0, -2), target.flatten()).view(target.shape)

    def resize(self, n_token: int, std: float | None) -> None:
        """Add words to the last cluster, or take its last ones away; see `resized`."""
        n_new = n_token - sum(self.sizes)
        self.sizes[-1] += n_new
        layer = self.out_layers[-1]
        assert isinstance(layer, nn.Linear)
        layer.out_features += n_new
        layer.weight = resized(layer.weight, layer.out_features, std)
        layer.bias = resized(layer.bias, layer.out_features, None if std is None else 0.0)

    def _log_prob(self, hidden: Tensor) -> Tensor:
        shortlist, clusters = _log_softmax(self._logits(hidden, 0)).split(
            [self.sizes[0], self.n_tail], dim=-1
        )
        tails = []
        for i in range(1, len(self.sizes)):
            tails.append(clusters[..., i - 1 : i] + _log_softmax(self._logits(hidden, i)))
        return torch.cat([shortlist, *tails], dim=-1)

    def _nats(self, hidden_LD: Tensor, target_L: Tensor) -> Tensor:
        class_L = target_L.clone()
        tails: list[tuple[Tensor, Tensor]] = []
        first = self.sizes[0]
        for i in range(1, len(self.sizes)):
            order_P = (
                ((target_L >= first) & (target_L < first + self.sizes[i])).nonzero().squeeze(1)
            )
            tails.append((order_P, target_L[order_P] - first))
            class_L[order_P] = self.sizes[0] + i - 1
            first += self.sizes[i]
        nats_L = self._nats_of_cluster(hidden_LD, 0, class_L)
        for i, (order_P, place_P) in enumerate(tails, start=1):
            # no rows: the weights still get gradients
            nats_P = self._nats_of_cluster(hidden_LD[order_P], i, place_P)
            nats_L = nats_L.index_add(0, order_P, nats_P)
        return nats_L

    def _nats_of_cluster(self, hidden_LD: Tensor, i: int, target_L: Tensor) -> Tensor:
        """Nats of words within cluster i; the head is cluster 0.

        Logits of plain layers are not all stored.
        """
        layer = self._layer(i)
        if not is_plain(layer, nn.Linear) or layer.bias is None:
            return F.cross_entropy(widened(self._logits(hidden_LD, i)), target_L, reduction="none")
        first, last = self._rows(i)
        weights = [layer.weight[first:last]]
        biases = [layer.bias[first:last]]
        if i == 0 and self.n_tail:
            weights.append(self.cluster_weight)
            biases.append(self.cluster_bias)
        return linear_cross_entropy(self._projected(hidden_LD, i), weights, biases, target_L)

    def _logits(self, hidden: Tensor, i: int) -> Tensor:
        """Of the words of cluster i; of the head also those of the tail clusters as a whole."""
        hidden = self._projected(hidden, i)
        if len(self.out_layers) == len(self.sizes):
            logit = self.out_layers[i](hidden)
        else:
            logit = part_of_linear(self._layer(i), hidden, *self._rows(i))
        if i == 0 and self.n_tail:
            logit = torch.cat(
                [logit, F.linear(hidden, self.cluster_weight, self.cluster_bias)], dim=-1
            )
        return logit

    def _projected(self, hidden: Tensor, i: int) -> Tensor:
        if len(self.out_projs):
            return hidden @ self.out_projs[i]
        return hidden

    def _layer(self, i: int) -> nn.Module:
        return self.out_layers[i if len(self.out_layers) == len(self.sizes) else 0]

    def _rows(self, i: int) -> tuple[int, int]:
        """Where the words of cluster i are in its layer."""
        if len(self.out_layers) == len(self.sizes):
            first = 0
        else:
            first = sum(self.sizes[:i])
        return first, first + self.sizes[i]


def _log_softmax(logit: Tensor) -> Tensor:
    return logit.log_softmax(-1, dtype=at_least_float32(logit.dtype))
