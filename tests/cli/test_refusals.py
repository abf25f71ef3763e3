"""What refused command lines print: refusals.txt, made and compared here, read by people when a message changes.

    TXL_WRITE_REFUSALS=1 python -m pytest tests/cli/test_refusals.py -p no:xdist

writes the messages anew. RUN is a trained run, TEXT the text it was trained on. Flags of `flags_before`, with which the
program would succeed, stand before those of a line.
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import TINY, Trained

FILE = Path(__file__).with_name("refusals.txt")
BLOCK = re.compile(r"^\$ (?P<line>(?P<entry>\w+)\b.*)\n(?P<message>.*)$", re.MULTILINE)
BLOCKS = [match.groupdict() for match in BLOCK.finditer(FILE.read_text())]


def contents(folder: Path) -> dict[Path, bytes]:
    """The files below a folder, without the cache of the text, whose checks are noted as they are made."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "txl-cache" not in path.parts}


@pytest.mark.parametrize("entry", sorted({block["entry"] for block in BLOCKS}))
def test_a_refused_command_line_prints_its_line_and_changes_nothing(
    entry: str,
    refused: Callable[..., str],
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"RUN": "run", "TEXT": "text"}
    shutil.copytree(trained.run, "run")
    shutil.copytree(trained.text, "text")
    before, found = contents(tmp_path), {}
    mine = [block for block in BLOCKS if block["entry"] == entry]
    for block in mine:
        words = re.sub("RUN|TEXT", lambda match: str(places[match[0]]), block["line"]).split()[1:]
        found[block["line"]] = anywhere(refused(entry, *flags_before(entry, words), *words), tmp_path)
    assert contents(tmp_path) == before
    if "TXL_WRITE_REFUSALS" in os.environ:
        FILE.write_text(
            BLOCK.sub(
                lambda match: f"$ {match['line']}\n{found.get(match['line'], match['message'])}", FILE.read_text()
            )
        )
    else:
        assert found == {block["line"]: block["message"] for block in mine}


def flags_before(entry: str, words: list[str]) -> list[str]:
    if entry == "eval" and "--recl" in words:
        return "--data text --split test --recl_step 10 --recl_longest 40 --recl_every 5".split()
    return {
        "train": ["--data", "text", "--work_dir", "new_run", *TINY],
        "estimate": "--n_layer 2 --d_model 16 --n_head 2 --d_head 8 --d_inner 32".split(),
    }.get(entry, ["--work_dir", "run"])


def anywhere(message: str, folder: Path) -> str:
    """Choices without quotes, which argparse leaves out from Python 3.12 on; HERE for the folder of the test."""
    message = message.replace(str(folder), "HERE")
    return re.sub(r"\(choose from .*\)", lambda match: match[0].replace("'", ""), message)
