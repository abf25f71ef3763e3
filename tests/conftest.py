"""What all tests share."""

import pytest
import torch

torch.set_num_threads(1)  # the models here are tiny: threads would spend their time waiting for each other


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
