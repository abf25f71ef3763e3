"""Checks of whole models: compiled, CUDA graphs, reversible, without synchronisation, and against a CPU."""

import dataclasses
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from lab.benchmarks.checks.errors import Errors, error
from lab.benchmarks.shapes import TRAINING, Shape
from lab.benchmarks.workers import serve
from lab.benchmarks.workers.serve import segments
from lab.benchmarks.workers.txl import cluster_shares, config_of, context_of, model_of, state_of
from txl.inference.cuda_graph import CudaGraphModel
from txl.inference.frozen import Frozen
from txl.model.autocast import autocast, dtype_for
from txl.model.transformer import TransformerXL
from txl.runtime.recording import Record, recorded
from txl.stacks.reversible import plain_streams
from txl.training.config import TrainConfig
from txl.training.init import init_weights

SMALL = dataclasses.replace(
    TRAINING["nvidia-base"], n_layer=3, n_token=3000, cutoffs=(500, 1000), batch_size=2, dropout=0.0
)
TINY = dataclasses.replace(
    SMALL, n_layer=2, n_head=4, d_head=16, d_model=64, d_inner=128, n_token=300, cutoffs=(50, 100), tgt_len=32,
    mem_len=32,
)  # fmt: skip
STEP = 0.005
"""Of a difference quotient: far above the rounding of float32, and small beside the weights."""


def varied(shape: Shape, **changes: Any) -> TransformerXL:
    """A model of this shape with a changed configuration, on the CPU, without zero weights."""
    torch.manual_seed(0)
    config = dataclasses.replace(
        config_of(shape), n_position=shape.tgt_len + shape.mem_len, **changes
    )
    model = TransformerXL(config, dropout=shape.dropout, dropatt=shape.dropatt)
    init_weights(model, TrainConfig())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    return model


def loss_and_gradients(
    model: TransformerXL, shape: Shape, *, n_segment: int = 2, wide: bool = False
) -> dict[str, Tensor]:
    """Of the last of some segments, the random numbers the same each time; `wide`: no product in half precision."""
    torch.manual_seed(4)
    text, memory, loss = segments(shape), None, torch.zeros(())
    for _ in range(n_segment):
        with serve.autocast(dataclasses.replace(shape, dtype="float32") if wide else shape):
            nll_BT, memory = model.nll(*next(text), memory, context_of(shape))
        loss = nll_BT.double().mean()
    model.zero_grad()
    loss.backward()
    gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return {"loss": loss.detach(), "gradients": gradients}


def compiled_errors(shape: Shape) -> Errors:
    """Of the loss and all gradients, the layers compiled with nothing left to Python."""
    expected = loss_and_gradients(model_of(shape), shape)
    found = loss_and_gradients(_compiled(model_of(shape)), shape)
    return {name: error(found[name], expected[name]) for name in expected}


def compiled_dropout_errors(shape: Shape) -> Errors:
    """Of the slope that the gradients of compiled layers with dropout promise, beside the slope that is seen.

    Compiled, dropout draws other numbers than it does in Python; what can be asked for is that the backward pass has
    the masks of the forward pass. One segment: no gradient goes back to the one before, but its memory would change.
    """
    model = _compiled(model_of(shape))
    weights = list(model.layers.parameters())
    loss_and_gradients(model, shape, n_segment=1)
    slope = torch.cat([w.grad.flatten() for w in weights]).double().norm()
    steps = [(STEP / float(slope)) * w.grad for w in weights]
    losses = []
    for sign in (1, -2):  # forth, and back to the other side
        with torch.no_grad():
            for weight, step in zip(weights, steps, strict=True):
                weight += sign * step
        losses.append(loss_and_gradients(model, shape, n_segment=1)["loss"])
    return {"slope": error((losses[0] - losses[1]) / (2 * STEP), slope)}


def _compiled(model: TransformerXL) -> TransformerXL:
    for layer in model.layers:
        layer.compile(fullgraph=True)
    return model


@torch.no_grad()
def graphed_errors(shape: Shape, *, narrows: bool = False) -> Errors:
    """Of the nats of six segments, of which the last four are read over a full memory.

    The shape's dtype is that of the weights; with `narrows`, of the products only.

    Raises:
        RuntimeError: if nothing could be recorded, for then the model itself has read them.
    """
    model = model_of(shape).eval()
    if not narrows:
        model.to(getattr(torch, shape.dtype))
    graphed = CudaGraphModel(model, record=(lambda work: work) if shape.device == "cpu" else None)
    results = []
    for predictor in (Frozen(model), graphed):
        text, memory, nats = segments(shape), predictor.fresh_memory(shape.batch_size), []
        with autocast(model.device, dtype_for(model, shape.dtype if narrows else "float32")):
            for _ in range(6):
                nll_BT, memory = predictor.nll(*next(text), memory, context_of(shape))
                nats.append(nll_BT.clone())
        results.append(torch.cat(nats))
    if graphed.failed:
        raise RuntimeError("no CUDA graph could be recorded")
    return {"nats": error(results[1], results[0])}


