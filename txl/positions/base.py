"""The interface of all position encodings, and the arithmetic several of them share."""

from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from txl.config import ModelConfig, require
from txl.memory import Span
from txl.ops.dropout import Dropout


class RelativeTerms(NamedTuple):
    """What makes the logits scale * [(q_t + u).k_s + (q_t + w).r_(t-s)], the form that `txl.ops.rel_attention` computes
    without forming them."""

    r_SNH: Tensor
    """A row per distance, S-1 ... 0."""
    u_NH: Tensor
    w_NH: Tensor


class PositionEncoding(nn.Module):
    """Tells attention where tokens are. A subclass overrides the hooks its paper describes and no others.

    The hooks, in the order the data meets them:
        prepare       once per forward pass, for all layers: what depends on positions only
        layer_input   what a layer reads, residual connection and values included
        project       once per layer: what this layer's weights make of it; kept in evaluation, where they do not change
        qk_input      the hidden states that queries and keys (never values) are projected from
        transform_qk  projected queries and keys
        score         a term added to the scaled logits
        value         a term added to the attention output
        relative      instead of score, where the logits have the form of `RelativeTerms`

    Memory holds hidden states without positions, so every encoding places remembered tokens anew when it reads them.
    """

    shared: ClassVar[tuple[str, ...]] = ()
    """Parameters and modules that all layers hold in common."""
    settings: ClassVar[tuple[str, ...]] = ()
    """Fields of `ModelConfig` that it reads besides sizes. A flag that the chosen encoding does not read is refused."""
    by_distance: ClassVar[bool] = False
    """`prepare` and `project` return one row per distance, S-1 ... 0, so that a shorter span uses the last rows."""
    clamps: bool = True
    """Distances beyond `clamp_len` can share an encoding."""
    layer: int = 0
    """The layer it belongs to, from 0."""

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.scale = config.d_head**-0.5  # of q.k, and of whatever a paper puts under the same root
        self.drop = Dropout(dropout)
        self.name = config.position

    def reset_parameters(self) -> None:
        """Set the weights that do not begin as all others do, see `txl.model.init`."""

    def prepare(self, span: Span, like: Tensor) -> Tensor:
        """What depends on positions only, computed once for all layers, on the device and in the dtype of `like`."""
        return like.new_empty(0)

    def layer_input(self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        """What the layer reads for new and for remembered tokens; the memory itself stays without positions."""
        return x_BTD, mem_BMD

    def project(self, feats: Tensor) -> Tensor:
        """What this layer makes of the positions; `score` and `value` receive it."""
        return feats

    def qk_input(self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        """The states of new and of remembered tokens that queries and keys are projected from."""
        return x_BTD, mem_BMD

    def transform_qk(self, q_BNTH: Tensor, k_BNSH: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        """Queries and keys as they enter the product."""
        return q_BNTH, k_BNSH

    def score(self, q_BNTH: Tensor, k_BNSH: Tensor, feats: Tensor, span: Span) -> Tensor | None:
        """A term of shape (B, N, T, S), or one that broadcasts to it, added to scale * q.k; None for no term.

        Entries of pairs that `span` does not let attend may hold anything.
        """
        return None

    def value(self, prob_BNTS: Tensor, feats: Tensor, span: Span) -> Tensor | None:
        """A term of shape (B, N, T, H) added to the attention output; None for no term."""
        return None

    def relative(self, feats: Tensor) -> RelativeTerms:
        """The terms of logits that are wholly of that form. Rows of distances that are clamped are equal, but for
        dropout."""
        raise NotImplementedError(f"{self.name}: its logits are not of this form")

    @classmethod
    def reads(cls) -> frozenset[str]:
        """The settings that make a difference to it: those declared, and those that follow from the rest."""
        follow = {"untie_r": bool(cls.shared), "attn_impl": cls.is_relative()}
        return frozenset(cls.settings) | {name for name, is_read in follow.items() if is_read}

    @classmethod
    def places_hidden_states(cls) -> bool:
        """True if keys depend on where they are read, so that they cannot be remembered."""
        hooks = (cls.qk_input, cls.layer_input)
        return hooks != (PositionEncoding.qk_input, PositionEncoding.layer_input)

    @classmethod
    def is_relative(cls) -> bool:
        """True if the logits have the form of `RelativeTerms`."""
        return cls.relative is not PositionEncoding.relative

    @classmethod
    def needs_scores(cls) -> bool:
        """True if the encoding acts on the T x S logits, which linear attention never forms."""
        hooks = ("score", "value", "relative")
        return any(getattr(cls, hook) is not getattr(PositionEncoding, hook) for hook in hooks)


def placed(x_BTD: Tensor, mem_BMD: Tensor, feats_SD: Tensor) -> tuple[Tensor, Tensor]:
    """New and remembered tokens with a vector per key added."""
    n_mem = mem_BMD.shape[1]
    return x_BTD + feats_SD[n_mem:], mem_BMD + feats_SD[:n_mem]


def rel_shift(x_BNTS: Tensor) -> Tensor:
    """Turn columns 'distance S-1 ... 0' into columns 'key 0 ... S-1' (Dai et al. 2019, appendix B).

    out[t, s] = x[t, s + (T - 1 - t)]. Entries with s > (S - T) + t, the future, are meaningless and must be masked.
    """
    B, N, T, S = x_BNTS.shape
    padded = F.pad(x_BNTS, (1, 0)).view(B, N, S + 1, T)
    return padded[:, :, 1:].view(B, N, T, S)


def rel_unshift(x_BNTS: Tensor) -> Tensor:
    """Turn columns 'key 0 ... S-1' into columns 'distance S-1 ... 0', the inverse of `rel_shift`.

    out[t, s + (T - 1 - t)] = x[t, s], and 0 where a row has no key at that distance. The future must be 0 in x.
    """
    B, N, T, S = x_BNTS.shape
    padded = F.pad(x_BNTS.reshape(B, N, T * S), (T - 1, 1))
    return padded.view(B, N, T, S + 1)[..., :S]


def spread(row_SN: Tensor, n_new: int) -> Tensor:
    """A row per distance, S-1 ... 0, as a term per pair: out[n, t, s] = row[s + (T - 1 - t), n], (N, T, S).

    What `rel_shift` does for terms that are the same for all queries. The future is 0.
    """
    padded_NL = F.pad(row_SN.T, (0, n_new - 1))
    return padded_NL.unfold(-1, len(row_SN), 1).flip(-2)


def rows_of_table(config: ModelConfig) -> int:
    """Rows of a table with a row per position or distance: the setting `n_position`.

    Raises:
        UsageError: if the configuration does not say.
    """
    require(
        config.n_position is not None,
        f"--position {config.position}: learns a row for each position; say how many with --n_position, for instance "
        f"as many tokens as segment and memory have together in training",
    )
    return config.n_position


def rows_of_positions_S(span: Span, n_row: int, device: torch.device) -> Tensor:
    """The row of each key in a table by position, counted from the first remembered token.

    A span longer than the table is read by its end: the last `n_row` tokens have a row each, all before them the first.
    """
    return (span.key_positions_S(device) - max(0, span.n_key - n_row)).clamp(min=0)


def draw_like_sinusoids(table: Tensor) -> None:
    """Fill a table of positions with normal numbers whose mean square is that of `sinusoid`, 1/2.

    Drawn like other weights, with a deviation of 0.02, they are lost beside the hidden states they are added to. Only
    what the code of 2019 drew so, small as it is, is left so.
    """
    nn.init.normal_(table, 0.0, 0.5**0.5)


def sinusoid(position: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """[sin(p w_0) ... sin(p w_k), cos(p w_0) ... cos(p w_k)] with w_i = 10000^(-2i/dim), shape (len(position), dim).

    Vaswani et al. 2017, sec. 3.5, with sines and cosines in halves instead of alternating, as the original has them.
    The frequencies are rounded to float32 whatever the dtype, because the original keeps them in a float32 buffer: a
    float64 model agrees with the original's only so. Angles are never computed in less than float32.
    """
    freq = 1 / (10000 ** (torch.arange(0.0, dim, 2.0, device=position.device, dtype=torch.float32) / dim))
    at_least_float32 = torch.promote_types(dtype, torch.float32)
    angle = position.to(at_least_float32)[:, None] * freq.to(at_least_float32)
    return torch.cat([angle.sin(), angle.cos()], dim=-1).to(dtype)
