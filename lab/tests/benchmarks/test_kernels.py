"""What a training step takes, measured."""

import pytest

from lab.benchmarks.kernels import step_peak
from tests.conftest import long_test


@pytest.mark.slow
@long_test
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # of torch 2.11
def test_the_peak_of_a_training_step_does_not_grow_with_reversible_layers() -> None:
    """Measured, the gradients of the weights left out."""
    few, many = (step_peak("reversible", n, n_token=256) for n in (2, 10))
    assert many <= 1.01 * few
    assert step_peak("kept", 10, n_token=256) > 2 * many
