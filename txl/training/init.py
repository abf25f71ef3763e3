"""Weight initialisation, in one function."""

from typing import Any

from torch import nn

from txl.model.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from txl.model.rule import MemoryRule
from txl.positions import PositionEncoding
from txl.stacks.gates import Gate
from txl.training.config import TrainConfig


def init_weights(model: nn.Module, config: TrainConfig) -> None:
    """Initialise all weights of a model, or of a part of one, as the original does.

        weights                                                       drawn from
        matrices of the layers, embeddings, cluster_weight, u and v   N(0, init_std), or U(-a, a)
                                                                      with a = init_range
        projections of embeddings and softmax                         N(0, proj_init_std)
        weights of norms                                              N(1, init_std)
        biases                                                        0
        biases of gates                                               gate_bias

    Position encodings and memories with their own initialisation come last, see their
    `reset_parameters`.
    """
    projections = set()
    for m in model.modules():
        if isinstance(m, AdaptiveEmbedding | AdaptiveSoftmax):
            for p in m.projs:
                projections.add(id(p))
    norms = set()
    for m in model.modules():
        if isinstance(m, nn.LayerNorm | nn.RMSNorm):
            norms.add(id(m.weight))
    for name, parameter in model.named_parameters():
        if id(parameter) in projections:
            nn.init.normal_(parameter, 0.0, config.proj_init_std)
        elif id(parameter) in norms:
            nn.init.normal_(parameter, 1.0, config.init_std)
        elif name.endswith("bias") or ".biases." in name:
            nn.init.zeros_(parameter)
        elif config.init == "uniform":
            nn.init.uniform_(parameter, -config.init_range, config.init_range)
        else:
            nn.init.normal_(parameter, 0.0, config.init_std)
    for module in model.modules():
        reset: Any = getattr(module, "reset_parameters", None)
        if isinstance(module, PositionEncoding | Gate | MemoryRule) and reset is not None:
            reset()
