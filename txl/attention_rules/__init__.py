"""Attention rules, a file each; the paper's is in `txl.model.attention`."""

from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from txl.attention_rules.paths import attention_path, use_attention
from txl.config import ModelConfig
from txl.model.span import Span
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
