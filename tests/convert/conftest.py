"""The folder with a trained run that tests of the command line have, and words for the models of tests/golden."""

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import (
    call,
    entry_points,
    here,
    run_folder,
    text,
    trained,
    undrawn,
    write_text,
)

__all__ = ["call", "entry_points", "here", "run_folder", "text", "trained", "undrawn", "write_text"]
HF = Path(__file__).parents[1] / "golden" / "hf"
WORDS = ["<eos>", "<unk>", *(f"w{i}" for i in range(198))]


def write_words(folder: Path, words: list[str] = WORDS) -> None:
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))


@pytest.fixture
def hf(tmp_path: Path) -> Path:
    """A model of Hugging Face's, without its words."""
    return Path(shutil.copytree(HF / "hf_div2", tmp_path / "hf"))
