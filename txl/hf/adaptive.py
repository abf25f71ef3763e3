"""The adaptive word embedding and softmax and the encoding of distances, under their published
names.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.convert.kimiyoung import inv_freq
from txl.hf.layers import is_plain, part_of_linear, resized
from txl.ops.linear_cross_entropy import linear_cross_entropy
from txl.ops.lookup import check_ids, classes_and_members
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
        sizes, widths = _tables(shape)
        self.sizes = list(sizes)
        self.emb_layers = nn.ModuleList(map(nn.Embedding, sizes, widths))
        self.emb_projs = _projections(shape, widths)

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
        sizes, widths = _tables(shape)
        self.out_layers = nn.ModuleList(map(nn.Linear, widths, sizes))
        self.out_projs = _projections(shape, shape.cluster_widths)

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
        class_L, tail = classes_and_members(target.flatten(), self.sizes, hidden.device)
        hidden_LD = hidden.flatten(0, -2)
        nats_L = self._nats(hidden_LD, 0, class_L)
        of_tail = hidden_LD[tail.order_P].split(tail.lengths)
        nats = []
        for i, (hidden_PD, place_P) in enumerate(zip(of_tail, tail.places(), strict=True), 1):
            # no rows: the weights still get gradients
            nats.append(self._nats(hidden_PD, i, place_P))
        return tail.added(nats_L, nats).view(target.shape)

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
        head, *tails = (_log_softmax(self._logits(hidden, i)) for i in range(len(self.sizes)))
        shortlist, clusters = head.split([self.sizes[0], self.n_tail], dim=-1)
        tails = [clusters[..., c : c + 1] + tail for c, tail in enumerate(tails)]
        return torch.cat([shortlist, *tails], dim=-1)

    def _nats(self, hidden_LD: Tensor, i: int, target_L: Tensor) -> Tensor:
        """Nats of words within cluster i; the head is cluster 0.

        Logits of plain layers are not all stored.
        """
        layer, first, last = self._part(i)
        if not is_plain(layer, nn.Linear) or layer.bias is None:
            return F.cross_entropy(widened(self._logits(hidden_LD, i)), target_L, reduction="none")
        weights = [layer.weight[first:last]]
        biases = [layer.bias[first:last]]
        if i == 0 and self.n_tail:
            weights.append(self.cluster_weight)
            biases.append(self.cluster_bias)
        return linear_cross_entropy(self._projected(hidden_LD, i), weights, biases, target_L)

    def _logits(self, hidden: Tensor, i: int) -> Tensor:
        """Of the words of cluster i; of the head also those of the tail clusters as a whole."""
        hidden = self._projected(hidden, i)
        layer, first, last = self._part(i)
        logit = part_of_linear(layer, hidden, first, last)
        if i > 0 or self.n_tail == 0:
            return logit
        return torch.cat([logit, F.linear(hidden, self.cluster_weight, self.cluster_bias)], dim=-1)

    def _projected(self, hidden: Tensor, i: int) -> Tensor:
        if len(self.out_projs):
            return hidden @ self.out_projs[i]
        return hidden

    def _part(self, i: int) -> tuple[nn.Module, int, int]:
        """The layer of cluster i, and where the words of the cluster are in it."""
        if len(self.out_layers) > 1:
            return self.out_layers[i], 0, self.sizes[i]
        first = sum(self.sizes[:i])
        return self.out_layers[0], first, first + self.sizes[i]


def _log_softmax(logit: Tensor) -> Tensor:
    return logit.log_softmax(-1, dtype=at_least_float32(logit.dtype))


def _tables(shape: ModelConfig) -> tuple[Sequence[int], Sequence[int]]:
    """Words and widths of the tables: one for all clusters with div_val 1, else one for each."""
    if shape.div_val == 1:
        return (shape.n_token,), (shape.d_embed,)
    return shape.cluster_sizes, shape.cluster_widths


def _projections(shape: ModelConfig, widths: Sequence[int]) -> nn.ParameterList:
    """Between the width of each table and d_model, not drawn yet; none if they are the same."""
    if shape.div_val == 1 and shape.d_embed == shape.d_model:
        widths = ()
    return nn.ParameterList(nn.Parameter(torch.empty(shape.d_model, width)) for width in widths)
