"""An address is asked where the user types it, not because a file names it."""

import shutil
from pathlib import Path

import pytest

from tests.checkpoints import change_record
from tests.cli.conftest import TINY, Here
from txl.data_utils import remote
from txl.data_utils.remote import Remote

ADDRESS = "https://host/more/text.txt"
EVAL = ["eval", "--work_dir", "run", "--split", "valid"]
RESUME = ["train", "--work_dir", "run", "--resume", "--max_step", "5", "--max_step_scheduler", "5"]
TYPED = ["train", "--data", ADDRESS, "--work_dir", "new", *TINY, "--max_step", "1"]


@pytest.fixture
def asked(here: Here, text: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that were asked; each holds the text of train."""
    asked: list[str] = []

    def load(wanted: Remote, folder: Path) -> bool:
        asked.extend(wanted.urls)
        shutil.copy(text / "train.txt", folder / wanted.name)
        return True

    monkeypatch.setattr(remote, "load", load)
    return asked


def name_address(run: str, address: object = ADDRESS) -> None:
    for checkpoint in Path(run).glob("step_*"):
        change_record(checkpoint, lambda record: record["data"].update(data=address))


@pytest.mark.parametrize("line", [EVAL, RESUME])
@pytest.mark.parametrize(
    "address", [[ADDRESS], ["text", "zip://::" + ADDRESS], ["hf://datasets/a/b"], ["file:///a"]]
)
def test_an_address_that_a_checkpoint_names_is_not_asked(
    here: Here, asked: list[str], line: list[str], address: list[str]
) -> None:
    name_address("run", address)
    (complaint,) = here.call(*line).complaints
    assert (
        f"{address[-1]}: the address of the text, which run/step_00000004/config.json names"
        in complaint
    )
    assert complaint.endswith("give it with --data")
    assert asked == []
    assert not Path("data").exists()


def test_an_address_that_was_typed_for_a_run_is_typed_again_once_its_copy_is_gone(
    here: Here, asked: list[str]
) -> None:
    assert here.call(*TYPED).status == 0
    evaluate = ["eval", "--work_dir", "new", "--split", "valid"]
    assert here.call(*evaluate).status == 0
    shutil.rmtree("data")
    (complaint,) = here.call(*evaluate).complaints
    assert complaint.endswith("give it with --data")
    assert asked == [ADDRESS]


@pytest.mark.parametrize("line", [EVAL, RESUME])
def test_an_address_is_typed_where_it_is_asked_for(
    here: Here, asked: list[str], line: list[str]
) -> None:
    here.call(*line, "--data", ADDRESS)
    assert asked == [ADDRESS]
