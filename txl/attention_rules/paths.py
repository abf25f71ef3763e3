"""Which implementation of attention a model uses: chosen, and named for the log."""

import torch

from txl.attention_rules.softmax import softmax_path
from txl.config import KEEP_MIB, Context, require
from txl.memory import n_kept_at_most
from txl.model.parts import attends_by_softmax
from txl.model.transformer import Body
from txl.ops.rel_attention import refusal, resolved, takes_factors


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
            return "blockwise"
        return "plain"
    return resolved(
        attn.rule.impl,
        model.device,
        dtype,
        d_head=config.d_head,
        n_key=n_key,
        needs_grad=needs_grad,
        by_row=by_row,
    )
