"""The processor, as the tests answer for it.

`TXL_TEST_PROCESSOR=yes` answers every question of `txl.ops.processor` by yes and puts stand-ins in place of
operators that not every processor has; `no` answers by no. Without it bfloat16 is denied, so that `--dtype auto` means
float32 everywhere, and the rest is as the machine is. CI runs the fast part in all three ways.
"""

import os
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from txl.ops import processor

Product = Callable[..., Tensor]
VARIABLE = "TXL_TEST_PROCESSOR"
LIBRARY: list[tuple[Product, Product]] = []
"""`packed.ordered` and `packed.product` as they are, without stand-ins."""
QUESTIONS = ("IS_AMD", "HAS_AVX512", "HAS_FAST_BFLOAT16")


def answer() -> None:
    """Answer as the environment asks. Call it before anything else of `txl` is imported."""
    word = os.environ.get(VARIABLE)
    assert word in (None, "", "yes", "no"), f"{VARIABLE}={word}: must be yes or no"
    processor.HAS_FAST_BFLOAT16 = False
    for question in QUESTIONS if word else ():
        assert hasattr(processor, question)
        setattr(processor, question, word == "yes")
    from txl.ops import packed

    LIBRARY.append((packed.ordered, packed.product))
    if word == "yes":
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
    for ordered, product in LIBRARY:
        try:
            product(torch.ones(1, 2, dtype=dtype), ordered(torch.ones(3, 2, dtype=dtype)))
        except (RuntimeError, AttributeError):
            continue
        yield ordered, product


def ways_of_large_weights(monkeypatch: pytest.MonkeyPatch, *, is_amd: bool) -> Iterator[None]:
    """Small weights go the way of large ones on such a processor or on others; at each turn packed
    ones by another of `operators`.
    """
    from txl.ops import few_rows, onednn, packed

    monkeypatch.setattr(few_rows, "REVERSED", is_amd)
    monkeypatch.setattr(few_rows, "PAYS", 0)
    monkeypatch.setattr(onednn, "AVAILABLE", not is_amd)
    monkeypatch.setattr(onednn, "PAYS", 0)
    for ordered, product in operators(torch.float32):
        monkeypatch.setattr(packed, "ordered", ordered)
        monkeypatch.setattr(packed, "product", product)
        yield
