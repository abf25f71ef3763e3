"""The memory of Infini-attention: what has left the window is a matrix per head of keys, read by
linear attention.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from txl.config import Context, ModelConfig, option
from txl.memory.beside import BESIDE, BesideAttention, beyond_window, same_document
from txl.model.memory import State
from txl.model.rule import Traits
from txl.model.span import Span
from txl.ops.heads import folded
from txl.ops.numbers import at_least_float32, is_autocast_on, widened


class Infini(BesideAttention):
    """Hidden states as in `fifo`, and of those before them a matrix and a norm per head of keys.

        read      A  = sigmoid(b) s(Q) M / (s(Q) z) + (1 - sigmoid(b)) A_local
        linear    M' = M + s(K)^T V                           z' = z + sum_t s(K_t)
        delta     M' = M + s(K)^T (V - s(K) M / (s(K) z))

    with s(x) = ELU(x) + 1 and b a number per head. Writes are of the tokens that leave the window of
    mem_len at once.

    Source: Munkhdalai et al. 2024 (arXiv 2404.07143), eq. 3 to 6 and 10. As there, Q and K have no
    positions, and a segment reads what was there before it.
    Differs from the paper: there the window is the segment alone, as here with mem_len 0; what an
    empty matrix reads, or one of another document, is 0.
    Gradients: hidden states in the window are detached, their keys and values are not, until the
    end of a step.
    Documents: the matrix begins anew with the first token of a document that leaves the window.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(BesideAttention.Settings):
        infini_update: Literal["linear", "delta"] = option(
            "linear",
            "what is added to the matrix; delta: values less those that it already gives for the"
            " keys",
        )

    traits = Traits(BESIDE, learns_to_write=True)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.has_delta = config.settings(self.Settings).infini_update == "delta"
        self.reset_parameters()

    @classmethod
    def empty(cls, config: ModelConfig, batch_size: int, *, like: Tensor) -> State:
        shape = (batch_size, config.n_key_head, config.d_head, config.d_head)
        matrix_BNHH = like.new_zeros(shape, dtype=at_least_float32(like.dtype))
        return State(
            like.new_empty(batch_size, 0, config.d_model),
            {"matrix": matrix_BNHH, "norm": matrix_BNHH[..., 0].clone()},
        )

    def beside(
        self, extra: Mapping[str, Tensor], span: Span, q_BNTH: Tensor, local_BNTH: Tensor
    ) -> Tensor:
        feature_BNTH = folded(_feature(q_BNTH), extra["norm"].shape[1])
        read_BNTH = _read(extra["matrix"], extra["norm"], feature_BNTH).reshape(q_BNTH.shape)
        if span.first_BT is not None:
            read_BNTH = torch.where((span.first_BT < 0)[:, None, :, None], read_BNTH, 0)
        return self.joined(read_BNTH, local_BNTH)

    def kept(
        self, state: State, new_BTD: Tensor, span: Span, context: Context, layer: Any
    ) -> State:
        left_BLD, hidden_BMD = beyond_window(state, new_BTD, context)
        if not left_BLD.shape[1]:
            return State(hidden_BMD, state.extra)
        k_BNLH, v_BNLH = layer.keys_and_values(left_BLD)
        k_BNLH = _feature(k_BNLH)
        v_BNLH = v_BNLH.to(state.extra["norm"].dtype)
        matrix_BNHH = state.extra["matrix"]
        norm_BNH = state.extra["norm"]
        if span.since_BT is not None:
            goes_on_B, stays_BL = same_document(span, left_BLD.shape[1])
            matrix_BNHH = torch.where(goes_on_B[:, None, None, None], matrix_BNHH, 0)
            norm_BNH = torch.where(goes_on_B[:, None, None], norm_BNH, 0)
            stays_BNLH = stays_BL[:, None, :, None]
            k_BNLH, v_BNLH = (torch.where(stays_BNLH, x, 0) for x in (k_BNLH, v_BNLH))
        if self.has_delta:
            v_BNLH = v_BNLH - _read(matrix_BNHH, norm_BNH, k_BNLH)
        with _in_full_precision(v_BNLH):
            matrix_BNHH = matrix_BNHH + k_BNLH.mT @ v_BNLH
        return State(hidden_BMD, {"matrix": matrix_BNHH, "norm": norm_BNH + k_BNLH.sum(2)})


def _feature(x: Tensor) -> Tensor:
    return F.elu(widened(x)) + 1


def _read(matrix_BNHH: Tensor, norm_BNH: Tensor, q_BNTH: Tensor) -> Tensor:
    """Linear attention to what a matrix holds; 0 if that is nothing."""
    with _in_full_precision(q_BNTH):
        weight_BNT1 = q_BNTH @ norm_BNH[..., None]
        return q_BNTH @ matrix_BNHH / torch.where(weight_BNT1 > 0, weight_BNT1, 1)


def _in_full_precision(like: Tensor) -> AbstractContextManager:
    """Sums over all tokens that were read leave the range of float16 after a thousand of them."""
    if is_autocast_on(like.device):
        return torch.autocast(like.device.type, enabled=False)
    return nullcontext()
