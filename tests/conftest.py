"""What all tests share."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it once, whenever it is first imported

torch.set_num_threads(1)  # the models here are tiny: threads would spend their time waiting for each other


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
