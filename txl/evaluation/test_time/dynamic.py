"""Dynamic evaluation: the weights follow the text that is read.

Source: Krause et al. 2018 (arXiv 1709.07432) for the update rules; Krause et al. 2019 (arXiv 1904.08378) for
Transformer-XL. With the trained weights theta_g, segments s_1, s_2, ... and their mean loss L(s), all operations
elementwise:

    (1) MS_g     = 1/N sum_k (dL(s_k)/dtheta)^2 at theta_g, over N segments of the training text
    (2) RMS_norm = sqrt(MS_g) / mean of sqrt(MS_g) over all weights
    (3) SGD      theta <- theta - eta dL(s_i)/dtheta + lambda (theta_g - theta)
    (4) RMS      theta <- theta - eta dL(s_i)/dtheta / (sqrt(MS_g) + epsilon)
                          + min(lambda RMS_norm, 1) (theta_g - theta)

The minimum in (4) keeps the decay from overshooting theta_g. Segment i is predicted with the weights that the segments
before it have left, and updates them afterwards.

Differs from benkrause/dynamic-evaluation, whose mean in (2) is one over the means of the tensors; and from
benkrause/dynamiceval-transformer, whose (1) is a sum and whose (4) lacks the mean and the minimum: its learning rate
and epsilon are sqrt(N) times those here.
"""

import copy
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from txl.config import Context, UsageError
from txl.evaluation.config import DynamicConfig
from txl.evaluation.score import Segments
from txl.memory import Memory
from txl.model.transformer import TransformerXL

Weights = dict[str, Tensor]
"""By the name of the parameter, tied ones once."""


class Adapted(NamedTuple):
    """The state of the text.

    Attributes:
        memory: hidden states of the segments before.
        learner: a copy of the model, with the weights that those segments have left.
        scored: between scoring a segment and learning from it, its nats (B, T) as a function of these weights.
    """

    memory: Memory
    learner: TransformerXL
    scored: Tensor | None = None


class DynamicEvaluation:
    """A predictor whose weights take a step after each segment: (3) and (4) in the docstring of the module.

    The adapted weights are part of the state. They start as a copy of the model's, which stay as they are, and are
    changed in place: a state that was handed on is used up. What is remembered are hidden states; keys and values would
    be those of weights that are no longer there.

    Streams side by side share their weights, which follow the mean loss over all of them: the result depends on their
    number. One stream is what the papers do.

    Args:
        mean_square: (1), see `gradient_statistics`; only the rule "rms" needs it.
    Raises:
        ValueError: if it needs it and does not have it.
    """

    def __init__(self, model: TransformerXL, config: DynamicConfig, mean_square: Weights | None = None) -> None:
        self.model = model
        self.trained: Weights = {name: p.detach() for name, p in model.named_parameters()}
        self.lr, self.decay, self.epsilon = config.lr, config.dynamic_decay, config.dynamic_epsilon
        self.rms: Weights | None = None
        if config.dynamic == "rms":
            if mean_square is None:
                raise ValueError("the rule rms divides by the mean squares of the gradients, which are not given")
            self.rms = {name: square.sqrt() for name, square in mean_square.items()}
            self.decay /= _mean(self.rms.values())  # (2), so that (4) is left with a product

    def fresh_memory(self, batch_size: int) -> Adapted:
        """The trained weights, and nothing remembered."""
        return _fresh(self.model, batch_size)

    def nll(self, input_BT: Tensor, target_BT: Tensor, memory: Adapted, context: Context) -> tuple[Tensor, Adapted]:
        """Nats of each target under the weights so far, and the state to learn from them.

        Raises:
            UsageError: if the weights have run away, and a loss is no longer a number.
        """
        nll_BT, memory = _scored(input_BT, target_BT, memory, context)
        if not nll_BT.isfinite().all():
            raise UsageError(f"--dynamic_lr {self.lr:g}: the weights ran away, losses are infinite; use a smaller one")
        return nll_BT, memory

    @torch.no_grad()
    def learn(self, memory: Adapted, counted_BT: Tensor | None) -> Adapted:
        """The state after a step by the targets that count (None: all) of the segment just scored.

        Raises:
            ValueError: if no segment was scored since the last step.
        """
        gradients = _gradients(memory, counted_BT)
        for name, weight in memory.learner.named_parameters():
            step, back = gradients[name], self.trained[name] - weight
            if self.rms is None:
                back *= self.decay
            else:
                step /= self.rms[name] + self.epsilon
                back *= (self.rms[name] * self.decay).clamp_(max=1)
            weight.add_(back).sub_(step, alpha=self.lr)
        return memory._replace(scored=None)


def gradient_statistics(model: TransformerXL, segments: Segments, context: Context) -> Weights:
    """Mean squares of the gradients over segments of a text, (1) in the docstring of the module.

    The gradient of a segment is that of its mean loss over all streams: read as many as will be evaluated.
    """
    squares = {name: torch.zeros_like(p, requires_grad=False) for name, p in model.named_parameters()}
    device = next(model.parameters()).device
    memory, n_segment = None, 0
    for input_BT, target_BT, counted_BT in segments:
        if memory is None:
            memory = _fresh(model, len(input_BT))
        _, memory = _scored(input_BT.to(device), target_BT.to(device), memory, context)
        for name, gradient in _gradients(memory, counted_BT).items():
            squares[name].addcmul_(gradient, gradient)
        n_segment += 1
    return {name: square / n_segment for name, square in squares.items()}


def _fresh(model: TransformerXL, batch_size: int) -> Adapted:
    like = model.layers[0].attn.k_net.weight
    memory = Memory.empty(len(model.layers), batch_size, model.config.d_model, like=like)
    return Adapted(memory, copy.deepcopy(model).eval())


def _scored(input_BT: Tensor, target_BT: Tensor, memory: Adapted, context: Context) -> tuple[Tensor, Adapted]:
    """Nats of each target, and the state with what `_gradients` needs."""
    with torch.enable_grad():
        nll_BT, hidden = memory.learner.nll(input_BT, target_BT, memory.memory, context)
    return nll_BT.detach(), Adapted(hidden, memory.learner, nll_BT)


def _gradients(memory: Adapted, counted_BT: Tensor | None) -> Weights:
    """Those of the mean loss over the targets that count (None: all) of the segment just scored.

    Raises:
        ValueError: if no segment was scored since the last step.
    """
    if memory.scored is None:
        raise ValueError("no segment was scored since the last step")
    with torch.enable_grad():
        loss = (memory.scored if counted_BT is None else memory.scored[counted_BT.to(memory.scored.device)]).mean()
    names, weights = zip(*memory.learner.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, weights, materialize_grads=True), strict=True))


def _mean(tensors: Iterable[Tensor]) -> float:
    """The mean over all elements of all tensors."""
    sums, sizes = zip(*((t.sum(dtype=torch.float64), t.numel()) for t in tensors), strict=True)
    return float(torch.stack(sums).sum()) / sum(sizes)
