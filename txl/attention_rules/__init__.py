"""Attention rules, a file each; the paper's is in `txl.model.attention`. Which implementation of
attention a model uses: chosen, and named for the log.
"""

from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from txl.attention_rules.softmax import softmax_path
from txl.config import KEEP_MIB, Context, ModelConfig, require
from txl.memory import n_kept_at_most
from txl.model.parts import attends_by_softmax
from txl.model.span import Span
from txl.model.transformer import Body
from txl.ops.rel_attention import refusal, resolved, takes_factors
from txl.registry import ATTENTION_RULES


class AttentionRule(Protocol):
    """How queries attend to keys and values. Works with any position encoding, or refuses it when
    built.

    A rule whose cost does not grow with the number of keys says by a class method
    `n_product(config)` how many scores, or what it computes in their place, there are per query and
    head. One that draws at random has a method `redraw(generator)`, called every `redraw_interval`
    updates. Traits are False where a rule does not say otherwise: `is_softmax`, the weights are the
    softmax of the logits of all visible keys; `masks_documents`, it tells the documents of a row
    apart. Settings of its own are the dataclass `Settings` in the class.
    """

    shared_qk: bool
    """Queries and keys share one projection (Reformer). Such a rule applies the encoding's
    `transform_qk` itself, after hashing, because hashes must not depend on positions.
    """
    impl: str
    """The implementation, if there are several."""
    keep_mib: int
    """Of its backward pass, if it stores what it could compute again."""

    @classmethod
    def of_model(cls, config: ModelConfig, *, dropatt: float = 0.0) -> Self:
        """The rule for a model."""
        ...

    def __call__(
        self, q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, *, pos: Any, feats: Tensor, span: Span
    ) -> Tensor:
        """The attention output, (B, N, T, H)."""
        ...


def redraw(model: nn.Module, generator: torch.Generator) -> None:
    """Redraw the random features or rotations of the attention rules, layer by layer."""
    for module in model.modules():
        draw = getattr(module, "redraw", None)
        if draw is not None:
            draw(generator)


def use_attention(model: Body, impl: str, *, keep_mib: int = KEEP_MIB) -> None:
    """Choose the implementation of relative attention, see `txl.ops.rel_attention`; results agree
    up to rounding.

    Raises:
        UsageError: if it cannot run on the model's device.
    """
    reason = refusal(impl, model.device, d_head=model.config.d_head)
    require(reason is None, f"--attn_impl {impl}: {reason}")
    for layer in model.layers:
        layer.attn.rule.impl = impl
        layer.attn.rule.keep_mib = keep_mib


def attention_path(
    model: Body, context: Context, dtype: torch.dtype, *, needs_grad: bool, by_row: bool = False
) -> str:
    """The implementation used for attention over a full memory in `dtype`, with documents masked
    `by_row`, for the log."""
    attn = model.layers[0].attn
    config = model.config
    if not attends_by_softmax(config):
        return config.attention
    path = softmax_path(attn.pos)
    if path != "relative":
        return path
    n_key = n_kept_at_most(config, context) + context.tgt_len
    if model.layers[0].memory.traits.weighs_keys:
        has_blocks = takes_factors(model.device, n_key=n_key, needs_grad=needs_grad)
        if has_blocks:
            return "dense"
        return "plain"
    return resolved(
        attn.rule.impl,
        model.device,
        dtype,
        d_head=config.d_head,
        by_row=by_row,
    )
