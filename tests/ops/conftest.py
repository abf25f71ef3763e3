"""All tests of operators: memory that is allocated without values holds NaN; how large what they make is."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


@pytest.fixture(autouse=True)
def allocations_hold_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # fills them
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


class LargestTensor(TorchDispatchMode):
    """Notes the most elements that the storage of any result has."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, tuple | list) else [out]:
            if isinstance(part, Tensor):
                self.elements = max(
                    self.elements, part.untyped_storage().nbytes() // part.element_size()
                )
        return out
