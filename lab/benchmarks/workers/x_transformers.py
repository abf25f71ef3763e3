"""lucidrains' x-transformers (in an environment of its own), with its recurrence and T5's relative position bias.

Another position encoding than Transformer-XL's, and cheaper: the bias does not depend on the query. It has no adaptive
softmax.
"""

from collections.abc import Iterator
from importlib.metadata import version

import torch
import torch.nn.functional as F
from torch import Tensor
from x_transformers import Decoder, TransformerWrapper

from lab.benchmarks.shapes import Shape
from lab.benchmarks.workers.serve import autocast, segments, serve_models, update


def model_of(shape: Shape) -> TransformerWrapper:
    """A model with random weights."""
    torch.manual_seed(0)
    layers = Decoder(
        dim=shape.d_model,
        depth=shape.n_layer,
        heads=shape.n_head,
        attn_dim_head=shape.d_head,
        ff_mult=shape.d_inner / shape.d_model,
        rel_pos_bias=True,
        attn_dropout=shape.dropatt,
        ff_dropout=shape.dropout,
    )
    model = TransformerWrapper(
        num_tokens=shape.n_token,
        max_seq_len=max(shape.tgt_len, shape.mem_len),
        max_mem_len=shape.mem_len,
        attn_layers=layers,
        use_abs_pos_emb=False,
        tie_embedding=True,
    )
    return model.to(shape.device)


@torch.inference_mode()
def evaluate(shape: Shape) -> Iterator[object]:
    """One segment at a time, over a full memory."""
    model = model_of(shape).to(getattr(torch, shape.dtype)).eval()
    mems, nats = (
        _full_memory(model, shape),
        torch.zeros((), dtype=torch.float64, device=shape.device),
    )
    for input_BT, target_BT in segments(shape):
        logit_BTV, mems = model(input_BT.to(shape.device), mems=mems, return_mems=True)
        target_BT = target_BT.to(shape.device)
        nats += (
            F.cross_entropy(logit_BTV.flatten(0, 1), target_BT.flatten(), reduction="none")
            .double()
            .sum()
        )
        yield nats


@torch.inference_mode()
def generate(shape: Shape) -> Iterator[object]:
    """One token at a time, passing the memory along."""
    model = model_of(shape).to(getattr(torch, shape.dtype)).eval()
    mems, token = (
        _full_memory(model, shape),
        torch.zeros(1, 1, dtype=torch.int64, device=shape.device),
    )
    while True:
        logit_BTV, mems = model(token, mems=mems, return_mems=True)
        token = torch.multinomial(logit_BTV[:, -1].softmax(-1), 1)
        yield int(token)


def train(shape: Shape) -> Iterator[object]:
    """A step at a time."""
    model, mems = model_of(shape).train(), None
    optimizer = torch.optim.Adam(model.parameters(), lr=0.00025, fused=True)
    for input_BT, target_BT in segments(shape):
        with autocast(shape):
            logit_BTV, mems = model(input_BT.to(shape.device), mems=mems, return_mems=True)
            loss = F.cross_entropy(logit_BTV.flatten(0, 1), target_BT.to(shape.device).flatten())
        update(model, optimizer, loss)
        yield loss.item()


def _full_memory(model: TransformerWrapper, shape: Shape) -> list[Tensor]:
    token_BM = torch.zeros(shape.batch_size, shape.mem_len, dtype=torch.int64, device=shape.device)
    return model(token_BM, return_mems=True)[1]


if __name__ == "__main__":
    serve_models(
        f"x-transformers {version('x-transformers')}",
        {"evaluate": evaluate, "generate": generate, "train": train},
    )
