"""Two processes train one run, as torchrun would start them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.resume.runs import command, finish, finish_pair, records


def test_two_processes_train_one_run_with_dropout_of_their_own(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ranks = finish_pair(command(text, run, "--max_step", "2"), tmp_path / "logs")
    start, *_, valid = records(run)
    assert (start["world_size"], valid["kind"], valid["tokens"]) == (2, "valid", 2 * 4 * 8)
    assert sum("End of training" in rank.log.read_text() for rank in ranks) == 1
    first, second = (load_file(path) for path in sorted((run / "step_00000002").glob("streams_*")))
    assert not torch.equal(first["rng.cpu"], second["rng.cpu"])
    assert first["memory.0"].shape == second["memory.0"].shape == (2, 8, 16)


def test_two_processes_read_as_many_segments_of_documents_as_one(
    text: Path, tmp_path: Path
) -> None:
    """Streams of documents are dealt to them whole, and the limit ends in a later one of rank 0."""
    flags = (
        "--reset document --documents row --eval_batch_size 2 --max_eval_steps 5 --max_step 1 "
        "--dropout 0 --dropatt 0"
    ).split()
    alone, together = tmp_path / "alone", tmp_path / "together"
    finish(command(text, alone, *flags), tmp_path / "log")
    finish_pair(command(text, together, *flags), tmp_path / "logs")
    one, two = records(alone)[-1], records(together)[-1]
    assert one["scored_tokens"] == two["scored_tokens"] > 0
    assert two["valid/nll_nats"] == pytest.approx(one["valid/nll_nats"], rel=1e-5)
