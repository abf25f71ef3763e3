"""Words in and words out: adaptive embedding and adaptive softmax, the plain ones being the case without cutoffs.

Source: Grave et al. 2017 (adaptive softmax), Baevski and Auli 2019 (adaptive input, tied), Dai et al. 2019, sec. 4.1.
The vocabulary, most frequent words first, is cut into a shortlist and C tail clusters; cluster i has its own
embedding width E_i = d_embed // div_val^i and a projection of d_model x E_i.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.config import ModelConfig


def _table(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * 0.02)


def _check_ids(ids: Tensor, n_token: int) -> None:
    # on a GPU the look would be a device sync in every step; there the kernels' own assertions must do
    if ids.device.type == "cpu" and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < n_token:
        raise ValueError(f"token ids must lie in [0, {n_token}), got {int(ids.min())} to {int(ids.max())}")


class AdaptiveEmbedding(nn.Module):
    """Token ids to hidden states, scaled by sqrt(d_model).

    With div_val 1 one table serves all clusters, and is projected only if d_embed differs from d_model; with a larger
    one each cluster has a table and a projection, always.
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

    def forward(self, token_BT: Tensor) -> Tensor:
        """Hidden states (B, T, D).

        Raises:
            ValueError: if an id lies outside the vocabulary (looked at on the CPU only).
        """
        _check_ids(token_BT, self.n_token)
        if len(self.tables) == 1:
            out = F.embedding(token_BT, self.tables[0])
            out = F.linear(out, self.projs[0]).to(out.dtype) if len(self.projs) else out  # autocast narrows it
        else:
            out = self._by_cluster(token_BT.flatten()).view(*token_BT.shape, -1)
        return out * self.d_model**0.5

    def _by_cluster(self, token_L: Tensor) -> Tensor:
        out_LD = self.projs[0].new_zeros(len(token_L), self.d_model)
        first = 0
        for size, table, proj in zip(self.sizes, self.tables, self.projs, strict=True):
            # a cluster that no token falls in is computed with zero rows, so that its weights still get a gradient
            index = ((token_L >= first) & (token_L < first + size)).nonzero().squeeze(1)
            row_LD = F.linear(F.embedding(token_L[index] - first, table), proj)
            out_LD = out_LD.index_copy(0, index, row_LD.to(out_LD.dtype))
            first += size
        return out_LD


class Cluster(NamedTuple):
    """What one cluster's logits are made of: ((hidden @ proj) @ weight.T) + bias; no `proj` means none."""

    weight: Tensor
    bias: Tensor
    proj: Tensor | None

    def logits(self, hidden_LD: Tensor) -> Tensor:
        return F.linear(hidden_LD if self.proj is None else hidden_LD @ self.proj, self.weight, self.bias)


class AdaptiveSoftmax(nn.Module):
    """Hidden states to nats, or to the log-probabilities of all words.

    p(w) = p_head(w) for a word of the shortlist, p_head(cluster c) p_c(w) for a word of tail cluster c.
    The head ranges over the shortlist and one entry per tail cluster, all in shortlist space.

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

    def _projs(self, config: ModelConfig, embedding: AdaptiveEmbedding) -> Iterator[nn.Parameter]:
        if not len(embedding.projs):
            return
        for i in range(len(self.sizes)):
            theirs = embedding.projs[0 if config.div_val == 1 else i]
            tied = i < len(config.tie_projs) and config.tie_projs[i]
            yield theirs if tied else _table(*theirs.shape)

    def nll(self, hidden: Tensor, target: Tensor) -> Tensor:
        """Negative log-likelihood of each target, in nats, in the order of the tokens.

        Args:
            hidden: output of the last layer, (..., D).
            target: token ids, (...).
        Raises:
            ValueError: if an id lies outside the vocabulary (looked at on the CPU only).
        """
        _check_ids(target, self.n_token)
        hidden_LD, target_L = hidden.flatten(0, -2), target.flatten()
        head, *tails = self._clusters()
        column_L, members = self._group(target_L)
        nll_L = F.cross_entropy(head.logits(hidden_LD), column_L, reduction="none")
        for tail, (first, index) in zip(tails, members, strict=True):
            tail_nll = F.cross_entropy(tail.logits(hidden_LD[index]), target_L[index] - first, reduction="none")
            nll_L = nll_L.index_add(0, index, tail_nll.to(nll_L.dtype))
        return nll_L.view(target.shape)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of all words, (..., V), for hidden states (..., D)."""
        head, *tails = self._clusters()
        head_logprob = head.logits(hidden).log_softmax(-1)
        shortlist, cluster = head_logprob.split([self.sizes[0], self.n_tail], dim=-1)
        parts = [shortlist]
        for c, tail in enumerate(tails):
            parts.append(cluster[..., c : c + 1] + tail.logits(hidden).log_softmax(-1))
        return torch.cat(parts, dim=-1)

    def _clusters(self) -> list[Cluster]:
        """The head (shortlist and cluster entries) and the tail clusters."""
        if len(self.tables) == 1:  # split, not slices: the gradients of slices would each be as large as the table
            weights, biases = self.tables[0].split(self.sizes), self.biases[0].split(self.sizes)
        else:
            weights, biases = list(self.tables), list(self.biases)
        projs = list(self.projs) if len(self.projs) else [None] * len(self.sizes)
        head, *tails = (Cluster(*parts) for parts in zip(weights, biases, projs, strict=True))
        if self.n_tail:
            weight = torch.cat([head.weight, self.cluster_weight])
            head = Cluster(weight, torch.cat([head.bias, self.cluster_bias]), head.proj)
        return [head, *tails]

    def _group(self, target_L: Tensor) -> tuple[Tensor, list[tuple[int, Tensor]]]:
        """The head's column of each target, and per tail cluster its first word and the tokens that fall in it."""
        column_L = target_L.clone()
        members = []
        first = self.sizes[0]
        for c, size in enumerate(self.sizes[1:]):
            inside = (target_L >= first) & (target_L < first + size)
            column_L.masked_fill_(inside, self.sizes[0] + c)
            members.append((first, inside.nonzero().squeeze(1)))
            first += size
        return column_L, members
