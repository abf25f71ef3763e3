"""What the tests of txl share, and the laboratory's programs beside those of txl."""

import importlib
from types import ModuleType

import pytest

from tests.cli.conftest import BEFORE

pytest_plugins = ["tests.conftest", "tests.cli.conftest"]
BEFORE |= {"loss_by_position": BEFORE["eval"], "perturbed": BEFORE["eval"]}


@pytest.fixture(scope="session")
def entry_points(entry_points: dict[str, ModuleType]) -> dict[str, ModuleType]:
    names = ("recl", "loss_by_position", "perturbed")
    return {**entry_points, **{name: importlib.import_module(f"lab.{name}") for name in names}}


@pytest.fixture
def undrawn(undrawn: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pictures, which take a second each."""
    monkeypatch.setattr("lab.recl.drawable", lambda *_: [])
