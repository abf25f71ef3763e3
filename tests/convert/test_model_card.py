"""The README.md of an exported model."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.test_flags import read
from txl.attention_rules import ATTENTION_RULES
from txl.checkpoint import open_checkpoint
from txl.commands.settings import new_settings
from txl.commands.shape import Shape
from txl.config import as_dict
from txl.language.model_card import training_command
from txl.positions import POSITION_ENCODINGS
from txl.runtime.distributed import Ranks

HF = Path(__file__).parents[1] / "golden" / "hf"


def test_the_command_of_the_card_is_that_of_the_training(run_folder: Path) -> None:
    record = open_checkpoint(run_folder).record
    program, script, *flags = shlex.split(training_command(record))
    assert (program, script) == ("python", "train.py")
    typed = read("train", *flags)
    assert typed["tgt_len"] == 8
    assert typed["init_std"] == 0.2
    assert {name: record["train"][name] for name in ("max_step", "batch_size")} == {"max_step": 4, "batch_size": 4}
    assert typed["max_step"] == 4


@pytest.mark.parametrize(
    "flags",
    [
        *(f"--position {name}" for name in POSITION_ENCODINGS),
        *(f"--attention {name} --position none" for name in ATTENTION_RULES),
        "--dataset text --data a b --adaptive --cutoffs 20 40 --div_val 2 --not_tied --tgt_len 16 --no_untie_r",
    ],
)
def test_the_command_of_the_card_makes_the_same_training(flags: str) -> None:
    one, typed = Ranks(0, 1, torch.device("cpu")), read("train", *flags.split())

    def record(typed: dict[str, Any]) -> dict[str, Any]:
        config, context, data, shape, *_ = new_settings(typed, one)
        assert isinstance(shape, Shape)
        parts = {"train": config, "context": context, "data": data, "model": shape.of_words(90, data.dataset)}
        return json.loads(json.dumps({name: as_dict(part) for name, part in parts.items()}))

    command = training_command(record(typed))
    assert record(read("train", *shlex.split(command)[2:])) == record(typed)


def hugging_face_folder(folder: Path) -> Path:
    shutil.copytree(HF / "hf_div2", folder)
    (folder / "vocab.txt").write_text("\n".join(["<eos>", "<unk>", *(f"w{i}" for i in range(198))]) + "\n")
    return folder


def test_the_card_states_no_text_that_nobody_named(tmp_path: Path, call: Callable[..., Any]) -> None:
    hf = hugging_face_folder(tmp_path / "hf")
    assert call("convert", hf, tmp_path / "run").status == 0
    assert call("convert", tmp_path / "run", tmp_path / "again", "--to", "huggingface").status == 0
    for name in ("run", "again"):
        assert "## Data\n\nUnknown.\n" in (tmp_path / name / "README.md").read_text()
    assert "txl_data" not in json.loads((tmp_path / "again" / "config.json").read_text())
    assert call("convert", hf, tmp_path / "named", "--data", "my/text", "--to", "huggingface").status == 0
    assert "## Data\n\n`my/text`.\n" in (tmp_path / "named" / "README.md").read_text()
