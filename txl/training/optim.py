"""The optimizer that the flags choose."""

import itertools
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from txl.config import require
from txl.runtime.distributed import is_in_shards
from txl.training.config import TrainConfig
from txl.training.update_rules import UpdateRule, rule_of


class Optimizers:
    """The optimizer of --optim, and of parameters that it does not take the one beside it, behind
    one interface.

    Args:
        named: the parameters that learn, by name; the saved state uses the same names.
        matrices: those that it takes if it does not take all, see `UpdateRule.matrices`.
    Raises:
        UsageError: if it does not take all, and they are not given.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        config: TrainConfig,
        matrices: Iterable[Tensor] | None = None,
    ) -> None:
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in named}
        self._rule = rule_of(config)
        self._rate: Tensor | None = None
        needs_them = self._rule.beside() is not None
        require(
            matrices is not None or not needs_them,
            f"--optim {config.optim}: takes some matrices only; name them, as its rule's `matrices`"
            " does for a model",
        )
        self._build(matrices or ())

    def _build(self, matrices: Iterable[Tensor]) -> None:
        self._rules: list[UpdateRule] = []
        self._all: list[torch.optim.Optimizer] = []
        for rule, parameters in shares(self._rule, self._names, matrices):
            self._rules.append(rule)
            self._all.append(rule.build(parameters))
        if self._rate is not None:
            self.move_rate_to(self._rate.device)

    def move_rate_to(self, device: torch.device) -> None:
        """Keep the rate in a tensor on the device, from which a CUDA graph reads it."""
        self._rate = torch.zeros((), device=device)
        for optimizer in self._all:
            for group in optimizer.param_groups:
                group["lr"] = self._rate
                if "capturable" in group:
                    group["capturable"] = True
        # the first updates are made before there is a graph
        warnings.filterwarnings("ignore", message="This instance was constructed with capturable")

    def set_learning_rate(self, lr: float) -> None:
        """Use `lr` from the next update on."""
        if self._rate is not None:
            self._rate.fill_(lr)
            return
        for optimizer in self._all:
            for group in optimizer.param_groups:
                group["lr"] = lr

    @property
    def reads_device(self) -> bool:
        """True if a CUDA graph can repeat `step`."""
        return all(rule.reads_device for rule in self._rules)

    @property
    def can_skip_on_device(self) -> bool:
        """True if a flag on the device can make `step` change nothing."""
        in_shards = any(map(is_in_shards, self._names))
        for rule, optimizer in zip(self._rules, self._all, strict=True):
            by_rule = rule.skips_on_device and not in_shards
            if not (by_rule or optimizer.defaults.get("fused")):
                return False
        return True

    def step(
        self,
        *,
        skip: Tensor | None = None,
        divisor: Tensor | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        """Update all weights.

        Args:
            skip: a number on the device; 1: change nothing.
            divisor: of the gradients, a number on the device; None: 1.
        """
        for optimizer in self._all:
            if skip is not None:
                optimizer.found_inf = skip  # type: ignore[attr-defined]  # read by fused optimizers
            if divisor is not None:
                _divide(optimizer, divisor, has_scaler=scaler is not None)
            if scaler is not None:
                scaler.step(optimizer)
            else:
                optimizer.step()

    def unscale_with(self, scaler: torch.amp.GradScaler) -> None:
        """Undo the scaling of the gradients."""
        for optimizer in self._all:
            scaler.unscale_(optimizer)

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for optimizer in self._all:
            optimizer.zero_grad()

    def state(self) -> dict[str, Tensor]:
        """The state of the optimizers, as `parameter name:kind` -> tensor."""
        states = {}
        for optimizer in self._all:
            for parameter, kinds in optimizer.state.items():
                for kind, value in kinds.items():
                    if isinstance(value, Tensor):
                        states[f"{self._names[parameter]}:{kind}"] = value
        return states

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore what `state()` returned. Raises `ValueError` if its parameters or its optimizer
        are others.

        A run continues with the matrices that its optimizer began with: version 0.2 gave `r_net` to
        Muon, too.
        """
        if self._rule.beside() is not None:
            kinds = self._rule.kept()
            began = []
            for parameter, name in self._names.items():
                if all(f"{name}:{kind}" in state for kind in kinds):
                    began.append(parameter)
            self._build(began)
        left = dict(state)
        for rule, optimizer in zip(self._rules, self._all, strict=True):
            for group in optimizer.param_groups:
                for parameter, kind in itertools.product(group["params"], rule.kept()):
                    value = left.pop(f"{self._names[parameter]}:{kind}", None)
                    if kind == "step":
                        shape = torch.Size()
                    else:
                        shape = parameter.shape
                    if value is None or value.shape != shape or not value.is_floating_point():
                        raise ValueError(
                            f"holds no {kind} of {self._names[parameter]}, or of another shape"
                        )
                    on_device = group.get("fused") or group.get("capturable")
                    on_host = kind == "step" and not on_device
                    optimizer.state[parameter][kind] = value.to(
                        "cpu" if on_host else parameter.device
                    )
        if left:
            raise ValueError(f"holds {next(iter(left))}, which is not of this optimizer")


def _divide(optimizer: torch.optim.Optimizer, divisor: Tensor, *, has_scaler: bool) -> None:
    """Divide the gradients that an optimizer reads. A fused one does so as it reads them, which saves
    a pass; it takes a number in float32, and a scaler takes that place.
    """
    if optimizer.defaults.get("fused") and divisor.dtype == torch.float32 and not has_scaler:
        optimizer.grad_scale = divisor  # type: ignore[attr-defined]  # read by fused optimizers
        return
    parameters = itertools.chain.from_iterable(g["params"] for g in optimizer.param_groups)
    grads = [p.grad for p in parameters if p.grad is not None]
    torch._foreach_div_(grads, divisor)  # type: ignore[attr-defined]  # no public form


def shares(
    rule: UpdateRule, parameters: Iterable[Tensor], matrices: Iterable[Tensor]
) -> list[tuple[UpdateRule, list[Any]]]:
    """Which rule updates which parameters: `rule` all, or the `matrices` and the one beside it the
    others.
    """
    everything = [*parameters]
    beside = rule.beside()
    if beside is None:
        return [(rule, everything)]
    there = set(everything)
    own = [parameter for parameter in matrices if parameter in there]
    chosen = set(own)
    others = [parameter for parameter in everything if parameter not in chosen]
    both = [(rule, own), (beside, others)]
    return [(one, taken) for one, taken in both if taken]


def tensors_kept(
    parameters: Iterable[Tensor], config: TrainConfig, matrices: Iterable[Tensor] = ()
) -> dict[Tensor, int]:
    """How many tensors of its size the optimizer keeps of each parameter; arguments as of
    `Optimizers`.
    """
    found = {}
    for rule, own in shares(rule_of(config), parameters, matrices):
        n_kept = sum(kind != "step" for kind in rule.kept())
        found |= dict.fromkeys(own, n_kept)
    return found
