"""Dynamic evaluation: gradient steps on the text while it is scored.

Source: Krause et al. 2018 (arXiv 1709.07432) for the update rules; Krause et al. 2019 (arXiv
1904.08378) for Transformer-XL. With the trained weights theta_g, segments s_1, s_2, ... and their
mean loss L(s), all operations elementwise:

    (1) MS_g     = 1/N sum_k (dL(s_k)/dtheta)^2 at theta_g, over N segments of the training text
    (2) RMS_norm = sqrt(MS_g) / mean of sqrt(MS_g) over all weights
    (3) SGD      theta <- theta - eta dL(s_i)/dtheta + lambda (theta_g - theta)
    (4) RMS      theta <- theta - eta dL(s_i)/dtheta / (sqrt(MS_g) + epsilon)
                          + min(lambda RMS_norm, 1) (theta_g - theta)

The minimum in (4) keeps the decay from overshooting theta_g. Segment i is scored with the weights
after segment i - 1, and updates them afterwards.

Differs from benkrause/dynamic-evaluation, whose mean in (2) is one over the means of the tensors;
and from benkrause/dynamiceval-transformer, whose (1) is a sum and whose (4) lacks the mean and the
minimum: its learning rate and epsilon are sqrt(N) times those here.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from txl.config import Checked, Context, UsageError, option
from txl.evaluation.config import DynamicConfig
from txl.evaluation.reading import Segments, of_counted, predicted_segments
from txl.model.streams import Memory
from txl.model.transformer import TransformerXL

Weights = dict[str, Tensor]
"""Tensors by parameter name, tied parameters once."""


class AdaptationRule:
    """How the weights follow a gradient. Settings of its own are a dataclass `Settings` inside the
    class.
    """

    reads_training_text: ClassVar[bool] = False
    """It needs the mean squares of the gradients on that, see `gradient_statistics`."""
    default_lr: ClassVar[float]

    def __init__(self, config: "DynamicConfig", mean_square: Weights | None) -> None:
        self.decay = config.dynamic_decay

    def scaled(self, name: str, gradient: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
        """What the learning rate multiplies, and the step back to the trained weight.

        Args:
            name: of the parameter.
            back: from the weight to the trained one; may be changed.
        """
        raise NotImplementedError


class SGD(AdaptationRule):
    """(3) in the module's docstring."""

    default_lr = 0.05

    def scaled(self, name: str, gradient: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
        back *= self.decay
        return gradient, back


class RMS(AdaptationRule):
    """(4) in the module's docstring."""

    @dataclass(frozen=True, kw_only=True)
    class Settings(Checked):
        dynamic_epsilon: float = option(
            0.0002, "added to the root mean square of the gradients", above=0
        )
        dynamic_segments: int = option(
            500, "segments of the training text to average these gradients over", minimum=1
        )

    reads_training_text = True
    default_lr = 0.0001

    def __init__(self, config: "DynamicConfig", mean_square: Weights | None) -> None:
        super().__init__(config, mean_square)
        if mean_square is None:
            raise ValueError(
                "the rule rms divides by the mean squares of the gradients, which are not given"
            )
        self.epsilon = config.settings(self.Settings).dynamic_epsilon
        self.rms: Weights = {name: square.sqrt() for name, square in mean_square.items()}
        self.decay /= _mean(self.rms.values())  # the denominator of (2)

    def scaled(self, name: str, gradient: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
        back *= (self.rms[name] * self.decay).clamp_(max=1)
        return gradient / (self.rms[name] + self.epsilon), back  # a gradient may be expanded


class Adapted(NamedTuple):
    """The state after a segment.

    Attributes:
        memory: hidden states of the segments before.
        learner: a copy of the model with the adapted weights.
        scored: after a segment was scored, until it is learned from: its nats (B, T), with their
            autograd graph.
    """

    memory: Memory
    learner: TransformerXL
    scored: Tensor | None = None


class DynamicEvaluation:
    """A predictor that updates its weights after each segment by (3) or (4), see the module's
    docstring.

    The adapted weights are part of the state: a copy of the model's, updated in place, so a state
    can be used once. The memory holds hidden states; keys and values would belong to outdated
    weights.

    Parallel streams share their weights, which follow the mean loss: the result depends on the
    number of streams. The papers use one.

    Args:
        mean_square: (1), see `gradient_statistics`; needed if the rule reads the training text.
    Raises:
        ValueError: if it is needed and missing.
    """

    def __init__(
        self, model: TransformerXL, config: DynamicConfig, mean_square: Weights | None = None
    ) -> None:
        self.model = model
        self.trained: Weights = {name: p.detach() for name, p in model.named_parameters()}
        self.lr = config.lr
        self.rule = config.rule(config, mean_square)

    def fresh_memory(self, batch_size: int) -> Adapted:
        """The trained weights and an empty memory."""
        return _fresh(self.model, batch_size)

    def nll(
        self, input_BT: Tensor, target_BT: Tensor, memory: Adapted, context: Context
    ) -> tuple[Tensor, Adapted]:
        """Nats of each target under the current weights, and the state to learn from them. Raises
        `UsageError` if the weights have diverged and a loss is not finite.
        """
        nll_BT, _, memory = self.nll_and_hidden(input_BT, target_BT, memory, context)
        return nll_BT, memory

    def nll_and_hidden(
        self, input_BT: Tensor, target_BT: Tensor, memory: Adapted, context: Context
    ) -> tuple[Tensor, Tensor, Adapted]:
        """`nll` with the hidden states (B, T, D) that the targets are predicted from."""
        nll_BT, hidden_BTD, memory = _scored(input_BT, target_BT, memory, context)
        if not nll_BT.isfinite().all():
            raise UsageError(
                f"--dynamic_lr {self.lr:g}: the weights diverged, losses are infinite; use a"
                " smaller one"
            )
        return nll_BT, hidden_BTD, memory

    @torch.no_grad()
    def learn(self, memory: Adapted, counted_BT: Tensor | None) -> Adapted:
        """The state after an update by the scored targets (None: all) of the last segment. Raises
        `ValueError` if no segment was scored since the last update.
        """
        gradients = _gradients(memory, counted_BT)
        for name, weight in memory.learner.named_parameters():
            back = self.trained[name] - weight
            step, back = self.rule.scaled(name, gradients[name], back)
            weight.add_(back).sub_(step, alpha=self.lr)
        return memory._replace(scored=None)


def gradient_statistics(model: TransformerXL, segments: Segments, context: Context) -> Weights:
    """Mean squares of the gradients over segments of a text, (1) in the module's docstring.

    A segment's gradient is that of its mean loss over all streams, so use as many streams as in the
    evaluation.
    """
    sums = _SquaredGradients(model)
    n_segment = sum(1 for _ in predicted_segments(sums, segments, context, model.device))
    return {name: square / n_segment for name, square in sums.squares.items()}


class _SquaredGradients:
    """A predictor that adds up the squares of each segment's gradient, and leaves its weights as
    they are.
    """

    def __init__(self, model: TransformerXL) -> None:
        self._model = model
        self.squares: Weights = {}
        for name, p in model.named_parameters():
            self.squares[name] = torch.zeros_like(p, requires_grad=False)

    def fresh_memory(self, batch_size: int) -> Adapted:
        return _fresh(self._model, batch_size)

    def nll(
        self, input_BT: Tensor, target_BT: Tensor, memory: Adapted, context: Context
    ) -> tuple[Tensor, Adapted]:
        nll_BT, _, after = _scored(input_BT, target_BT, memory, context)
        return nll_BT, after

    def learn(self, memory: Adapted, counted_BT: Tensor | None) -> Adapted:
        for name, gradient in _gradients(memory, counted_BT).items():
            self.squares[name].addcmul_(gradient, gradient)
        return memory._replace(scored=None)


def _fresh(model: TransformerXL, batch_size: int) -> Adapted:
    return Adapted(model.empty_memory(batch_size), copy.deepcopy(model).eval())


def _scored(
    input_BT: Tensor, target_BT: Tensor, memory: Adapted, context: Context
) -> tuple[Tensor, Tensor, Adapted]:
    """Nats of each target, the hidden states they are predicted from, and the state with what
    `_gradients` needs.
    """
    with torch.enable_grad():
        learner = memory.learner
        tables = learner.reused_tables()
        hidden_BTD, after = learner(input_BT, memory.memory, context, None, tables)
        hidden_BTD = hidden_BTD[:, -target_BT.shape[1] :]
        nll_BT = learner.softmax.nll(hidden_BTD, target_BT, tables)
    return (
        nll_BT.detach(),
        hidden_BTD.detach(),
        memory._replace(memory=after.detached(), scored=nll_BT),
    )


def _gradients(memory: Adapted, counted_BT: Tensor | None) -> Weights:
    """Gradients of the mean loss over the scored targets (None: all) of the last segment; see
    `learn`.
    """
    if memory.scored is None:
        raise ValueError("no segment was scored since the last update")
    with torch.enable_grad():
        loss = of_counted(memory.scored, counted_BT).mean()
    names, weights = zip(*memory.learner.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, weights, materialize_grads=True), strict=True))


def _mean(tensors: Iterable[Tensor]) -> float:
    """The mean over all elements of all tensors."""
    sums, sizes = zip(*((t.sum(dtype=torch.float64), t.numel()) for t in tensors), strict=True)
    return float(torch.stack(sums).sum()) / sum(sizes)
