"""Hugging Face's TransfoXL (transformers 4.35.2, in an environment of its own)."""

from collections.abc import Iterator

import torch
from transformers import TransfoXLConfig, TransfoXLLMHeadModel, __version__

from lab.benchmarks.shapes import Shape
from lab.benchmarks.workers.serve import autocast, segments, serve_models, update


def model_of(shape: Shape) -> TransfoXLLMHeadModel:
    """A model with random weights. Its memory has full length from the start, filled with zeros."""
    torch.manual_seed(0)
    config = TransfoXLConfig(
        vocab_size=shape.n_token,
        cutoffs=list(shape.cutoffs),
        d_model=shape.d_model,
        d_embed=shape.d_model,
        n_head=shape.n_head,
        d_head=shape.d_head,
        d_inner=shape.d_inner,
        div_val=shape.div_val,
        n_layer=shape.n_layer,
        mem_len=shape.mem_len,
        clamp_len=shape.clamp_len,
        same_length=shape.same_length,
        dropout=shape.dropout,
        dropatt=shape.dropatt,
    )
    return TransfoXLLMHeadModel(config).to(shape.device)


@torch.inference_mode()
def evaluate(shape: Shape) -> Iterator[object]:
    """A segment at a time. It shifts the labels itself, so that it predicts a token less of each segment."""
    model, mems = model_of(shape).to(getattr(torch, shape.dtype)).eval(), None
    nats = torch.zeros((), dtype=torch.float64, device=shape.device)
    for input_BT, _ in segments(shape):
        input_BT = input_BT.to(shape.device)
        out = model(input_BT, mems=mems, labels=input_BT)
        mems = out.mems
        nats += out.losses.double().sum()
        yield nats


@torch.inference_mode()
def generate(shape: Shape) -> Iterator[object]:
    """One token at a time, passing the memory along."""
    model, mems = model_of(shape).to(getattr(torch, shape.dtype)).eval(), None
    token = torch.zeros(1, 1, dtype=torch.int64, device=shape.device)
    while True:
        out = model(token, mems=mems)
        mems = out.mems
        token = torch.multinomial(out.prediction_scores[:, -1].exp(), 1)
        yield int(token)


def train(shape: Shape) -> Iterator[object]:
    """A step at a time. It predicts a token less of each segment, see `evaluate`."""
    model, mems = model_of(shape).train(), None
    optimizer = torch.optim.Adam(model.parameters(), lr=0.00025, fused=True)
    for input_BT, _ in segments(shape):
        input_BT = input_BT.to(shape.device)
        with autocast(shape):
            out = model(input_BT, mems=mems, labels=input_BT)
        mems = out.mems
        update(model, optimizer, out.losses.mean())
        yield float(out.losses.mean())


if __name__ == "__main__":
    serve_models(
        f"transformers {__version__}", {"evaluate": evaluate, "generate": generate, "train": train}
    )
