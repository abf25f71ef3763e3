"""The interface of position encodings, and functions that several of them share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.config import SIZE, ModelConfig, PartSettings, UsageError, option
from txl.model.attention import Attention, Then
from txl.model.layer import Layer
from txl.model.span import Span
from txl.ops.dropout import Dropout
from txl.ops.numbers import as_multiplied
from txl.ops.rel_attention import with_memory
from txl.registry import reads


class RelativeTerms(NamedTuple):
    """The terms of logits of the form scale * [(q_t + u).k_s + (q_t + w).r_(t-s)], see
    `txl.ops.rel_attention`.
    """

    r_SNH: Tensor
    """One row per distance, S-1 ... 0."""
    u_NH: Tensor
    w_NH: Tensor


class PositionEncoding(nn.Module):
    """Adds positions to attention. A subclass overrides only the hooks that its paper describes.

    The hooks, in the order of the computation:
        prepare       features that depend on positions only; once per forward pass, for all layers
        layer_input   changes the input of a layer, including residual connection and values
        project       projects the features with this layer's weights; cached in evaluation
        qk_input      changes the hidden states that queries and keys (never values) are projected from
        transform_qk  changes projected queries and keys
        score         a term added to the scaled logits
        value         a term added to the attention output
        relative      instead of score, if the logits have the form of `RelativeTerms`

    Memory holds hidden states without positions; they get their current positions at each read.
    Settings of its own are a dataclass `Settings` in the class, see `txl.config.PartSettings`;
    flags that the chosen encoding does not read are refused.
    """

    shared: ClassVar[tuple[str, ...]] = ()
    """Names of parameters and modules that all layers share."""
    by_distance: ClassVar[bool] = False
    """`prepare` and `project` return one row per distance, S-1 ... 0; shorter spans use the last
    rows.
    """
    has_sinusoids: ClassVar[bool] = False
    """Its features of width d_model are half sines, half cosines."""
    clamps: bool = True
    """Supports `clamp_len`."""
    count_back: bool = False
    """Positions count back from the end of the segment."""
    mixes_hidden_states: ClassVar[bool] = False
    """Its matrices multiply hidden states, as those of the layers do, and not features of
    positions. Muon leaves matrices that are fed with positions to AdamW: turned by it, they fit the
    distances met in training only.
    """
    layer: int = 0
    """Index of its layer, from 0."""

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.scale = config.d_head**-0.5  # of all logits that the paper scales
        self.drop = Dropout(dropout)
        self.name = config.position

    def reset_parameters(self) -> None:
        """Initialise the weights that need their own initialisation, see `txl.training.init`."""

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        """Features that depend on positions only, for all layers, with device
        and dtype of `like`.
        """
        return like.new_empty(0)

    def layer_input(
        self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span
    ) -> tuple[Tensor, Tensor]:
        """The layer input for new and for remembered tokens; the stored memory stays without
        positions.
        """
        return x_BTD, mem_BMD

    def project(self, feats: Tensor) -> Tensor:
        """This layer's projection of the features, passed to `score`, `value` and `relative`."""
        return feats

    def project_for_all(
        self, encodings: Sequence["PositionEncoding"], feats: Tensor
    ) -> Sequence[RelativeTerms] | None:
        """The terms of the logits of each layer, projected in one product: what `project` and
        `relative` then return as it is. None: each layer projects its own.
        """
        return None

    def qk_input(
        self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span
    ) -> tuple[Tensor, Tensor]:
        """The hidden states of new and remembered tokens that queries and keys
        are projected from.
        """
        return x_BTD, mem_BMD

    def transform_qk(
        self, q_BNTH: Tensor, k_BNSH: Tensor, feats: Tensor, span: Span
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys as they enter the dot product."""
        return q_BNTH, k_BNSH

    def score(self, q_BNTH: Tensor, k_BNSH: Tensor, feats: Tensor, span: Span) -> Tensor | None:
        """A term of shape (B, N, T, S), or one that broadcasts to it, added to scale * q.k; None
        for no term.

        Entries of masked pairs may hold any value.
        """
        return None

    def value(self, prob_BNTS: Tensor, feats: Tensor, span: Span) -> Tensor | None:
        """A term of shape (B, N, T, H) added to the attention output; None for no term."""
        return None

    def relative(self, feats: Tensor) -> RelativeTerms:
        """The terms of the logits. Rows of clamped distances are equal, except for dropout."""
        raise NotImplementedError(f"{self.name}: its logits are not of this form")

    @classmethod
    def reads(cls) -> frozenset[str]:
        """The settings it reads: its own, and `untie_r`, `attn_impl` and `attn_keep_mib` where they
        apply.
        """
        relative = cls.is_relative()
        follow = {"untie_r": bool(cls.shared), "attn_impl": relative, "attn_keep_mib": relative}
        return reads(cls) | {name for name, is_read in follow.items() if is_read}

    @classmethod
    def places_hidden_states(cls) -> bool:
        """True if keys depend on their position in the span, so they cannot be cached."""
        hooks = (cls.qk_input, cls.layer_input)
        return hooks != (PositionEncoding.qk_input, PositionEncoding.layer_input)

    @classmethod
    def attention_class(cls) -> type[Attention]:
        """The attention that calls the hooks of this encoding."""
        hooks = (cls.qk_input, cls.transform_qk)
        if hooks == (PositionEncoding.qk_input, PositionEncoding.transform_qk):
            return Attention
        return PlacedAttention

    @classmethod
    def layer_class(cls) -> type[Layer]:
        """The layer that calls the hooks of this encoding."""
        if cls.layer_input is PositionEncoding.layer_input:
            return Layer
        return PlacedLayer

    @classmethod
    def is_relative(cls) -> bool:
        """True if the logits have the form of `RelativeTerms`."""
        return cls.relative is not PositionEncoding.relative

    @classmethod
    def needs_scores(cls) -> bool:
        """True if the encoding needs the T x S logits, which linear attention does not compute."""
        hooks = ("score", "value", "relative")
        return any(getattr(cls, hook) is not getattr(PositionEncoding, hook) for hook in hooks)


class PlacedAttention(Attention):
    """Attention whose queries and keys are changed by the position encoding."""

    def project(
        self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Attention.project`."""
        x_BTD = as_multiplied(x_BTD)
        mem_BMD = as_multiplied(mem_BMD).to(x_BTD.dtype)
        placed_BTD, placed_BMD = self.pos.qk_input(x_BTD, mem_BMD, feats, span)
        k_BNSH = with_memory(self.heads(self.k_net(placed_BMD)), self.heads(self.k_net(placed_BTD)))
        q_BNTH = self.heads(self.q_net(placed_BTD))
        v_BNSH = with_memory(self.heads(self.v_net(mem_BMD)), self.heads(self.v_net(x_BTD)))
        return q_BNTH, k_BNSH, v_BNSH

    def attend(
        self, q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, feats: Tensor, span: Span
    ) -> Tensor:
        """See `Attention.attend`."""
        if not self.rule.shared_qk:
            q_BNTH, k_BNSH = self.pos.transform_qk(q_BNTH, k_BNSH, feats, span)
        return super().attend(q_BNTH, k_BNSH, v_BNSH, feats, span)


class PlacedLayer(Layer):
    """A layer to whose input the position encoding adds."""

    def attend(
        self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span, then: Then | None = None
    ) -> Tensor:
        """See `Layer.attend`."""
        x_BTD, mem_BMD = self.attn.pos.layer_input(x_BTD, mem_BMD, feats, span)
        return super().attend(x_BTD, mem_BMD, feats, span, then)

    def attended(self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span) -> Tensor:
        """See `Layer.attended`: in reversible layers positions do not stay in the stream."""
        x_BTD, mem_BMD = self.attn.pos.layer_input(x_BTD, mem_BMD, feats, span)
        return super().attended(x_BTD, mem_BMD, feats, span)


def add_positions(x_BTD: Tensor, mem_BMD: Tensor, feats_SD: Tensor) -> tuple[Tensor, Tensor]:
    """New and remembered tokens plus one vector per key."""
    n_mem = mem_BMD.shape[1]
    return x_BTD + feats_SD[n_mem:], mem_BMD + feats_SD[:n_mem]


def rel_shift(x_BNTS: Tensor) -> Tensor:
    """Turn columns 'distance S-1 ... 0' into columns 'key 0 ... S-1' (Dai et al. 2019, appendix B).

    out[t, s] = x[t, s + (T - 1 - t)]. Entries with s > (S - T) + t (the future) are arbitrary and
    must be masked.
    """
    B, N, T, S = x_BNTS.shape
    padded = F.pad(x_BNTS, (1, 0)).view(B, N, S + 1, T)
    return padded[:, :, 1:].view(B, N, T, S)


def rel_unshift(x_BNTS: Tensor) -> Tensor:
    """Turn columns 'key 0 ... S-1' into columns 'distance S-1 ... 0', the inverse of `rel_shift`.

    out[t, s + (T - 1 - t)] = x[t, s], and 0 for distances without a key. The future must be 0 in x.
    """
    B, N, T, S = x_BNTS.shape
    padded = F.pad(x_BNTS.reshape(B, N, T * S), (T - 1, 1))
    return padded.view(B, N, T, S + 1)[..., :S]


def rows_to_pairs(row_SN: Tensor, n_new: int) -> Tensor:
    """One row per distance, S-1 ... 0, to one term per pair: out[n, t, s] = row[s + (T - 1 - t),
    n], (N, T, S).

    `rel_shift` for terms that are equal for all queries. The future is 0.
    """
    padded_NL = F.pad(row_SN.T, (0, n_new - 1))
    return padded_NL.unfold(-1, len(row_SN), 1).flip(-2)


@dataclass(frozen=True, kw_only=True)
class TableSettings(PartSettings):
    """Of encodings with a learned table by position or distance."""

    n_position: int | None = option(
        None,
        "rows of learned position tables (not given: tgt_len + ext_len + mem_len of the training)",
        **SIZE,
    )


@dataclass(frozen=True, kw_only=True)
class DistanceSettings(PartSettings):
    """Of encodings that do not tell large distances apart."""

    max_distance: int | None = option(
        None, "largest distance that is told from others (not given: see docs/encodings.md)", **SIZE
    )


@dataclass(frozen=True, kw_only=True)
class CountingSettings(PartSettings):
    """Of encodings that count positions."""

    count_back: bool = option(False, "positions count from the end", flag=False)


def rows_of_table(config: ModelConfig) -> int:
    """Number of rows of a table by position or distance: the setting `n_position`.

    Raises:
        UsageError: if it is not set.
    """
    n_position = config.settings(TableSettings).n_position
    if n_position is None:
        raise UsageError(
            f"--position {config.position}: learns a row for each position; set the number with"
            " --n_position, for instance to the length of segment and memory in training"
        )
    return n_position


def rows_of_positions_S(span: Span, n_row: int, device: torch.device) -> Tensor:
    """The row of each key in a table by position, counted from the first remembered token.

    If a segment of full length and what is remembered are longer than the table, the last `n_row`
    tokens have a row each and all earlier ones share the first.
    """
    n_shared = max(0, max(span.n_full, span.n_key) - n_row)
    return (span.key_positions_S(device) - n_shared).clamp(min=0)


def draw_like_sinusoids(table: Tensor) -> None:
    """Initialise a table of positions from a normal distribution with the mean square of
    `sinusoid`, 1/2.

    With the standard deviation of other weights, 0.02, it would be negligible beside the hidden
    states it is added to. Tables that also exist in the 2019 code keep its initialisation.
    """
    nn.init.normal_(table, 0.0, 0.5**0.5)
