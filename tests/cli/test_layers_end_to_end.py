"""Other rules and layers from the command line: trained, gone on with, evaluated, and made to write."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import TINY, Outcome


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        "--attention performer --position rotary --n_feature 16 --redraw_interval 2 --dtype bfloat16",
        "--attention lsh --position sinusoid_input --lsh_round 2 --lsh_bucket 4 --batch_chunk 2 --swap_mem",
        "--reversible --pre_lnorm --ff_chunk 3 --activation swiglu --dtype bfloat16 --dropout 0.1",
        "--recurrence same --label_smoothing 0.1 --d_embed 8 --pre_lnorm --gate gru --gate_bias 1",
    ],
)
def test_a_run_goes_all_the_way(call: Callable[..., Outcome], text: Path, tmp_path: Path, flags: str) -> None:
    run = tmp_path / "run"
    training = ["train", "--data", text, "--work_dir", run, *TINY, *flags.split()]
    assert call(*training).status == 0
    assert call(*training, "--resume", "--max_step", "6", "--max_step_scheduler", "6").status == 0
    evaluated = call("eval", "--work_dir", run, "--data", text)
    assert evaluated.status == 0
    assert "nan" not in evaluated.out
    assert call("generate", "--work_dir", run, "--length", "5").status == 0
