"""The feed-forward network of a layer."""

from txl.config import ModelConfig
from txl.model.activations import ACTIVATIONS, is_gated
from txl.ops.dropout import Dropout
from txl.ops.layer_rows import TwoLayers
from txl.ops.linear import Linear


class FeedForward(TwoLayers):
    """W_2 dropout(activation(W_1 x + b_1)) + b_2; no b_1, b_2 without `ff_bias`.

    Source: Vaswani et al. 2017, eq. 2.
    """

    def __init__(self, config: ModelConfig, *, dropout: float = 0.0) -> None:
        if is_gated(config.activation):
            n_inner = 2 * config.d_inner
        else:
            n_inner = config.d_inner
        super().__init__(
            Linear(config.d_model, n_inner, bias=config.ff_bias),
            ACTIVATIONS[config.activation](),
            Dropout(dropout),
            Linear(config.d_inner, config.d_model, bias=config.ff_bias),
        )
