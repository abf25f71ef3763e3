"""Files of results take no other file's place, and come back as they were written."""

import csv
import io
from pathlib import Path

import pytest

from txl.config import UsageError
from txl.evaluation.outputs import require_outputs
from txl.evaluation.report import Part, Token, as_tsv
from txl.files import is_stream

LOSSES = b"PK\x03\x04"
TOKENS = b"position\ttoken\tid\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("text").write_text("a text\n")
    Path("rows").write_text('{"text": "a"}\n{"text": "b"}\n')
    Path("link").symlink_to("text")
    Path("empty").touch()
    Path("result.json").write_text('{"rows": []}\n')
    Path("losses.npz").write_bytes(LOSSES)
    Path("tokens.tsv").write_bytes(TOKENS)


@pytest.mark.parametrize(
    ("outputs", "refusal"),
    [
        ({"--json": "text"}, "--json text: is the file of --text, too; name another one"),
        ({"--per_token": "../here/text"}, "--per_token ../here/text: is the file of --text, too"),
        ({"--json": "link"}, "--json link: is the file of --text, too"),
        ({"--json": "new", "--per_token": "new"}, "--per_token new: is the file of --json, too"),
        ({"--json": "rows"}, "--json rows: is there, and is nothing that this flag writes"),
        ({"--json": "losses.npz"}, "is there, and is nothing"),
        ({"--token_losses": "result.json"}, "is there, and is nothing"),
        ({"--per_token": "losses.npz"}, "is there, and is nothing"),
        ({"--json": "-"}, "--json -: the table goes to standard output; name a file"),
    ],
)
def test_what_is_read_or_another_flag_writes_is_not_written_over(
    outputs: dict[str, str | None], refusal: str
) -> None:
    with pytest.raises(UsageError) as refused:
        require_outputs(outputs, {"link": "--text", None: "--context"})
    assert refusal in str(refused.value)


def test_what_a_flag_has_written_it_may_write_again() -> None:
    again = {"--json": "result.json", "--token_losses": "losses.npz", "--per_token": "tokens.tsv"}
    require_outputs(again, {"-": "--text"})
    require_outputs({"--json": "empty", "--per_token": "-"})
    require_outputs({"--json": "link"})  # of which the link is replaced
    require_outputs({"--json": "/dev/null", "--token_losses": "/dev/null"})
    with pytest.raises(IsADirectoryError):
        require_outputs({"--json": "."})


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
