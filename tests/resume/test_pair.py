"""Two processes train one run, as torchrun would start them."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.resume.runs import command, finish_pair, records


def test_two_processes_train_one_run_with_dropout_of_their_own(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ranks = finish_pair(command(text, run, "--max_step", "2"), tmp_path / "logs")
    start, *_, valid = records(run)
    assert (start["world_size"], valid["kind"], valid["tokens"]) == (2, "valid", 2 * 4 * 8)
    assert sum("End of training" in rank.log.read_text() for rank in ranks) == 1
    first, second = (load_file(path) for path in sorted((run / "step_00000002").glob("streams_*")))
    assert not torch.equal(first["rng.cpu"], second["rng.cpu"])
    assert first["memory.0"].shape == second["memory.0"].shape == (2, 8, 16)
