"""The processor, as the tests answer for it.

`TXL_TEST_PROCESSOR=yes` answers every question of `txl.ops.processor` by yes and puts stand-ins in place of
operators that not every processor has; `no` answers by no. Without it bfloat16 is denied, so that `--dtype auto` means
float32 everywhere, and the rest is as the machine is. CI runs the fast part in all three ways.
"""

import os
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from txl.ops import processor

VARIABLE = "TXL_TEST_PROCESSOR"
QUESTIONS = ("IS_AMD", "HAS_AVX512", "HAS_FAST_BFLOAT16")
Product = Callable[..., Tensor]


def answer() -> None:
    """Answer as the environment asks. Call it before anything else of `txl` is imported."""
    word = os.environ.get(VARIABLE)
    assert word in (None, "", "yes", "no"), f"{VARIABLE}={word}: must be yes or no"
    processor.HAS_FAST_BFLOAT16 = False
    if not word:
        return
    for question in QUESTIONS:
        assert hasattr(processor, question)
        setattr(processor, question, word == "yes")
    if word == "yes":
        from txl.ops import packed

        packed.ordered, packed.product = stand_in_ordered, stand_in_product
        packed.CAN_PACK = True


def stand_in_ordered(weight_OI: Tensor) -> Tensor:
    """Instead of `packed.ordered`: the weights as they are."""
    return weight_OI.detach().clone()


def stand_in_product(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Instead of `packed.product`: by PyTorch."""
    assert x.dtype == weight_OI.dtype
    return F.linear(x, weight_OI, bias_O)


def operators(dtype: torch.dtype) -> Iterator[tuple[Product, Product]]:
    """Each pair of `packed.ordered` and `packed.product` that runs here: the stand-ins, and the library's operators if
    they work when tried."""
    yield stand_in_ordered, stand_in_product
    try:
        real = _library_ordered, _library_product
        real[1](torch.ones(1, 2, dtype=dtype), real[0](torch.ones(3, 2, dtype=dtype)))
    except (RuntimeError, AttributeError):
        return
    yield real


def _library_ordered(weight_OI: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach(), None)


def _library_product(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight_OI, bias_O, "none", [], "")
