"""A setting that was typed is read by somebody, or refused in a line that says by whom it would be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txl import ModelConfig, TransformerXL
from txl.positions import POSITION_ENCODINGS

Refused = Callable[..., str]


def test_what_asks_for_nothing_passes_and_what_is_read_is_heard(call: Callable[..., Any], training: list[str]) -> None:
    passing = "--position alibi --no_untie_r --attn_impl auto --max_step 1 --attention softmax"
    assert call("train", *training, *passing.split()).status == 0
    reading = "--overwrite --attn_type 0 --untie_r --attn_impl naive --clamp_len 3 --max_step 1"
    assert call("train", *training, *reading.split()).status == 0


def test_evaluation_and_generation_refuse_it_as_training_does(
    refused: Refused, call: Callable[..., Any], training: list[str], run_folder: Path, tmp_path: Path
) -> None:
    assert call("train", *training, "--position", "alibi", "--max_step", 1).status == 0
    reason = "--attn_impl dense: has no effect with --position alibi, only with rel_sinusoid or relative_keys"
    run, dense = ("--work_dir", tmp_path / "new_run"), ("--attn_impl", "dense")
    assert reason in refused("eval", *run, *dense)
    assert reason in refused("generate", *run, *dense)
    assert reason in refused("train", *training, "--resume", "--max_step", 2, "--max_step_scheduler", 2, *dense)
    assert call("generate", *run, "--length", 1, "--attn_impl", "auto").status == 0


def test_of_runs_that_are_compared_one_must_read_it(
    refused: Refused, call: Callable[..., Any], training: list[str], run_folder: Path, tmp_path: Path
) -> None:
    assert call("train", *training, "--position", "alibi", "--max_step", 1).status == 0
    deaf, flags = tmp_path / "new_run", "--split valid --recl_step 20 --recl_longest 40 --attn_impl dense".split()
    reason = "--attn_impl dense: has no effect with --position alibi, only with rel_sinusoid or relative_keys"
    assert reason in refused("eval", "--recl", deaf, deaf, *flags)
    for runs in ((run_folder, deaf), (deaf, run_folder)):
        assert call("eval", "--recl", *runs, *flags).status == 0


@pytest.mark.parametrize("position", sorted(set(POSITION_ENCODINGS) - {"floater"}))
def test_a_configuration_made_in_python_may_hold_what_is_not_read(position: str) -> None:
    """As checkpoints do: only what is typed is asked about."""
    sizes = {"n_token": 5, "n_layer": 1, "n_head": 1, "d_head": 4, "d_model": 4, "d_inner": 4}
    TransformerXL(ModelConfig(**sizes, position=position, n_position=7, max_distance=40, untie_r=True, n_feature=3))
