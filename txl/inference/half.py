"""A trained model with its weights in 16 bits: half the memory, and half of what a product of few
rows reads.
"""

import torch
from torch import nn

from txl.model.adaptive import AdaptiveEmbedding, AdaptiveSoftmax
from txl.model.transformer import TransformerXL
from txl.ops.linear import Linear
from txl.ops.packed import CAN_PACK, PackedLinear


def cast_weights(model: TransformerXL, dtype: torch.dtype) -> None:
    """Keep what products and lookups of words read in `dtype`, in place; LayerNorm and position
    encodings, whose products are few, stay as they are. float32 changes nothing.

    The model is for use under `autocast(device, dtype)`, where it gives what it gives with rounded
    weights in float32: sums, LayerNorm, softmax and losses are in float32. It takes no gradients.
    """
    if dtype == torch.float32:
        return
    model.requires_grad_(False)
    of_positions = set()
    for layer in model.layers:
        for part in layer.attn.pos.modules():
            of_positions.add(part)
    for module in set(model.modules()) - of_positions:
        if isinstance(module, AdaptiveEmbedding | AdaptiveSoftmax | nn.Linear):
            for parameter in module.parameters():
                parameter.data = parameter.data.to(dtype)


def pack_weights(model: TransformerXL) -> None:
    """On a CPU with instructions for bfloat16, put `PackedLinear` in place of linear layers whose
    weights are in it.
    """
    if (
        not CAN_PACK
        or model.device.type != "cpu"
        or model.softmax.tables[0].dtype != torch.bfloat16
    ):
        return
    pack_layers(model)


def pack_layers(model: TransformerXL) -> None:
    """Put `PackedLinear` in place of the model's linear layers; their weights must not change any
    more.
    """
    packed_of: dict[nn.Module, PackedLinear] = {}  # a layer may have two names
    for module in [*model.modules()]:
        for name, layer in module._modules.items():
            if not isinstance(layer, Linear):
                continue
            if layer not in packed_of:
                packed_of[layer] = PackedLinear(layer.weight, layer.bias)
            setattr(module, name, packed_of[layer])
