"""A study whose rows have parts of one's own."""

from pathlib import Path

import pytest

from lab.studies import runner
from lab.studies.plan import read_study
from lab.studies.runner import require_flags, run_study
from tests.cli.test_plugins import forgotten, memory

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
