"""Checkpoints that others made, or another version, or a bad disk: refused in one line before anything is built."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import change_record, sign
from tests.cli.conftest import change_weights

Refused = Callable[..., str]


def model(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda record: record["model"].update(changes)


CONFIGS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "huge": (model(d_model=2 * 10**12), "below 2^31"),
    "large": (model(d_model=2 * 10**8), "do not fit"),
    "deep": (model(n_layer=4000), "do not fit"),
    "deeper": (model(n_layer=10**9), "at most 4096"),
    "clusters": (model(cutoffs=[*range(1, 10**5), 1]), "must be positive and ascending"),
    "wide": (model(n_feature=10**9, attention="performer", position="none"), "at most 65536"),
    "float size": (model(n_layer=2.0), "n_layer is '2.0', which is not of type int"),
    "word for a switch": (model(pre_lnorm="no"), "pre_lnorm is 'no', which is not of type bool"),
    "switch for a number": (model(n_layer=True), "n_layer is 'True'"),
    "newer": (model(hyper=1), "written by a newer version of txl, so upgrade"),
    "no such encoding": (model(position="?"), "config.json"),
    "bad size": (model(n_layer=0), "n_layer 0: must be at least 1"),
    "list": (lambda record: record.update(model=[]), "model is '[]'"),
    "context": (lambda record: record["context"].update(mem_len="8"), "mem_len is '8'"),
    "no context": (lambda record: record.pop("context"), "config.json"),
    "attachments": (lambda record: record.update(attachments=3), "attachments is '3'"),
    "digests": (lambda record: record.update(files=[]), "files is '[]'"),
    "format": (lambda record: record.update(format=3), "of format 3, this txl reads 1 to 2"),
}


def test_a_configuration_that_cannot_be_is_refused_before_anything_is_built(refused: Refused, run_folder: Path) -> None:
    best = run_folder / (run_folder / "best").read_text().strip()
    good = (best / "config.json").read_text()
    for name, (change, why) in CONFIGS.items():
        (best / "config.json").write_text(good)
        change_record(best, change)
        line = refused("generate", "--work_dir", run_folder)
        assert why in line, name
        assert str(best) in line, name
    for content in ("[" * 10**5, "[]", "3", '{"format": 1e400}', '{"format": ' + "1" * 5000 + "}"):
        (best / "config.json").write_text(content)
        sign(best)
        assert str(best / "config.json") in refused("generate", "--work_dir", run_folder)


def test_what_a_run_goes_on_with_is_checked_too(refused: Refused, training: list[str], run_folder: Path) -> None:
    last = run_folder / "step_00000004"
    resume = [*training, "--work_dir", run_folder, "--resume"]
    for folder in set(run_folder.glob("step_*")) - {last}:
        shutil.rmtree(folder)
    configs = {
        "train": (lambda record: record["train"].update(lr="0.1"), "lr is '0.1'"),
        "train newer": (lambda record: record["train"].update(hyper=1), "newer version"),
        "train range": (lambda record: record["train"].update(lr=-1), "lr -1: must be above 0"),
        "no train": (lambda record: record.pop("train"), "config.json"),
        "no data": (lambda record: record.pop("data"), "config.json"),
        "data": (lambda record: record["data"].update(min_freq=0.5), "min_freq is '0.5'"),
        "texts": (lambda record: record.update(texts=[1]), "texts is '[1]'"),
    }
    progresses = {
        "no plateau": (lambda progress: progress.pop("plateau"), "plateau"),
        "float step": (lambda progress: progress.update(batch=1.5), "batch is '1.5'"),
        "other step": (lambda progress: progress.update(step=3), "another step"),
        "newer": (lambda progress: progress.update(hyper=1), "newer version"),
    }
    for name, table in (("config.json", configs), ("progress.json", progresses)):
        good = (last / name).read_text()
        for what, (change, why) in table.items():
            change_record(last, change, name)
            line = refused("train", *resume)
            assert why in line, what
            assert str(last / name) in line, what
            (last / name).write_text(good)


def test_tensors_of_other_kinds_are_refused(refused: Refused, run_folder: Path) -> None:
    for dtype in (torch.int32, torch.uint8, torch.bool):  # complex ones are unknown to older versions of safetensors
        change_weights(run_folder, lambda weight, dtype=dtype: torch.ones_like(weight, dtype=dtype))
        assert "not floating-point" in refused("generate", "--work_dir", run_folder)


@pytest.mark.parametrize("words", ["twice", "no <eos>", "too few"])
def test_a_vocabulary_that_cannot_be_is_refused(refused: Refused, run_folder: Path, words: str) -> None:
    for folder in run_folder.glob("step_*"):
        lines = (folder / "vocab.txt").read_text().splitlines()
        changed = {"twice": [*lines[:-1], lines[-2]], "no <eos>": ["x", *lines[1:]], "too few": lines[:-1]}[words]
        (folder / "vocab.txt").write_text("\n".join(changed) + "\n")
        sign(folder)
    assert "vocab.txt" in refused("generate", "--work_dir", run_folder)
