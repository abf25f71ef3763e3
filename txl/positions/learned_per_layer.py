"""A learned vector per position in every layer, the original's attn_type 3."""

import torch
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.memory import Span
from txl.positions.base import PositionEncoding, placed, rows_of_positions_S, rows_of_table


class LearnedPerLayer(PositionEncoding):
    """A learned vector of the position added to what each layer reads.

    x_t <- x_t + P_p          P a learned table with R rows, another one in each layer; p = position of t

    Source: Al-Rfou et al. 2019 (arXiv 1808.04444), "Positional Embeddings"; kimiyoung/transformer-xl, attn_type 3,
    where P is `r_emb`.
    Memory: a layer remembers what it read without P and adds the rows of its new positions when it reads it again; rows
    of the layers below survive in it.
    Differs from kimiyoung/transformer-xl: there the rows are added to the memory in place, at each segment once more on
    top of those already in it; with `pre_lnorm` queries there are made from states that are not normalised; positions
    there count back from the last token, so that a token's row depends on where the segment ends. Ours count from the
    first remembered token, and with `count_back` (weights of the original have it) as there.
    Shared by all layers: nothing. R is `n_position`, the longest span in training.
    Works with: softmax, performer, lsh.
    Cost: S D additions per layer; hidden states are remembered in evaluation.
    Beyond the trained length: the last R tokens have a row each, and all before them share the farthest one, as in the
    original. `clamp_len` has a meaning with `count_back` only.
    """

    settings = ("n_position", "count_back")

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        self.clamps = self.count_back = config.count_back
        self.p_RD = nn.Parameter(torch.randn(rows_of_table(config), config.d_model) * 0.02)

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        """The row of each key, (S,)."""
        if self.count_back:
            return span.distances_S(like.device).clamp(max=len(self.p_RD) - 1)
        return rows_of_positions_S(span, len(self.p_RD), like.device)

    def layer_input(self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        return placed(x_BTD, mem_BMD, self.p_RD[feats])
