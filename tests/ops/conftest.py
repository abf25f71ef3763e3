"""All tests of operators: memory that is allocated without values holds NaN, not what happens to lie there."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def allocations_hold_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # fills them
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
