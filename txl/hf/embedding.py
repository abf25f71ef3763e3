"""The word embedding and the encoding of distances, under their published names."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.convert.kimiyoung_names import inv_freq
from txl.hf.linear import resized
from txl.ops.lookup import check_ids
from txl.ops.numbers import is_autocast_on, widened
from txl.ops.sinusoid import sinusoid


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
