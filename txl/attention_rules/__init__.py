"""Attention rules: to add one, add a file here and a line to the registry."""

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
    """How queries attend to keys and values. Works with any position encoding, or refuses it when built."""

    shared_qk: bool
    """Queries and keys share one projection (Reformer). Such a rule applies the encoding's `transform_qk` itself, after
    hashing, because hashes must not depend on positions."""
    impl: str
    """The implementation, if there are several."""
    keep_mib: int
    """Of its backward pass, if it stores what it could compute again."""
    settings: ClassVar[tuple[str, ...]]
    """Fields of `ModelConfig` and `TrainConfig` that not every rule reads."""

    def path(self, pos: PositionEncoding) -> str:
        """The name of the computation used with this encoding; `relative`: `txl.ops.rel_attention`."""
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
    """The rule named by `config.attention`."""
    return ATTENTION_RULES[config.attention](config, dropatt=dropatt)


def redraw(model: nn.Module, generator: torch.Generator) -> None:
    """Redraw the random features or rotations of the attention rules, layer by layer."""
    for module in model.modules():
        if isinstance(module, PerformerAttention | LshAttention):
            module.redraw(generator)
