"""Sinusoids added to the embeddings, the original's attn_type 2."""

from torch import Tensor

from txl.config import ModelConfig
from txl.memory import Span
from txl.positions.base import PositionEncoding, placed, sinusoid


class SinusoidInput(PositionEncoding):
    """Sinusoids of the position added to what the first layer reads.

    x_t = embedding_t + S_p          p = position of t, from the first remembered token

    Source: Vaswani et al. 2017 (arXiv 1706.03762), sec. 3.5; kimiyoung/transformer-xl, attn_type 2.
    Memory: the first layer remembers embeddings without sinusoids and adds those of their new positions when it reads
    them again. The layers above remember hidden states, in which the positions of when they were computed survive.
    Differs from kimiyoung/transformer-xl: there the sinusoids are added to the memory in place, at each segment once
    more on top of those already in it; with `pre_lnorm` queries there are made from states that are not normalised;
    embedding and sinusoid have a common dropout mask. Positions there count back from the last token, so that a token's
    encoding depends on where the segment ends; ours count from the start, and with `count_back` (weights of the
    original have it) as there. Then, and only then, `clamp_len` clamps them.
    Shared by all layers: nothing to share. No weights.
    Works with: softmax, performer, lsh.
    Cost: S D additions in the first layer; hidden states are remembered in evaluation.
    Beyond the trained length: works, with positions that were never trained.
    """

    settings = ("count_back",)

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__(config, dropout=dropout)
        self.clamps = self.count_back = config.count_back

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        """The sinusoids of all keys, (S, D)."""
        positions_S = span.distances_S(like.device) if self.count_back else span.key_positions_S(like.device)
        return self.drop(sinusoid(positions_S, like.shape[-1], like.dtype))

    def layer_input(self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        if self.layer > 0:
            return x_BTD, mem_BMD
        return placed(x_BTD, mem_BMD, feats)
