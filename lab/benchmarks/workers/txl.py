"""Ours, through the code of train.py, eval.py and generate.py."""

import sys
from collections.abc import Iterator
from typing import Any

import torch

from lab.benchmarks.shapes import Shape
from lab.benchmarks.workers.serve import autocast, segments, serve_models, word_shares
from txl import Context, ModelConfig, TransformerXL
from txl.attention_rules import use_attention
from txl.evaluation.score import scored
from txl.generation.sampling import generate
from txl.inference import frozen, reader
from txl.inference.frozen import cast_weights, pack_weights
from txl.inference.key_value import KeyValue
from txl.inference.key_values import KeyValueMemory
from txl.runtime.distributed import Ranks
from txl.runtime.recording import recorded
from txl.runtime.resources import keep_freed_memory
from txl.training.config import TrainConfig
from txl.training.estimate import flops_per_token, measured_peak_flops
from txl.training.init import init_weights
from txl.training.step import TrainState


def config_of(shape: Shape) -> ModelConfig:
    """The model configuration of a shape."""
    names = ("n_layer", "n_head", "d_head", "d_model", "d_inner", "n_token", "cutoffs", "div_val")
    return ModelConfig(
        **{name: getattr(shape, name) for name in names},
        tie_projs=(False,) + (True,) * len(shape.cutoffs),
    )


def context_of(shape: Shape) -> Context:
    """The context of a shape."""
    lengths = {
        name: getattr(shape, name) for name in ("tgt_len", "mem_len", "same_length", "clamp_len")
    }
    return Context(**lengths)


def model_of(shape: Shape) -> TransformerXL:
    """A model with random weights."""
    torch.manual_seed(0)
    model = TransformerXL(config_of(shape), dropout=shape.dropout, dropatt=shape.dropatt)
    init_weights(model, TrainConfig())
    model.to(shape.device)
    use_attention(model, shape.attn_impl)
    return model


def reading_model(shape: Shape) -> TransformerXL:
    """A model whose memory is full from the start, of numbers drawn at random.

    It draws words of the rare clusters as often as `segments` does, which costs it what it would with a text.
    """
    model = model_of(shape)
    if shape.cutoffs:
        share_C = torch.tensor(cluster_shares(shape))
        with torch.no_grad():
            model.softmax.cluster_bias.copy_((share_C[1:] / share_C[0] * shape.cutoffs[0]).log())
    cast_weights(model.eval(), getattr(torch, shape.dtype))  # as eval.py and generate.py load it
    pack_weights(model)
    fresh_memory = frozen.fresh_memory

    def full_memory(of: TransformerXL, batch_size: int) -> KeyValueMemory:
        memory = fresh_memory(of, batch_size)
        room = (batch_size, shape.n_head, shape.mem_len, shape.d_head)
        like = torch.empty(0, dtype=getattr(torch, shape.dtype), device=shape.device)
        layers = (
            KeyValue(like.new_empty(2, *room).normal_(), 0, shape.mem_len, [shape.mem_len])
            for _ in memory.layers
        )
        return memory.of([*layers])

    frozen.fresh_memory = reader.fresh_memory = full_memory
    return model


def evaluate(shape: Shape) -> Iterator[object]:
    """A segment at a time, as `txl.evaluation.score.evaluate` reads and sums them."""
    model = reading_model(shape)
    nats = torch.zeros((), dtype=torch.float64, device=shape.device)
    texts = ((input_BT, target_BT, None) for input_BT, target_BT in segments(shape))
    with autocast(shape):
        for nll_N in scored(model, texts, context_of(shape)):
            nats += nll_N.double().sum()
            yield nats


def write(shape: Shape) -> Iterator[object]:
    """A token at a time, by `txl.generation.sampling.generate`."""
    with autocast(shape):
        yield from generate(reading_model(shape), [0], context_of(shape), length=sys.maxsize)


def train(shape: Shape) -> Iterator[object]:
    """A step at a time, as train.py does it."""
    keep_freed_memory()
    state = training_state(shape)
    for input_BT, target_BT in segments(shape):
        yield state.step(input_BT, target_BT)


def training_state(shape: Shape) -> TrainState:
    """The initial state of a training run."""
    return state_of(model_of(shape), shape)


def state_of(model: TransformerXL, shape: Shape, **settings: Any) -> TrainState:
    """The initial state of a training run of this model, with settings that shapes do not have."""
    config = TrainConfig(
        batch_size=shape.batch_size,
        dropout=shape.dropout,
        dropatt=shape.dropatt,
        dtype=shape.dtype,
        compile=shape.compile,
        cuda_graph=shape.cuda_graph,
        attn_impl=shape.attn_impl,
        **settings,
    )
    ranks = Ranks(0, 1, torch.device(shape.device))
    state = TrainState(model.train(), config, context_of(shape), ranks)
    if shape.cuda_graph:
        state.repeat_update(recorded, cluster_shares(shape))
    return state


def cluster_shares(shape: Shape) -> list[float]:
    """The share of each cluster of the vocabulary in the words of `segments`."""
    share_V = word_shares(shape)
    return [part.sum().item() for part in share_V.split(config_of(shape).cluster_sizes)]


def main() -> None:
    shape = Shape.of_json(sys.argv[1])
    with torch.device("meta"):
        model = TransformerXL(config_of(shape))
    facts = {
        "flops_per_token": flops_per_token(model, context_of(shape)),
        "peak_flops": measured_peak_flops(torch.device(shape.device), getattr(torch, shape.dtype)),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    serve_models("txl", {"evaluate": evaluate, "generate": write, "train": train}, **facts)


if __name__ == "__main__":
    main()
