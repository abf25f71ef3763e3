"""What all tests share: also on a machine with a GPU they are tests on a CPU.

There train.py would take the GPU, and bfloat16 there and on many processors, and what is compared bit by bit would be
compared with another device's numbers. What only a GPU can show is asked by `python -m lab.benchmarks.gpu_check`.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

# before CUDA is asked for devices; processes that tests start inherit it
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# processes that tests start share the cores with other tests
os.environ.setdefault("OMP_NUM_THREADS", "1")
# no bfloat16 in programs that are started anew
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_VNNI"
os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it once, whenever it is first imported
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # where pytest keeps its own
# of processes that tests start too
os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="txl-tests-")

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests import processors

processors.answer()  # before other modules of txl ask

from tests import forks, ranks  # noqa: E402
from txl.training import meter  # noqa: E402

# the models here are tiny: threads would spend their time waiting for each other
torch.set_num_threads(1)

# nothing here outlives a power cut; processes that tests start flush as they should
os.fsync = lambda descriptor: None
meter.measured_peak_flops = forks.peak_flops


settings.register_profile(
    "txl", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("txl")  # nothing depends on speed

long_test = pytest.mark.skipif(
    "TXL_LONG_TESTS" not in os.environ, reason="takes long; CI sets TXL_LONG_TESTS=1"
)


@pytest.fixture(autouse=True)
def seeded() -> None:
    # not those of all devices, which notes a stack for each that is not there
    torch.default_generator.manual_seed(0)


@pytest.fixture
def notices() -> Iterator[None]:
    """For tests of a program that silences the text library's notices, for good."""
    yield
    logging.getLogger("txl.data_utils").setLevel(logging.NOTSET)


@pytest.fixture(scope="session", autouse=True)
def no_test_leaves_a_file_in_the_temporary_folder() -> Iterator[None]:
    """Caches of torch.compile and logs of torchrun are PyTorch's, those of users without a home matplotlib's."""
    yield
    ranks.close()
    left = {path.name for path in Path(tempfile.gettempdir()).iterdir()}
    assert {
        name
        for name in left
        if not name.startswith(("torchinductor_", "torchelastic_", "matplotlib-"))
    } == set()


def pytest_unconfigure() -> None:
    forks.start.close()
    shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)
