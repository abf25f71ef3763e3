"""Attention rules: a new one is a new file here and a line in the registry."""

from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from txl.attention_rules.lsh import LshAttention
from txl.attention_rules.performer import PerformerAttention
from txl.attention_rules.softmax import SoftmaxAttention
from txl.config import ModelConfig
from txl.memory import Span
from txl.positions import PositionEncoding


class AttentionRule(Protocol):
    """How queries gather values. Never knows which position encoding it serves; refuses, when it is built, what it
    cannot serve."""

    shared_qk: bool
    """Queries and keys are one projection (Reformer). Such a rule gets them without the encoding's `transform_qk` and
    applies it itself: what it does with them by content must not depend on where they are read."""
    impl: str
    """How it is computed, where there are several ways."""
    settings: ClassVar[tuple[str, ...]]
    """Fields of `ModelConfig`, and of `TrainConfig`, that not every rule reads."""

    def path(self, pos: PositionEncoding) -> str:
        """The name of the way in which it attends with this encoding; `relative`: by `txl.ops.rel_attention`."""
        ...

    def __call__(
        self, q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, *, pos: PositionEncoding, feats: Tensor, span: Span
    ) -> Tensor:
        """The attention output, (B, N, T, H)."""
        ...


ATTENTION_RULES = {
    "softmax": SoftmaxAttention,
    "performer": PerformerAttention,
    "lsh": LshAttention,
}


def build_attention_rule(config: ModelConfig, *, dropatt: float = 0.0) -> AttentionRule:
    """The rule that `config.attention` names."""
    return ATTENTION_RULES[config.attention](config, dropatt=dropatt)


def redraw(model: nn.Module, generator: torch.Generator) -> None:
    """Draw anew, layer by layer, what the model's attention rules hold at random: features, rotations."""
    for module in model.modules():
        if isinstance(module, PerformerAttention | LshAttention):
            module.redraw(generator)
