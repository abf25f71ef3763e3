"""Sinusoids added to the embeddings, the original's attn_type 2."""

from torch import Tensor

from txl.config import ModelConfig
from txl.model.span import Span
from txl.ops.numbers import sinusoid
from txl.positions.base import CountingSettings, PositionEncoding, add_positions


class SinusoidInput(PositionEncoding):
    """Sinusoids of the position added to the first layer's input.

        x_t = embedding_t + S_p          p = position of t, from the first remembered token

    Source: Vaswani et al. 2017 (arXiv 1706.03762), sec. 3.5; kimiyoung/transformer-xl, attn_type 2.
    Memory: the first layer stores embeddings without sinusoids and adds those of the current
    positions at each read. Higher layers store hidden states, which still contain the positions at
    which they were computed.
    Differs from kimiyoung/transformer-xl: there the sinusoids are added to the memory in place,
    again at each segment; with `pre_lnorm` queries are projected from unnormalised states;
    embedding and sinusoid share a dropout mask; positions count back from the last token, so a
    token's encoding depends on the end of the segment. Ours count from the start; with `count_back`
    (set for the original's weights) as there, and only then `clamp_len` applies.
    Shared by all layers: nothing. No weights.
    Works with: softmax, performer, lsh.
    Cost: S D additions in the first layer; hidden states are remembered in evaluation.
    Beyond the trained length: works, with untrained positions.
    """

    Settings = CountingSettings

    has_sinusoids = True

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        self.clamps = self.count_back = config.settings(self.Settings).count_back

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        """The sinusoids of all keys, (S, D)."""
        if self.count_back:
            positions_S = span.distances_S(like.device)
        else:
            positions_S = span.key_positions_S(like.device)
        return self.drop(sinusoid(positions_S, like.shape[-1], like.dtype))

    def layer_input(
        self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span
    ) -> tuple[Tensor, Tensor]:
        if self.layer > 0:
            return x_BTD, mem_BMD
        return add_positions(x_BTD, mem_BMD, feats)
