"""Layers that keep fewer activations. Reversible: the backward pass recomputes inputs from outputs. In
chunks: the inner states of a feed-forward network are in memory for a part of the tokens only.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from txl.model.feed_forward import FeedForward
from txl.model.memory import Reading, State
from txl.model.span import Span


def run(
    layers: Any, h_BTD: Tensor, states: tuple[State, ...], reading: Reading
) -> tuple[Tensor, tuple[State, ...]]:
    """Layers over two streams, equal at first and averaged at the end: the output, and the states
    for the next segment, which hold stream 2."""
    reading = reading.prepared()
    next_states: list[State] = []

    def keep(before_BTD: Tensor, after_BTD: Tensor) -> None:
        rule = layers[len(next_states)].memory
        state = states[len(next_states)]
        next_states.append(rule.next_state(state, before_BTD, after_BTD, reading))

    memory = [state.hidden_BMD for state in states]
    x1_BTD, x2_BTD = _streams(layers, h_BTD)(
        layers, h_BTD, h_BTD, memory, reading.feats, reading.span, keep
    )
    return (x1_BTD + x2_BTD) / 2, tuple(next_states)


def _streams(layers: Any, h_BTD: Tensor) -> Any:
    """By what the two streams are computed."""
    if not torch.is_grad_enabled():
        return plain_streams
    needs_gradients = h_BTD.requires_grad or any(p.requires_grad for p in layers.parameters())
    if needs_gradients:
        return reversible_layers
    return plain_streams


class TwoStreams(Protocol):
    """A reversible layer: y1 = x1 + attended(x2), y2 = x2 + feed_forward(y1)."""

    def attended(self, x_BTD: Tensor, mem_BMD: Tensor, feats: Tensor, span: Span) -> Tensor:
        """The attention output, added to stream 1, (B, T, D)."""
        ...

    def feed_forward(self, x_BTD: Tensor) -> Tensor:
        """The feed-forward output, added to stream 2, (B, T, D)."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters that need gradients."""
        ...


def plain_streams(
    layers: Sequence[TwoStreams],
    x1_BTD: Tensor,
    x2_BTD: Tensor,
    memory: Sequence[Tensor],
    feats: Tensor,
    span: Span,
    keep: Callable[[Tensor, Tensor], None],
) -> tuple[Tensor, Tensor]:
    """`reversible_layers` by definition; autograd would keep all activations."""
    for layer, mem_BMD in zip(layers, memory, strict=True):
        before_BTD = x2_BTD
        x1_BTD = x1_BTD + layer.attended(x2_BTD, mem_BMD, feats, span)
        x2_BTD = x2_BTD + layer.feed_forward(x1_BTD)
        keep(before_BTD, x2_BTD)
    return x1_BTD, x2_BTD


