"""Files of results take no other file's place, and come back as they were written."""

import csv
import io
import json
import os
import pty
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from txl.config import UsageError
from txl.evaluation.measures.token_losses import LOSSES
from txl.evaluation.report import EVALUATION, SCORE, Part, Token, as_tsv, tokens_kind
from txl.files import is_stream
from txl.language.kept_memory import MEMORY
from txl.report.page import PAGE
from txl.report.record import FIGURES
from txl.runtime.outputs import Kind, json_kind, output, require_outputs, write_json, write_text

KINDS = [
    *(EVALUATION, SCORE, LOSSES, MEMORY, PAGE, FIGURES),
    *(tokens_kind("a.json"), tokens_kind("a.tsv")),
]
MINE = {
    "text": b"a text\n",
    "package.json": b'{"name": "mine", "checkpoint": "a", "format": 1}',
    "lines.jsonl": b'{"text": "a"}\n{"text": "b"}\n',
    "list.json": b'["checkpoint", "rows"]',
    "deep.json": b"[" * 10**5,
    "site.html": b"<!doctype html>\n<title>Does memory help?</title>\n",
    "table.tsv": b"position\ttoken\t",
    "arrays.zip": b"PK\x03\x04",
}
"""Files of a user."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name, content in MINE.items():
        Path(name).write_bytes(content)
    np.savez("mine.npz", about=np.zeros(3))
    Path("link").symlink_to("text")
    os.link("text", "same")
    Path("empty").touch()
    os.mkfifo("pipe")


def outputs(**given: str) -> dict[str, Any]:
    return {f"--{flag}": (path, EVALUATION) for flag, path in given.items()}


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"json": "text"}, "--json text: is the file of --text, too; name another one"),
        ({"json": "../here/text"}, "--json ../here/text: is the file of --text, too"),
        ({"json": "link"}, "--json link: is the file of --text, too"),
        ({"json": "same"}, "--json same: is the file of --text, too"),
        ({"json": "empty"}, "--json empty: is the file of --config, too"),
        ({"json": "new", "per_token": "new"}, "--per_token new: is the file of --json, too"),
        ({"json": "-"}, "--json -: the table goes to standard output; name a file"),
    ],
)
def test_what_is_read_or_another_flag_writes_is_not_written_over(
    given: dict[str, str], refusal: str
) -> None:
    with pytest.raises(UsageError) as refused:
        require_outputs(outputs(**given), {"link": "--text", "empty": "--config", "-": "--context"})
    assert refusal in str(refused.value)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_kind_of_file_takes_the_place_of_a_file_of_the_user(kind: Kind) -> None:
    for name in (*MINE, "mine.npz"):
        before = Path(name).read_bytes()
        with pytest.raises(UsageError, match=f"{name}: is there, and is nothing that {kind.name}"):
            write_text(Path(name), "ours", kind)
        assert Path(name).read_bytes() == before


def test_what_a_program_has_written_it_may_write_again_and_no_other_may() -> None:
    other = json_kind("txl other")
    for _ in range(2):
        write_json(Path("new.json"), {"rows": []}, EVALUATION)
    with pytest.raises(UsageError, match=r"new\.json: is there"):
        write_json(Path("new.json"), {"rows": []}, other)
    Path("new.json").write_bytes(Path("new.json").read_bytes()[:-3])  # which a disk has damaged
    write_json(Path("new.json"), {"rows": []}, EVALUATION)
    write_json(Path("empty"), {"rows": []}, other)
    write_json(Path("link"), {"rows": []}, other)  # of which the link is replaced
    assert Path("text").read_bytes() == MINE["text"]


@pytest.mark.parametrize("more", [{}, {"weights": "a", "texts": {}}])
def test_files_of_older_versions_are_known_by_all_of_their_keys(more: dict[str, Any]) -> None:
    older = {"checkpoint": "run/step_00000002", "rows": [], **more}
    Path("older.json").write_text(json.dumps(older))
    write_json(Path("older.json"), {}, EVALUATION)
    Path("older.json").write_text(json.dumps({**older, "name": "mine"}))
    with pytest.raises(UsageError, match="is there"):
        write_json(Path("older.json"), {}, EVALUATION)


def test_a_pipe_a_terminal_and_dev_null_are_written_to_as_they_are() -> None:
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_text()))
    reader.start()
    write_json(Path("pipe"), {"rows": []}, EVALUATION)
    reader.join()
    assert json.loads(read[0])["rows"] == []
    assert Path("pipe").is_fifo()
    write_text(Path(os.devnull), "nothing", PAGE)
    assert Path(os.devnull).is_char_device()
    other, terminal = pty.openpty()
    try:
        with output(Path(os.ttyname(terminal)), PAGE) as temporary:
            temporary.write_bytes(b"page")
        assert os.read(other, 4) == b"page"
    finally:
        os.close(other)
        os.close(terminal)


def test_other_devices_folders_and_sockets_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--json /dev/zero: is a device"):
        require_outputs(outputs(json="/dev/zero"), {})
    with pytest.raises(UsageError, match=r"is a device"):
        write_text(Path("/dev/full"), "page", PAGE)
    with pytest.raises(IsADirectoryError):
        require_outputs(outputs(json="."), {})


def test_shared_memory_is_no_stream() -> None:
    """Else JSON that is written again there stands twice in the file."""
    assert not is_stream(Path("/dev/shm/runs/done.json"))
    assert is_stream(Path("/dev/stdout"))
    assert is_stream(Path("/dev/fd/3"))


def test_tokens_of_any_signs_come_back_from_a_table() -> None:
    """A carriage return alone is a token of a byte, and for readers of csv the end of a row."""
    signs = ["a", "\r", "\n", "\r\n", '"', "\t", "b c"]
    tokens = [Token(i, sign, i, 1.0, False, i, sign) for i, sign in enumerate(signs)]
    table = as_tsv([Part(1, tokens), Part(2, tokens)], "line")
    rows = list(csv.DictReader(io.StringIO(table, newline=""), delimiter="\t"))
    assert [row["surface"] for row in rows] == 2 * signs
    assert [row["line"] for row in rows] == 7 * ["1"] + 7 * ["2"]
    assert table.splitlines()[1] == "0\ta\t0\t1.0\t0\t0\ta\t1"
