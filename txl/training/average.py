"""An exponential moving average of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from txl.model.transformer import TransformerXL
from txl.runtime.distributed import is_in_shards, local


class WeightAverage:
    """average <- d average + (1 - d) weights after update n, with d = min(decay, (1 + n) / (10 +
    n)), so that the random initial weights lose their influence soon. Starts as the weights of the
    model; `decay` 0 keeps no average.
    """

    def __init__(self, model: TransformerXL, decay: float) -> None:
        self._model = model
        self._decay = decay
        if decay:
            self._average = [p.detach().clone() for p in model.parameters()]
        else:
            self._average = []

    def trained(self) -> dict[str, Tensor]:
        """The current weights, which go into the optimizer's state when a checkpoint's model is
        their average.
        """
        if self._average:
            named = self._model.named_parameters()
        else:
            named = ()
        # `in_use` replaces the tensors of whole weights and writes into shards
        tensors = {}
        for name, p in named:
            tensors[f"{name}:trained"] = p.detach().clone() if is_in_shards(p) else p.detach()
        return tensors

    def take_trained(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Put these weights back into the model and return the rest of the state. Raises
        `ValueError` if they are not the model's.
        """
        trained = {}
        for key, x in state.items():
            if key.endswith(":trained"):
                trained[key.removesuffix(":trained")] = x
        own = dict(self._model.named_parameters())
        if trained and {name: x.shape for name, x in trained.items()} != {
            name: p.shape for name, p in own.items()
        }:
            raise ValueError("holds weights that are not those of the model")
        with torch.no_grad():
            for name, x in trained.items():
                own[name].copy_(x)
        return {key: x for key, x in state.items() if not key.endswith(":trained")}

    def update(self, n_update: int) -> None:
        """Take in the weights after update `n_update`."""
        if self._average:
            decay = min(self._decay, (1 + n_update) / (10 + n_update))
            weights = []
            for p in self._model.parameters():
                weights.append(p.detach())
            torch._foreach_lerp_(self._average, weights, 1 - decay)  # type: ignore[attr-defined]  # no public form

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The model has the averaged weights inside this context, if there is an average."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        if self._average:
            for i, p in enumerate(self._model.parameters()):
                # all-gathers read the memory that the shard has had from the beginning
                if is_in_shards(p):
                    mine = local(p)
                    average = local(self._average[i])
                    trained = mine.clone()
                    mine.copy_(average)
                    average.copy_(trained)
                else:
                    p.data, self._average[i] = self._average[i], p.data
