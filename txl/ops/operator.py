"""Functions of many operations with a backward pass of their own, for eager code and for
torch.compile.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.library import custom_op


class Operator:
    """`forward(...)[0]`, differentiable; one node of a compiled graph.

    torch.compile sees a custom operator, whose code it does not trace. Eager code calls an autograd
    Function of the same parts: the wrappers of a custom operator take 90 us of CPU time a pass and
    back, and import PyTorch's compiler.

    Args:
        name: of the custom operator, in the namespace txl.
        forward: computes the output and whatever the backward pass needs besides; annotated, for
            the custom operator's schema. No result may share memory with an argument.
        backward: computes gradients; annotated likewise.
        fake_forward, fake_backward: tensors of the right shapes and dtypes instead of the results.
        save: called with (ctx, arguments, results) of `forward`, keeps in ctx what `gradients`
            needs.
        gradients: called with (ctx, backward, gradient of the output); those of the first
            arguments, by means of `backward`. The other arguments have none.
    """

    def __init__(
        self,
        name: str,
        forward: Callable[..., tuple[Tensor, ...]],
        backward: Callable[..., tuple[Tensor, ...]],
        *,
        fake_forward: Callable[..., tuple[Tensor, ...]],
        fake_backward: Callable[..., tuple[Tensor, ...]],
        save: Callable[[Any, tuple[Any, ...], tuple[Tensor, ...]], None],
        gradients: Callable[[Any, Callable[..., tuple[Tensor, ...]], Tensor], tuple[Tensor, ...]],
    ) -> None:
        self.custom_op = custom_op(f"txl::{name}", forward, mutates_args=())
        self.custom_op.register_fake(fake_forward)
        backward_op = custom_op(f"txl::{name}_backward", backward, mutates_args=())
        backward_op.register_fake(fake_backward)
        n_argument = len(signature(forward).parameters)

        def of_all(
            ctx: Any, backward: Callable[..., tuple[Tensor, ...]], grad: Tensor
        ) -> tuple[Tensor | None, ...]:
            found = gradients(ctx, backward, grad)
            return *found, *[None] * (n_argument - len(found))

        self.custom_op.register_autograd(
            lambda ctx, grad, *_: of_all(ctx, backward_op, grad),
            setup_context=lambda ctx, inputs, output: save(ctx, inputs, output),
        )

        class Eager(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Any) -> Tensor:
                results = forward(*inputs)
                save(ctx, inputs, results)
                return results[0]

            @staticmethod
            @once_differentiable
            def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]  # decorated
                return of_all(ctx, backward, grad)

        self._eager = Eager

    def __call__(self, *inputs: Any) -> Tensor:
        """The first result of `forward`."""
        if torch.compiler.is_compiling():
            return self.custom_op(*inputs)[0]
        return self._eager.apply(*inputs)


def is_traced() -> bool:
    """True while torch.export or torch.jit.trace makes a graph for inputs to come, whose values are
    not known.
    """
    return torch.compiler.is_exporting() or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
