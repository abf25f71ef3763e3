"""A learned vector per position in every layer, the original's attn_type 3."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.model.span import Span
from txl.positions.base import (
    CountingSettings,
    PositionEncoding,
    TableSettings,
    add_positions,
    rows_of_positions_S,
    rows_of_table,
)


class LearnedPerLayer(PositionEncoding):
    """A learned vector of the position added to each layer's input.

        x_t <- x_t + P_p          P a learned table with R rows, one per layer; p = position of t

    Source: Al-Rfou et al. 2019 (arXiv 1808.04444), "Positional Embeddings";
    kimiyoung/transformer-xl, attn_type 3, where P is `r_emb`.
    Memory: a layer stores its input without P and adds the rows of the current positions at each
    read; rows added in lower layers remain in it.
    Differs from kimiyoung/transformer-xl: there the rows are added to the memory in place, again at
    each segment; with `pre_lnorm` queries are projected from unnormalised states; positions count
    back from the last token, so a token's row depends on the end of the segment. Ours count from
    the first remembered token; with `count_back` (set for the original's weights) as there.
    Shared by all layers: nothing. R is `n_position`, the longest span in training.
    Works with: softmax, performer, lsh.
    Cost: S D additions per layer; hidden states are remembered in evaluation.
    Beyond the trained length: the last R tokens have a row each, and all earlier ones share the
    farthest, as in the original. `clamp_len` needs `count_back`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(TableSettings, CountingSettings):
        pass

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        self.clamps = self.count_back = config.settings(self.Settings).count_back
        self.p_RD = nn.Parameter(torch.randn(rows_of_table(config), config.d_model) * 0.02)

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        """The row of each key, (S,)."""
        if self.count_back:
            return span.distances_S(like.device).clamp(max=len(self.p_RD) - 1)
        return rows_of_positions_S(span, len(self.p_RD), like.device)

    def layer_input(
        self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span
    ) -> tuple[Tensor, Tensor]:
        return add_positions(x_BTD, mem_BMD, self.p_RD[feats])
