"""eval.py --text: the losses of the tokens of any text."""

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txl
from tests.cli.conftest import Here
from tests.forks import ROOT

Score = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def score(here: Here) -> Score:
    """Scores a text and returns its tokens."""

    def score(text: str, flags: str = "") -> list[dict[str, Any]]:
        Path("my.txt").write_text(text, encoding="utf-8")
        here(f"eval --text my.txt --per_token tokens.json {flags}")
        return json.loads(Path("tokens.json").read_text())["tokens"]

    return score


def test_every_token_of_a_text_is_scored(score: Score) -> None:
    tokens = score("bab  bad\nbaf unread\n")
    assert [(t["position"], t["token"], t["unk"]) for t in tokens] == [
        *((0, "bab", False), (1, "bad", False), (2, "<eos>", False)),
        *((3, "baf", False), (4, "<unk>", True), (5, "<eos>", False)),
    ]
    assert all(t["nats"] > 0 for t in tokens)


@pytest.mark.parametrize(("each", "cut"), [("line", 1), ("document", 3)])
def test_each_part_of_a_text_is_scored_alone(here: Here, score: Score, each: str, cut: int) -> None:
    lines = ["bab bad baf\n", " \n", "\n", "bab bad baf\n", "unread bab\n", "ded bab"]
    parts = {n: "".join(lines[i : i + cut]) for n, i in enumerate(range(0, len(lines), cut), 1)}
    tokens = score("".join(lines), f"--each {each} --json total.json")
    totals = json.loads(Path("total.json").read_text())
    lm = txl.load("run")
    alone = {n: lm.score(part) for n, part in parts.items()}
    total_nats = [one.total_nats for one in alone.values()]
    assert [one["nats"] for one in totals["each"]] == pytest.approx(total_nats, rel=1e-5)
    assert [(one[each], one["tokens"]) for one in totals["each"]] == [
        (n, len(s.nats)) for n, s in alone.items()
    ]
    assert [t["nats"] for t in tokens] == pytest.approx(
        [nats for one in alone.values() for nats in one.nats], rel=1e-5
    )
    assert [(t[each], t["position"]) for t in tokens] == [
        (n, i) for n, s in alone.items() for i in range(len(s.nats))
    ]
    assert all("".join(lines)[t["offset"] :].startswith(t["surface"]) for t in tokens)
    (row,) = totals["rows"]
    assert row["nats"] == pytest.approx(sum(one["nats"] for one in totals["each"]))
    assert (row["lines"], row["characters"]) == (5, len("".join(lines)))


def test_lines_alone_are_read_after_the_context_and_printed(here: Here) -> None:
    Path("my.txt").write_text("bab bad\nbab bad\n  ")
    Path("before.txt").write_text("ded bab\n")
    done = here("eval --text my.txt --each line --context before.txt")
    total = txl.load("run").score("bab bad\n", "ded bab\n").total_nats
    for n in (1, 2):
        assert re.search(
            rf"^\| line +{n} \| tokens +3 \| nats +{total:.3f}", done.out, re.MULTILINE
        )
    assert "line     3" not in done.out  # no tokens
    said = here.refused("eval --text my.txt --each line --mem_len 2 4")
    assert "--mem_len 2 4: --each line prints totals of one; give one value at most" in said
    out = here("eval --text my.txt --each line --per_token -").out
    assert out.splitlines()[0].split("\t")[-1] == "line"
    assert [line.split("\t")[-1] for line in out.splitlines()[1:]] == ["1"] * 3 + ["2"] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        "--dynamic sgd",
        "--cache_size 30",
        "--dynamic rms --dynamic_segments 5",
        "--ext_len 4 --mem_len 0",
    ],
)
def test_a_text_is_scored_as_a_split_that_begins_with_a_blank_line(
    here: Here, score: Score, flags: str
) -> None:
    """With additions too; rms reads the training text of --data."""
    words = Path("text/test.txt").read_text()
    Path("text/test.txt").write_text("\n" + words)
    split = here.rows(f"eval --split test {flags} --batch_size 1")
    Path("my.txt").write_text(words)
    text = here.rows(f"eval --text my.txt {flags} {'--data text' if 'rms' in flags else ''}")
    assert [row["added"] for row in text] == [row["added"] for row in split]
    assert [row["nats"] for row in text] == pytest.approx([row["nats"] for row in split], rel=1e-5)
    if len(text) == 1:
        tokens = score(words, flags)
        assert len(tokens) == split[0]["tokens"]
        assert sum(t["nats"] for t in tokens) == pytest.approx(split[0]["nats"], rel=1e-5)


