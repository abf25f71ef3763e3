"""Numbers that no machine can serve are refused at once, where they are declared or read."""

import dataclasses
import os
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from txl.config import Context, ModelConfig, UsageError
from txl.data_utils.config import DataConfig
from txl.evaluation.config import EVAL, ReclConfig, ScoreConfig
from txl.generation.config import GenerateConfig
from txl.training.config import TrainConfig
from txl.training.plan import ClusterConfig
from txl.training.run import worlds_that_fit

CONFIGS = (
    *(ModelConfig, Context, TrainConfig, ClusterConfig, DataConfig, GenerateConfig),
    *(*EVAL, ScoreConfig, ReclConfig),
)

Refused = Callable[..., str]


def test_every_whole_number_has_a_largest_value() -> None:
    """What is counted in 64 bits somewhere is refused here, by the option's name."""
    numbers = [
        (cls, f.name, hint)
        for cls in CONFIGS
        for f in dataclasses.fields(cls)
        if {int, tuple[int, ...]} & {(hint := typing.get_type_hints(cls)[f.name]), *typing.get_args(hint)}
    ]
    assert len(numbers) > 60
    for cls, name, hint in numbers:
        value: Any = (10**19,) if hint == tuple[int, ...] else 10**19
        with pytest.raises(UsageError, match=f"^--{name} 10000000000000000000: must be .*(below|at most) [0-9]"):
            cls(**{"n_token": 9, name: value} if cls is ModelConfig else {name: value})


@pytest.mark.parametrize(("batch_size", "near"), [(2**31 - 2, 7), (2**30, 2**19), (12, 5), (1, 9), (36, 6)])
def test_numbers_of_processes_that_fit_are_found_for_any_batch(batch_size: int, near: int) -> None:
    """As all divisors would say, which takes a loop up to the batch."""
    found = [int(n) for n in worlds_that_fit(TrainConfig(batch_size=batch_size), near).split(", ")]
    assert all(batch_size % n == 0 for n in found)
    assert found == sorted(found)
    if batch_size < 100:
        fit = [n for n in range(1, batch_size + 1) if batch_size % n == 0]
        assert found == sorted(sorted(fit, key=lambda n: abs(n - near))[:5])
    else:
        assert len(found) == 5


@pytest.mark.parametrize(
    ("entry", "flags"),
    [
        ("train", "--batch_size 3000000000"),
        ("train", "--max_eval_steps 9999999999999999999"),
        ("train", "--n_layer 1000000000"),
        ("train", "--timeout_s 1e300"),
        ("train", "--dataset bpe --vocab_size 1000000000"),
        ("estimate", "--n_token 99 --gpus 3000000000"),
        ("estimate", "--n_token 99 --n_layer 1000000000"),
        ("estimate", "--n_token 99 --position t5 --n_bucket 1000000000"),
    ],
)
def test_a_number_beyond_all_machines_is_refused_by_name(
    refused: Refused, training: list[str], entry: str, flags: str
) -> None:
    *_, name, value = flags.replace("1e300", "1e+300").split()
    line = refused(entry, *(training if entry == "train" else []), *flags.split())
    assert f"{name} {value}: must be " in line


@pytest.mark.parametrize("entry", ["train", "eval", "generate"])
def test_an_empty_name_is_not_the_current_folder(
    refused: Refused, training: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    line = refused(entry, *(training if entry == "train" else []), "--work_dir", "")
    assert "--work_dir is empty: give it a value, or leave the flag out" in line
    assert list((tmp_path / "mine").iterdir()) == []


def test_the_largest_cluster_is_estimated(call: Callable[..., Any]) -> None:
    assert call("estimate", "--n_token", 99, "--n_layer", 1, "--gpus", 2**20).status == 0


@pytest.mark.parametrize(
    ("name", "value"), [("MASTER_PORT", "99999999"), ("WORLD_SIZE", "9" * 12), ("RANK", "9" * 99), ("MASTER_PORT", "0")]
)
def test_a_number_of_the_environment_beyond_all_machines_is_refused_by_name(
    refused: Refused, training: list[str], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    good = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for variable, content in {**good, name: value}.items():
        monkeypatch.setenv(variable, content)
    monkeypatch.setattr(os, "_exit", lambda status: None)
    assert f"{name}={value}: must be " in refused("train", *training)


def test_a_file_whose_name_is_not_utf8_is_read(call: Callable[..., Any], training: list[str], tmp_path: Path) -> None:
    path = tmp_path / "books" / os.fsdecode(b"caf\xe9.txt")
    path.parent.mkdir()
    path.write_text("\n".join(f"w{i % 5} w{i % 7} w{i % 11}\n" for i in range(500)))
    os.utime(path, (1, 1))  # what is found in it is kept by its name
    for more in ([], ["--overwrite"]):
        assert call("train", *training, "--data", tmp_path / "books", *more).status == 0


def test_an_archive_of_numpy_that_is_named_npy_is_named(refused: Refused, training: list[str], tmp_path: Path) -> None:
    (tmp_path / "ids").mkdir()
    for split in ("train", "valid"):
        with (tmp_path / "ids" / f"{split}.npy").open("wb") as file:
            np.savez(file, np.arange(500) % 7)
    line = refused("train", *training, "--dataset", "ids", "--data", tmp_path / "ids")
    assert "train.npy: no array of numpy" in line