def reversible_errors(shape: Shape) -> Errors:
    """A reversible model with dropout, against the same one with stored activations."""
    model = varied(shape, reversible=True, pre_lnorm=True).to(shape.device)
    found = loss_and_gradients(model, shape)
    with mock.patch("txl.stacks.reversible.reversible_layers", plain_streams):
        expected = loss_and_gradients(model, shape)
    return {name: error(found[name], expected[name]) for name in expected}


def beside_cpu_errors(shape: Shape, **changes: Any) -> Errors:
    """Of loss and gradients against those on a CPU, both in float64 if that is the shape's dtype, else the CPU's in
    float32 and ours under autocast."""
    dtype = torch.float64 if shape.dtype == "float64" else torch.float32
    model = varied(shape, **changes).to(dtype)
    wide = shape.dtype == "float64"
    expected = loss_and_gradients(model, dataclasses.replace(shape, device="cpu"), wide=True)
    found = loss_and_gradients(varied(shape, **changes).to(shape.device, dtype), shape, wide=wide)
    return {name: error(found[name].cpu(), expected[name]) for name in expected}


@torch.no_grad()
def hidden_errors(shape: Shape, **changes: Any) -> Errors:
    """Of the hidden states of two segments, all weights in the shape's dtype, against a CPU's in float32."""
    results = []
    for device, dtype in (("cpu", torch.float32), (shape.device, getattr(torch, shape.dtype))):
        model = varied(shape, **changes).to(device, dtype).eval()
        reader = Frozen(model)
        text, memory = segments(shape), reader.fresh_memory(shape.batch_size)
        hiddens = []
        for _ in range(2):
            hidden_BTD, memory = reader(next(text)[0], memory, context_of(shape))
            hiddens.append(hidden_BTD.cpu())
        results.append(hiddens)
    expected, found = results
    return {
        f"segment {i}": error(x, y) for i, (x, y) in enumerate(zip(found, expected, strict=True))
    }


def step_errors(shape: Shape, **changes: Any) -> Errors:
    """Of the nats of the second of two whole training steps, against those on a CPU in float32."""
    nats = []
    for its in (dataclasses.replace(shape, device="cpu", dtype="float32"), shape):
        state, text = state_of(varied(its, **changes).to(its.device), its), segments(its)
        state.step(*next(text))
        nats.append(state.step(*next(text)).cpu())
    return {"nats": error(nats[1], nats[0])}


def repeated_errors(
    shape: Shape,
    *,
    optim: str = "adam",
    memory_parts: int = 1,
    shares: Sequence[float] | None = None,
    **changes: Any,
) -> Errors:
    """Of the nats of eight training steps, of which the last six repeat a recording that has room for their words,
    against those of steps that are made one by one. Raises `UsageError` if they cannot be recorded.

    Args:
        shares: of each cluster in the text, by which there is room; None: as it is.
    """
    nats = []
    for record in (None, _record_on(shape.device)):
        model = varied(shape, **changes).to(shape.device)
        state = state_of(model, shape, optim=optim, memory_parts=memory_parts)
        if record is not None:
            state.repeat_update(record, shares or cluster_shares(shape))
        text = segments(shape)
        nats.append(torch.stack([state.step(*next(text)).clone() for _ in range(8)]))
    return {"nats": error(nats[1], nats[0])}


def _record_on(device: str) -> Record:
    if device == "cpu":  # where work is repeated by doing it again
        return lambda work: work
    return recorded


def repeated_dropout_errors(shape: Shape) -> Errors:
    """1 if two updates that repeat a recording drop the same elements: of two that read the same, at a rate of 0."""
    shape = dataclasses.replace(shape, mem_len=0)
    state = state_of(varied(shape).to(shape.device), shape)
    state.repeat_update(_record_on(shape.device), cluster_shares(shape))
    batch = next(segments(shape))
    nats = []
    with mock.patch.object(state.optimizers, "set_learning_rate"):
        for _ in range(6):
            nats.append(state.step(*batch).clone())
    return {"alike": float(torch.equal(nats[-1], nats[-2]))}


def waiting_errors(shape: Shape, **changes: Any) -> Errors:
    """No errors; a training step that synchronises raises, except the first two, which allocate and compile."""
    state, text = state_of(varied(shape, **changes).to(shape.device), shape), segments(shape)
    for _ in range(2):
        state.step(*next(text))
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            state.step(*next(text))
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    return {}