def reversible_layers(
    layers: Sequence[TwoStreams],
    x1_BTD: Tensor,
    x2_BTD: Tensor,
    memory: Sequence[Tensor],
    feats: Tensor,
    span: Span,
    keep: Callable[[Tensor, Tensor], None],
) -> tuple[Tensor, Tensor]:
    """The two streams after all layers, (B, T, D) each.

        y1 = x1 + attended(x2),  y2 = x2 + ff(y1)          x2 = y2 - ff(y1),  x1 = y1 - attended(x2)

    The backward pass goes from the last layer to the first, computing each input from the output
    and gradients from the input. It stores the last output and each layer's random state (for
    dropout). Gradients equal those with stored activations up to rounding.
    Source: Gomez et al. 2017, sec. 3; Kitaev et al. 2020, sec. 3, for the two halves of a layer.

    Args:
        memory: one (B, M, D) per layer.
        feats: from the position encoding's `prepare`.
        keep: called for each layer with stream 2 before and after it, without gradients.
    """
    parameters = list({id(p): p for layer in layers for p in layer.parameters()}.values())
    return _Reversible.apply(layers, memory, span, keep, x1_BTD, x2_BTD, feats, *parameters)


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        layers: Sequence[TwoStreams],
        memory: Sequence[Tensor],
        span: Span,
        keep: Callable[[Tensor, Tensor], None],
        x1_BTD: Tensor,
        x2_BTD: Tensor,
        feats: Tensor,
        *parameters: nn.Parameter,
    ) -> tuple[Tensor, Tensor]:
        ctx.layers = layers
        ctx.memory = memory
        ctx.span = span
        ctx.parameters = parameters
        ctx.states = [_RandomAndAutocastState(x1_BTD.device)]
        for layer, mem_BMD in zip(layers, memory, strict=True):
            read_BTD = x2_BTD
            x1_BTD = x1_BTD + layer.attended(x2_BTD, mem_BMD, feats, span)
            ctx.states.append(_RandomAndAutocastState(x1_BTD.device))
            x2_BTD = x2_BTD + layer.feed_forward(x1_BTD)
            keep(read_BTD, x2_BTD)
            ctx.states.append(_RandomAndAutocastState(x1_BTD.device))
        ctx.save_for_backward(x1_BTD, x2_BTD, feats)
        return x1_BTD, x2_BTD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy1_BTD: Tensor, dy2_BTD: Tensor) -> tuple[Any, ...]:  # type: ignore[override]  # decorated
        now = set()
        for layer in ctx.layers:
            for p in layer.parameters():
                now.add(id(p))
        if now != {id(p) for p in ctx.parameters}:
            raise RuntimeError(
                "reversible layers compute again with their own weights: not with functional_call"
            )
        y1_BTD, y2_BTD, feats = ctx.saved_tensors
        feats = feats.detach().requires_grad_(ctx.needs_input_grad[6])
        sums = _Sums([*ctx.parameters, feats])
        states = ctx.states[:-1]
        for layer, mem_BMD in zip(reversed(ctx.layers), reversed(ctx.memory), strict=True):
            y1_BTD = y1_BTD.detach().requires_grad_()
            with states.pop().restored(), torch.enable_grad():
                ff_BTD = layer.feed_forward(y1_BTD)
            dy1_BTD = dy1_BTD + sums.add(ff_BTD, dy2_BTD, y1_BTD)
            x2_BTD = (y2_BTD - ff_BTD.detach()).requires_grad_()
            del ff_BTD
            with states.pop().restored(), torch.enable_grad():
                attended_BTD = layer.attended(x2_BTD, mem_BMD, feats, ctx.span)
            dy2_BTD = dy2_BTD + sums.add(attended_BTD, dy1_BTD, x2_BTD)
            y1_BTD = (y1_BTD - attended_BTD).detach()
            y2_BTD = x2_BTD.detach()
            del attended_BTD
        *of_parameters, of_feats = sums.totals
        return None, None, None, None, dy1_BTD, dy2_BTD, of_feats, *of_parameters


class _Sums:
    """Summed gradients of tensors that several layers use."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self.totals: list[Tensor | None] = [None] * len(tensors)

    def add(self, out: Tensor, upstream: Tensor, source: Tensor) -> Tensor:
        """Add the gradients of `out` with respect to the tensors, and return that with respect to
        `source`.
        """
        wanted = []
        for i, tensor in enumerate(self.tensors):
            if tensor.requires_grad:
                wanted.append(i)
        inputs = [source, *(self.tensors[i] for i in wanted)]
        to_source, *grads = torch.autograd.grad(
            out, inputs, upstream.to(out.dtype), allow_unused=True
        )
        for i, grad in zip(wanted, grads, strict=True):
            if grad is not None:
                total = self.totals[i]
                self.totals[i] = grad if total is None else total + grad
        return to_source


class _RandomAndAutocastState:
    """The states of random generators and autocast, to repeat a computation exactly."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.autocast = (
            torch.is_autocast_enabled(device.type),
            torch.get_autocast_dtype(device.type),
        )
        self.cpu = torch.get_rng_state()
        if device.type == "cuda":
            self.cuda = torch.cuda.get_rng_state(device)
        else:
            self.cuda = None

    @contextmanager
    def restored(self) -> Iterator[None]:
        is_on, dtype = self.autocast
        with (
            torch.random.fork_rng([self.device] if self.cuda is not None else []),
            torch.autocast(self.device.type, dtype, enabled=is_on),
        ):
            torch.set_rng_state(self.cpu)
            if self.cuda is not None:
                torch.cuda.set_rng_state(self.cuda, self.device)
            yield


def compute_in_chunks(ff: FeedForward, n_token: int) -> None:
    """Compute so many tokens of a segment at a time, 0 for all (Kitaev et al. 2020, sec. 3). The
    backward pass recomputes each chunk.
    """
    if n_token == 0:
        vars(ff).pop("forward", None)
    else:
        ff.forward = partial(_in_chunks, ff, n_token)


def _in_chunks(ff: FeedForward, n_token: int, input: Tensor) -> Tensor:
    if input.shape[1] <= n_token:
        return FeedForward.forward(ff, input)
    ff.drop.seed = None  # each chunk draws its own, again when it is recomputed
    return torch.cat([_one(ff, part_BCD) for part_BCD in input.split(n_token, dim=1)], dim=1)


def _one(ff: FeedForward, part_BCD: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return FeedForward.forward(ff, part_BCD)
    return checkpoint(FeedForward.forward, ff, part_BCD, use_reentrant=False)
