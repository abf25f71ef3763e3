"""What the tests of txl share, and the laboratory's programs beside those of txl."""

import importlib
from types import ModuleType

import pytest

from tests.cli.conftest import (
    BEFORE,
    call,
    here,
    one_look_at_git,
    run_folder,
    text,
    trained,
    write_text,
)
from tests.conftest import (
    no_test_leaves_a_file_in_the_temporary_folder,
    notices,
    pytest_unconfigure,
    seeded,
)

__all__ = [
    "call",
    "here",
    "no_test_leaves_a_file_in_the_temporary_folder",
    "notices",
    "one_look_at_git",
    "pytest_unconfigure",
    "run_folder",
    "seeded",
    "text",
    "trained",
    "write_text",
]
OWN = ("recl", "loss_by_position", "perturbed")
BEFORE |= {"loss_by_position": BEFORE["eval"], "perturbed": BEFORE["eval"]}


@pytest.fixture(scope="session")
def entry_points() -> dict[str, ModuleType]:
    own = {name: importlib.import_module(f"lab.{name}") for name in OWN}
    return own | {
        name: importlib.import_module(f"txl.programs.{name}") for name in ("train", "eval")
    }


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pictures, which take a second each."""
    for program in ("txl.runs.evaluation", "lab.recl"):
        monkeypatch.setattr(f"{program}.drawable", lambda *_: [])
