"""What a training step will take, before it is taken: memory and floating-point operations."""

import time

import torch

from txl.config import Context, ModelConfig, TrainConfig
from txl.model.transformer import TransformerXL

_OPTIMIZER_COPIES = {"adam": 2, "adamw": 2, "lamb": 2, "adagrad": 1, "muon": 2, "sgd": 1}


def training_bytes(
    model: TransformerXL, config: TrainConfig, context: Context, *, n_stream: int, dtype: torch.dtype
) -> dict[str, int]:
    """An estimate of the bytes a process needs, by what they are for. Activations are rough: the largest tensors only.

    Args:
        n_stream: streams that this process computes at a time, a chunk of its share of the batch.
        dtype: of the matrix products.
    """
    shape = model.config
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    n_token, n_key = n_stream * context.tgt_len, context.tgt_len + context.ext_len + context.mem_len
    size = dtype.itemsize
    inner = shape.n_head * shape.d_head
    n_inner = 3 * shape.d_inner * min(1.0, (config.ff_chunk or context.tgt_len) / context.tgt_len)
    per_layer = n_token * (6 * shape.d_model + 3 * inner + n_inner + 5 * shape.n_head * _pairs(shape, n_key))
    per_layer += n_stream * n_key * (shape.d_model + 2 * inner)
    layers = per_layer if config.recompute or shape.reversible else shape.n_layer * per_layer
    head = 3 * n_token * (shape.cluster_sizes[0] + len(shape.cutoffs))
    copies = _OPTIMIZER_COPIES[config.optim] if config.optim != "sgd" or config.mom else 0
    remembered = config.batch_chunk * n_stream * context.mem_len
    return {
        "weights": weights,
        "gradients": weights,
        "optimizer": copies * weights,
        "memory": 0 if config.swap_mem else remembered * shape.d_model * shape.n_layer * 4,
        "activations": int(layers + head) * size,
    }


def _pairs(shape: ModelConfig, n_key: int) -> int:
    """Numbers per query and head that the attention rule forms in place of a score for every key."""
    if shape.attention == "performer":
        return 2 * shape.n_feature
    return 2 * shape.lsh_round * shape.lsh_reach if shape.attention == "lsh" else n_key


def flops_per_token(model: TransformerXL, context: Context) -> float:
    """Multiplications and additions of forward and backward pass per trained token: 6 per weight of a matrix product,
    and the two products of attention and the one with positions; embeddings are looked up, not multiplied. What is
    computed a second time to save memory does not count."""
    shape = model.config
    n_key = context.tgt_len + context.ext_len + context.mem_len
    in_layers = sum(p.numel() for p in model.layers.parameters() if p.ndim == 2)
    head = (shape.cluster_sizes[0] + len(shape.cutoffs)) * shape.d_embed
    attention = 3 * shape.n_layer * shape.n_head * shape.d_head * _pairs(shape, n_key)
    return 6.0 * (in_layers + head + attention)


def measured_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of one large matrix product on this device, the ceiling that MFU is a share of."""
    n = 4096 if device.type == "cuda" else 768
    n_product = 10 if device.type == "cuda" else 1
    own = torch.Generator(device).manual_seed(0)  # the training's own random numbers must not be touched
    a, b = (torch.rand(n, n, device=device, generator=own).to(dtype) for _ in range(2))
    best = 0.0
    for _ in range(4):
        start = time.perf_counter()
        for _ in range(n_product):
            c = a @ b
        float(c[0, 0])  # waits for the device
        best = max(best, 2.0 * n**3 * n_product / (time.perf_counter() - start))
    return best
