"""A study whose rows have parts of one's own, and whose evaluations are made by several programs."""

from pathlib import Path

import pytest

from lab.studies import runner
from lab.studies.plan import read_study
from lab.studies.runner import require_flags, run_study
from tests.cli.conftest import forgotten
from tests.cli.test_plugins import memory
from txl.config import UsageError

__all__ = ["forgotten", "memory"]


def test_a_row_of_a_study_names_the_file_of_its_memory(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its programs get it, those that evaluate too."""
    study, lines = memory.with_name("mine.toml"), []
    study.write_text(
        f"""
seeds = [1]
[runs.fifo]
mem_len = 4
[runs.mine]
memory = "last_state"
plugin = "{memory}"
mem_len = 0
[evaluations.test]
split = "test"
"""
    )
    read = read_study(study)
    require_flags(read)
    monkeypatch.setattr(runner, "_program", lambda task, line, **_: lines.append(line))
    monkeypatch.setattr(runner, "read_json", lambda path: {"rows": []})
    assert run_study(read, memory.with_name("runs"), jobs=1) == {}
    given = [line[line.index("--plugin") + 1] for line in lines if "--plugin" in line]
    assert [line[0] for line in lines] == ["train", "eval"] * 2
    assert given == [str(memory)] * 2


def test_an_evaluation_is_made_by_the_program_that_measures_what_it_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, lines = tmp_path / "mine.toml", []
    study.write_text(
        """
seeds = [1]
[runs.one]
[evaluations.plain]
mem_len = 4
[evaluations.places]
loss_by_position = true
mem_len = 5
[evaluations.order]
disturb = "shuffle"
mem_len = 6
"""
    )
    read = read_study(study)
    require_flags(read)
    monkeypatch.setattr(runner, "_program", lambda task, line, **_: lines.append(line))
    monkeypatch.setattr(runner, "read_json", lambda path: {"rows": []})
    assert run_study(read, tmp_path / "runs", jobs=1) == {}
    assert [line[0] for line in lines] == [
        "train",
        "eval",
        "lab.loss_by_position",
        "lab.perturbed",
    ]
    assert [word for line in lines for word in line if word.startswith(("--loss", "--dist"))] == [
        "--disturb"
    ]
    study.write_text(study.read_text().replace('"shuffle"', '"shuffle"\nloss_by_position = true'))
    with pytest.raises(UsageError, match="evaluations: order: --loss_by_position"):
        require_flags(read_study(study))
