"""Learned absolute positions."""

import torch
from torch import Tensor, nn

from txl.config import ModelConfig
from txl.model.span import Span
from txl.positions.base import (
    PositionEncoding,
    TableSettings,
    add_positions,
    draw_like_sinusoids,
    rows_of_positions_S,
    rows_of_table,
)


class LearnedAbsolute(PositionEncoding):
    """A learned vector of the position added to what queries and keys are projected from.

        q_t = W_q (x_t + P_t)
        k_s = W_k (x_s + P_s)
        v_s = W_v x_s            P a learned table with R rows

    Source: Gehring et al. 2017 (arXiv 1705.03122), sec. 3.1, for the table; Press et al. 2021,
    Shortformer (arXiv 2012.15832), sec. 5, for adding positions in every layer and never to values,
    so that hidden states carry none and can be remembered.
    Differs from Gehring et al.: P is not added to the embeddings, because it would remain in the
    memory.
    Shared by all layers: P, unless `untie_r`. R is `n_position`, the longest span in training.
    Positions count from the first remembered token.
    Works with: softmax, performer, lsh.
    Cost: S D additions per layer; hidden states are remembered in evaluation.
    Beyond the trained length: the last R tokens have a row each, and all earlier ones share the
    first.
    """

    shared = ("p_RD",)
    Settings = TableSettings
    clamps = False

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        self.p_RD = nn.Parameter(torch.empty(rows_of_table(config), config.d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """P has the scale of the hidden states that it is added to."""
        draw_like_sinusoids(self.p_RD)

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        """The row of each key, (S,)."""
        return rows_of_positions_S(span, len(self.p_RD), like.device)

    def qk_input(
        self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span
    ) -> tuple[Tensor, Tensor]:
        return add_positions(x_BTD, mem_BMD, self.drop(self.p_RD[feats]))
