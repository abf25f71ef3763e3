"""The Transformer of 2017 (Vaswani et al.), encoder and decoder, from the blocks of the language model.

Shape letters: B batch, S tokens of the source, T tokens of the target, D d_model, V vocabulary.
"""

from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.config import ModelConfig, require
from txl.model.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from txl.model.attention import Attention, RelativeSoftmax
from txl.model.feed_forward import FeedForward
from txl.ops.dropout import Dropout
from txl.ops.numbers import sinusoid
from txl.positions import PositionEncoding

PAD, BEGIN, END = 0, 1, 2
"""Special ids; words follow them."""

_SIZES = {"n_token", "n_layer", "n_head", "d_head", "d_model", "d_inner", "d_embed", "activation"}
_CLUSTERS = {"adaptive", "cutoffs", "div_val", "not_tied", "tie_projs"}


@dataclass(frozen=True)
class Seen:
    """Which tokens each one attends to."""

    visible: Tensor
    """True where a query may attend; broadcasts to (B, 1, T, S)."""

    def mask(self, device: torch.device) -> Tensor:
        """The mask on a device."""
        return self.visible.to(device)


def not_padding(token_BS: Tensor) -> Tensor:
    """True at words, (B, 1, 1, S)."""
    return (token_BS != PAD)[:, None, None, :]


def causal(n_token: int, device: torch.device) -> Tensor:
    """True at and before each token, (T, T)."""
    return torch.ones(n_token, n_token, dtype=torch.bool, device=device).tril()


def require_served(config: ModelConfig) -> None:
    """Raise `UsageError` on settings that the 2017 model does not have."""
    had = _settings_of(config)
    served = _settings_of(ModelConfig(position="sinusoid_input"))
    for name in {**had, **served}:
        if name in _SIZES | _CLUSTERS:
            continue
        given = had.get(name)
        wanted = served.get(name)
        require(
            given == wanted,
            f"{name}={given!r}: Seq2Seq is the Transformer of 2017, built with {name}={wanted!r} only; "
            f"say so in its ModelConfig",
        )


def _settings_of(config: ModelConfig) -> dict[str, Any]:
    """Of the model and of its parts."""
    settings = {field.name: getattr(config, field.name) for field in fields(config)}
    return settings | settings.pop("own")


class AttentionOver(Attention):
    """Attention to any sequence, whose tokens see by content alone."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, PositionEncoding(config), RelativeSoftmax(config))

    def over(self, x_BTD: Tensor, source_BSD: Tensor, seen: Seen) -> Tensor:
        """What each token gathers from the tokens of the source that it sees, (B, T, D)."""
        q_BNTH = self.heads(self.q_net(x_BTD))
        k_BNSH, v_BNSH = self.keys_and_values(source_BSD)
        mask = seen.mask(x_BTD.device)
        return self.joined(F.scaled_dot_product_attention(q_BNTH, k_BNSH, v_BNSH, mask))


class EncoderLayer(nn.Module):
    """LayerNorm(x + Attention(x)), then LayerNorm(x + FeedForward(x)) (sec. 3.1)."""

    def __init__(self, config: ModelConfig, *, dropout: float) -> None:
        super().__init__()
        self.attn = AttentionOver(config)
        self.ff = FeedForward(config, dropout=dropout)
        self.attn_norm, self.ff_norm = nn.LayerNorm(config.d_model), nn.LayerNorm(config.d_model)
        self.drop = Dropout(dropout)

    def forward(self, x_BSD: Tensor, seen: Seen) -> Tensor:
        """(B, S, D) to (B, S, D)."""
        x_BSD = self.attn_norm(x_BSD + self.drop(self.attn.over(x_BSD, x_BSD, seen)))
        return self.ff_norm(x_BSD + self.ff(x_BSD))


class DecoderLayer(nn.Module):
    """An encoder layer with cross-attention to the encoder's output in between (sec. 3.1)."""

    def __init__(self, config: ModelConfig, *, dropout: float) -> None:
        super().__init__()
        self.attn, self.cross = (AttentionOver(config) for _ in range(2))
        self.ff = FeedForward(config, dropout=dropout)
        self.attn_norm, self.cross_norm, self.ff_norm = (
            nn.LayerNorm(config.d_model) for _ in range(3)
        )
        self.drop = Dropout(dropout)

    def forward(self, x_BTD: Tensor, source_BSD: Tensor, seen: Seen, seen_source: Seen) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        x_BTD = self.attn_norm(x_BTD + self.drop(self.attn.over(x_BTD, x_BTD, seen)))
        x_BTD = self.cross_norm(x_BTD + self.drop(self.cross.over(x_BTD, source_BSD, seen_source)))
        return self.ff_norm(x_BTD + self.ff(x_BTD))


class Seq2Seq(nn.Module):
    """Source tokens to the log-probabilities of target tokens.

    Both embeddings and the softmax share one table (sec. 3.4); positions are sinusoids at the input (sec. 3.5).
    `config.n_layer` layers per side; `config.n_token` words of both sides, including PAD, BEGIN and END.

    Raises:
        UsageError: if the configuration asks for a language model's settings: another position encoding or attention
            rule, LayerNorm before the sub-layers, reversible layers, a recurrence.
    """

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__()
        require_served(config)
        self.d_model = config.d_model
        self.word_emb = AdaptiveEmbedding(config)
        self.softmax = AdaptiveSoftmax(config, self.word_emb)
        self.encoder = nn.ModuleList(
            EncoderLayer(config, dropout=dropout) for _ in range(config.n_layer)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(config, dropout=dropout) for _ in range(config.n_layer)
        )
        self.drop = Dropout(dropout)
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.xavier_uniform_(weight)
        # the embedding scales it to 1
        nn.init.normal_(self.word_emb.tables[0], 0.0, config.d_model**-0.5)

    def encode(self, source_BS: Tensor) -> Tensor:
        """The encoder's output, (B, S, D)."""
        x_BSD, seen = self._embedded(source_BS), Seen(not_padding(source_BS))
        for layer in self.encoder:
            x_BSD = layer(x_BSD, seen)
        return x_BSD

    def decode(self, target_BT: Tensor, encoded_BSD: Tensor, source_BS: Tensor) -> Tensor:
        """Log-probabilities of the token after each target token, (B, T, V)."""
        x_BTD = self._embedded(target_BT)
        seen = Seen(causal(target_BT.shape[1], x_BTD.device))  # padding comes after all words
        seen_source = Seen(not_padding(source_BS))
        for layer in self.decoder:
            x_BTD = layer(x_BTD, encoded_BSD, seen, seen_source)
        return self.softmax.log_prob(x_BTD)

    def forward(self, source_BS: Tensor, target_BT: Tensor) -> Tensor:
        """Log-probabilities of the token after each target token, (B, T, V)."""
        return self.decode(target_BT, self.encode(source_BS), source_BS)

    def _embedded(self, token_BL: Tensor) -> Tensor:
        x_BLD = self.word_emb(token_BL)
        position_L = torch.arange(token_BL.shape[1], device=x_BLD.device)
        return self.drop(x_BLD + sinusoid(position_L, self.d_model, x_BLD.dtype))
