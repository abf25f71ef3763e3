"""Memories besides the paper's, a file each, and what is asked of them by name."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from txl.config import Context, ModelConfig
from txl.model.memory import State
from txl.model.parts import build_memory_rule, require_works
from txl.model.rule import MemoryRule, Traits
from txl.model.span import Span
from txl.model.streams import Memory
from txl.registry import MEMORIES

__all__ = [
    "MEMORIES",
    "Memory",
    "MemoryRule",
    "Span",
    "State",
    "Traits",
    "build_memory_rule",
    "empty_memory",
    "full_memory",
    "is_bounded",
    "lengths_with",
    "n_kept_at_most",
    "parts_by_default",
    "positions_by_default",
    "remembers",
    "require_works",
    "unbounded",
]


def empty_memory(config: ModelConfig, batch_size: int, *, like: Tensor) -> Memory:
    """What is remembered before the first segment, with dtype and device of `like`."""
    rules = _rules(config)
    return Memory(tuple(rule.empty(config, batch_size, like=like) for rule in rules))


def full_memory(config: ModelConfig, context: Context, batch_size: int, *, like: Tensor) -> Memory:
    """What is remembered at most, of zeros, with dtype and device of `like`."""
    rules = _rules(config)
    return Memory(tuple(rule.full(config, context, batch_size, like=like) for rule in rules))


def n_kept_at_most(config: ModelConfig, context: Context) -> int:
    """How many keys the first layer attends to besides those of the segment, once its memory is
    full."""
    rule = _rules(config)[0]
    return rule.n_kept(rule.full(config, context, 1, like=torch.empty(0, device="meta")))


def positions_by_default(config: ModelConfig, context: Context) -> int:
    """How many rows a learned table of positions has where --n_position does not say it."""
    return context.tgt_len + context.ext_len + n_kept_at_most(config, context)


_PARTS = 4
"""Of a segment, where a memory learns from later ones what to write in earlier ones."""


def parts_by_default(memory: str, context: Context) -> int:
    """In how many parts a segment of the training is read where --memory_parts does not say it."""
    if MEMORIES[memory].traits.learns_to_write and not context.ext_len:
        return min(_PARTS, context.tgt_len)
    return 1


def remembers(config: ModelConfig, context: Context) -> bool:
    """True if anything of a segment is there in the next."""
    tensors = full_memory(config, context, 1, like=torch.empty(0, device="meta")).named().values()
    return any(tensor.is_floating_point() and tensor.numel() > 0 for tensor in tensors)


def lengths_with(memory: str, context: Context) -> Context:
    """The context of a training as another memory can have it: what it does not work with is at the
    first value that it does.
    """
    changed = {}
    for name, allowed in MEMORIES[memory].traits.works_with.items():
        if getattr(context, name, allowed[0]) not in allowed:
            changed[name] = allowed[0]
    return replace(context, **changed)


def is_bounded(config: ModelConfig) -> bool:
    """True if what a token sees depends on n_layer * mem_len tokens before it only."""
    return not unbounded(config)


def unbounded(config: ModelConfig) -> str:
    """The flag for which a token sees more than that; empty: there is none."""
    if config.recurrence == "same":
        return "--recurrence same"
    if MEMORIES[config.memory].traits.is_bounded:
        return ""
    return f"--memory {config.memory}"


def _rules(config: ModelConfig) -> Sequence[type[MemoryRule]]:
    return [MEMORIES[config.memory].of_layer(config, i) for i in range(config.n_layer)]
