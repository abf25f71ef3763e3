"""How an optimizer of --optim is built, what it keeps and which weights it takes, with its settings;
`txl.training.optimizers` has the updates that PyTorch lacks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from txl.config import Checked, option
from txl.registry import OPTIMIZERS
from txl.training.config import TrainConfig

if TYPE_CHECKING:  # PyTorch is imported where an optimizer is built: --help shows settings without
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from txl.model.transformer import Body


class UpdateRule:
    """An optimizer that --optim names. To add one, see docs/training.md.

    Settings of its own are a dataclass `Settings` inside the class, which it reads by
    `config.settings`; those of all optimizers, such as `lr` and `weight_decay`, are fields of
    `config`.
    """

    skips_on_device: ClassVar[bool] = False
    """A number `found_inf` on the device makes its step change nothing, of weights that are not in
    shards; those that are `fused` can do so always."""
    reads_device: ClassVar[bool] = False
    """Its step finds on the device all that changes from step to step, rate and counts, so that a
    CUDA graph can repeat it."""
    not_in_shards: ClassVar[str] = ""
    """Why it does not work with --shard, and what to use; empty: it does."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config

    def kept(self) -> tuple[str, ...]:
        """Names of the tensors that it keeps of each parameter: `step`, a number, and others as
        large as the parameter.
        """
        raise NotImplementedError

    def build(self, parameters: "list[nn.Parameter]") -> "Optimizer":
        """The optimizer of these parameters, with the learning rate `config.lr`."""
        raise NotImplementedError

    def matrices(self, model: "Body") -> "list[Tensor]":
        """The parameters of a model that it takes, if it leaves others to `beside`."""
        return []

    def beside(self) -> "UpdateRule | None":
        """The rule of the parameters that are not among `matrices`; None: it takes all."""
        return None


def rule_of(config: TrainConfig) -> UpdateRule:
    """The rule of --optim."""
    return OPTIMIZERS[config.optim](config)


class Adam(UpdateRule):
    """Source: Kingma & Ba 2015; the decay is added to the gradient."""

    reads_device = True

    @dataclass(frozen=True, kw_only=True)
    class Settings(Checked):
        beta1: float = option(0.9, "decay of the average of gradients", minimum=0, below=1)
        beta2: float = option(
            0.999, "decay of the average of squared gradients", minimum=0, below=1
        )
        epsilon: float | None = option(
            None, "added to the denominator of the update (not given: 1e-8; lamb: 1e-6)", above=0
        )

    default_epsilon = 1e-8

    def kept(self) -> tuple[str, ...]:
        return ("step", "exp_avg", "exp_avg_sq")

    def build(self, parameters: "list[nn.Parameter]") -> "Optimizer":
        import torch

        return torch.optim.Adam(parameters, fused=True, **self.rates())

    def rates(self) -> dict[str, Any]:
        """The arguments of Adam and its like."""
        settings = self.config.settings(Adam.Settings)
        return {
            "lr": self.config.lr,
            "weight_decay": self.config.weight_decay,
            "betas": (settings.beta1, settings.beta2),
            "eps": settings.epsilon or self.default_epsilon,
        }


class AdamW(Adam):
    """Adam whose decay is apart from the gradient.

    Source: Loshchilov & Hutter 2019.
    """

    def build(self, parameters: "list[nn.Parameter]") -> "Optimizer":
        import torch

        return torch.optim.AdamW(parameters, fused=True, **self.rates())


class LAMB(Adam):
    """See `Lamb`."""

    skips_on_device = True
    reads_device = False  # its count is on the host
    default_epsilon = 1e-6

    def build(self, parameters: "list[nn.Parameter]") -> "Optimizer":
        from txl.training.optimizers import Lamb

        return Lamb(parameters, **self.rates())


class SGD(UpdateRule):
    """Stochastic gradient descent with momentum, without Nesterov's look ahead.

    Source: Sutskever et al. 2013.
    """

    reads_device = True

    @dataclass(frozen=True, kw_only=True)
    class Settings(Checked):
        mom: float = option(0.0, "momentum", minimum=0, below=1)

    def kept(self) -> tuple[str, ...]:
        if self.config.settings(self.Settings).mom:
            return ("momentum_buffer",)
        return ()

    def build(self, parameters: "list[nn.Parameter]") -> "Optimizer":
        import torch

        from txl.runtime.distributed import is_in_shards

        in_shards = any(map(is_in_shards, parameters))  # they have no fused SGD
        return torch.optim.SGD(
            parameters,
            lr=self.config.lr,
            momentum=self.config.settings(self.Settings).mom,
            weight_decay=self.config.weight_decay,
            fused=not in_shards,
        )


class Adagrad(UpdateRule):
    """Source: Duchi et al. 2011, diagonal."""

    def kept(self) -> tuple[str, ...]:
        return ("step", "sum")

    def build(self, parameters: "list[nn.Parameter]") -> "Optimizer":
        import torch

        decay = self.config.weight_decay
        return torch.optim.Adagrad(parameters, lr=self.config.lr, weight_decay=decay)


class MuonAndAdamW(UpdateRule):
    """Muon for matrices of the layers that mix features of hidden states, AdamW for the rest; see
    `Muon`.
    """

    @dataclass(frozen=True, kw_only=True)
    class Settings(Adam.Settings):
        muon_positions: bool = option(
            False,
            "muon updates the projections of position features (r_net) too, as in version 0.2;"
            " longer memories then hurt",
        )

    skips_on_device = True
    reads_device = True
    not_in_shards = "orthogonalises whole matrices, which no process holds; use adamw or lamb"

    def kept(self) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def build(self, parameters: "list[nn.Parameter]") -> "Optimizer":
        from txl.training.optimizers import Muon

        return Muon(parameters, lr=self.config.lr, weight_decay=self.config.weight_decay)

    def beside(self) -> UpdateRule:
        return AdamW(self.config)

    def matrices(self, model: "Body") -> "list[Tensor]":
        """Those that mix features of hidden states, and with `muon_positions` those of the position
        encodings.
        """
        mixing = hidden_matrices(model)
        if not self.config.settings(self.Settings).muon_positions:
            return mixing
        inside = []
        for layer in model.layers:
            inside += _linear_weights(layer.attn.pos.modules())
        return [*dict.fromkeys([*mixing, *inside])]


def hidden_matrices(model: "Body") -> "list[Tensor]":
    """The matrices of the layers' attention and feed-forward networks that mix features of hidden
    states: what Muon updates (Jordan et al. 2024).
    """
    mixing = []
    for layer in model.layers:
        pos = layer.attn.pos
        if pos.mixes_hidden_states:
            of_positions = set()
        else:
            of_positions = set(pos.modules())
        modules = (*layer.attn.modules(), *layer.ff.modules())
        mixing += _linear_weights(module for module in modules if module not in of_positions)
    return mixing


def _linear_weights(modules: "Iterable[nn.Module]") -> "list[Tensor]":
    """The weights of those modules that are matrix products."""
    from torch import nn

    return [module.weight for module in modules if isinstance(module, nn.Linear)]
