"""What is set before the libraries are imported."""

import os

import pytest

from txl import launch


class Stopped(Exception):
    pass


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "20000"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
    ],
    ids=str,
)
def test_threads_spin_for_a_moment_unless_the_user_says_how(
    given: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(name: str) -> None:
        raise Stopped

    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launch, "import_module", stop)
    with pytest.raises(Stopped):
        launch.launch("eval")
    assert {name: os.environ[name] for name in launch._WAITING & os.environ.keys()} == expected