def test_a_context_is_read_and_not_scored(score: Score) -> None:
    """In one line with the text, or in a line of its own: as if both stood in one file."""
    for before in ("bab bad baf ", "bab bad\n"):
        Path("before.txt").write_text(before)
        whole = score(before + "bad bab\n")
        part = score("bad bab\n", "--context before.txt")
        assert [t["token"] for t in part] == ["bad", "bab", "<eos>"]
        assert [t["nats"] for t in part] == pytest.approx([t["nats"] for t in whole[-3:]], rel=1e-6)
        assert part[0]["nats"] != pytest.approx(score("bad bab\n")[0]["nats"], rel=1e-3)


def test_running_text_is_written_as_wikitext_is_and_unknown_words_are_named_once(
    here: Here, score: Score
) -> None:
    assert [t["unk"] for t in score("bab, bad.", "--tokenise")] == [False, True, False, True]
    assert [t["unk"] for t in score("bab, bad.")] == [True, True]
    Path("my.txt").write_text("bab Unheard unseen Unheard\n")
    said = "3 of 5 words are not in the vocabulary and are read as <unk>: Unheard unseen"
    assert (
        here("eval --text my.txt").err
        == f"note: my.txt: {said}; for running text there is --tokenise\n"
    )


def test_a_text_can_come_in_and_its_tokens_go_out_through_pipes(
    here: Here, score: Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is then written to standard output."""
    tokens = score("bab bad\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"bab bad\n")))
    names, *lines = (
        line.split("\t") for line in here("eval --text - --per_token -").out.splitlines()
    )
    assert names == ["position", "token", "id", "nats", "unk", "offset", "surface"]
    assert lines == [
        [str(int(x) if isinstance(x := t[name], bool) else x) for name in names] for t in tokens
    ]


def test_every_token_is_found_by_ordinary_readers_of_tsv_and_in_the_text(here: Here) -> None:
    text = ' bab " un"read_by_another " \u00fc\n'
    Path("my.txt").write_text(text, encoding="utf-8")
    here("eval --text my.txt --per_token tokens.tsv")
    with Path("tokens.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert [row["token"] for row in rows] == ["bab", "<unk>", "<unk>", "<unk>", "<unk>", "<eos>"]
    assert [row["surface"] for row in rows] == [*text.split(), ""]
    assert all(text[int(row["offset"]) :].startswith(row["surface"]) for row in rows)


def test_a_text_at_several_memory_lengths_makes_a_table(here: Here) -> None:
    result = here.result("eval --text text/test.txt --mem_len 16 0")
    found = [(row["split"], row["mem_len"], row["tokens"]) for row in result["rows"]]
    assert found == [("text", 16, 99), ("text", 0, 99)]
    assert result["text"] == "text/test.txt"
    assert not Path("context.png").exists()


def test_the_example_of_the_docs_gives_what_the_program_gives(score: Score) -> None:
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/evaluation.md").read_text(), flags=re.DOTALL
    )
    (example,) = (block for block in blocks if "score_text" in block)
    names: dict[str, Any] = {}
    exec(example.replace("runs/mine", "run"), names)
    assert names["nats"].tolist() == pytest.approx(
        [t["nats"] for t in score("the name of the file")], rel=1e-6
    )
