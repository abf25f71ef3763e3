"""Tables and numbers of pages are those of files of results."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.studies.figures import Figures
from lab.studies.fill import STRICT, main
from lab.studies.page_numbers import like
from lab.studies.page_tables import KINDS, table_of
from lab.studies.tables import as_markdown
from tests.forks import ROOT
from txl.errors import UsageError
from txl.programs.run import run

BINS = [(0, 1, 2, 5.0), (2, 3, 6, 4.0), (4, 9, 10, 3.0)]


def a_run(seed: int, perplexity: float, **others: Any) -> dict[str, Any]:
    distances = []
    for first, last, n_token, nats in BINS:
        one = {"from": first, "to": last, "tokens": n_token}
        distances.append(one | {"nats_per_token": nats + perplexity / 100})
    return {
        "seed": seed,
        "values": {"test": perplexity},
        "nats": {"test": perplexity / 100},
        "distances": {"test": distances},
        "parameters": 1234,
        "cpu_seconds": 1000.0 * seed,
        "peak_gib": seed / 4,
        **others,
    }


def a_comparison(run: str, column: str = "", **numbers: float) -> dict[str, Any]:
    usual = {"difference": -0.1, "low": -0.25, "high": 0.05, "p": 0.04, "p_holm": 0.08}
    fixed = {"seeds": 2, "verdict": "not shown", "note": ""}
    return {"run": run, "column": column, **usual, **fixed, **numbers}


STUDY = {
    "study": {
        "metric": "perplexity",
        "baseline": "a",
        "variants": {"a": {"lr": 0.005}, "b, c": {}},
        "search": {"of": "lr", "like": {"b, c": "a"}},
    },
    "runs": {
        "a": [a_run(1, 100.0), a_run(2, 103.0), a_run(3, 106.0)],
        "b, c": [a_run(1, 90.0), a_run(2, 92.0), a_run(2, 94.0, is_rerun=True)],
    },
    "comparisons": [a_comparison("b, c", "test"), a_comparison("b, c beside a", detectable=0.2)],
    "search": {
        "a": {"lr": 0.01, "tried": {"0.005": 4.5, "0.02": None, "0.01": 4.25}},
        "b, c": {"lr": 0.01, "like": "a"},
    },
}
PLAIN = {
    "rows": [{"kind": "x", "ms": 1234.567, "n": 2000}, {"kind": "y", "ms": 2.0, "n": None}],
    "other": {"one": {"kind": "z", "ms": 3.0, "n": 1}},
}

GROUPS = """last occurrence,in training,tokens,of,against,share,difference 1,difference 2
all,all,1000,4.0,4.125,1.0,-0.1,-0.15
memory,rare,100,3.0,3.5,0.4,-0.5,-0.5
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the two files of results above."""
    monkeypatch.chdir(tmp_path)
    Path("study.json").write_text(json.dumps(STUDY))
    Path("plain.json").write_text(json.dumps(PLAIN))
    Path("groups.csv").write_text(GROUPS)
    Path("empty.json").write_text('{"search": {}}')
    Path("list.json").write_text('{"search": [{"lr": 0.01}]}')
    return tmp_path


def filled(page: str, *flags: str, status: int = 0) -> str:
    """A page after the program."""
    Path("page.md").write_text(page)
    assert main(["page.md", *flags]) == status
    return Path("page.md").read_text()


def test_figures_of_the_results_page_are_those_of_their_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    page = Path("lab/docs/results.md").read_text(encoding="utf-8")
    assert page.index(STRICT) < page.index("## ")
    without = "the header of a table follows its marker"
    tables = page.count("\n| --- |") + page.count("\n|---|")
    assert tables == page.count("<!-- table:") > 10, without
    status = main(["lab/docs/results.md", "docs/pretrained.md", "--check"])
    assert (status, capsys.readouterr().out) == (0, "")


TABLES = {
    "metric": (
        "study.json",
        "",
        [["", "seeds", "test"], ["a", "3", "103.0 ± 3.0"], ["b, c", "2 + 1 again", "92.0 ± 2.0"]],
    ),
    "budget": (
        "study.json",
        'rows = {"b, c" = "both"}\ncolumns = ["parameters", "cpu_seconds", "peak_mib"]',
        [["", "parameters", "CPU seconds", "peak MiB"], ["both", "1,234", "1,667 ± 577", "512"]],
    ),
    "beside": (
        "study.json",
        'of = "test"\ncolumns = ["test", "difference", "p_holm"]\ndigits = {test = 2}',
        [
            ["", "test", "nats per token", "p (Holm)"],
            ["a", "103.00 ± 3.00", "", ""],
            ["b, c", "92.00 ± 2.00", "-0.100", "0.08"],
        ],
    ),
    "contrasts": (
        "study.json",
        "digits = 2",
        [
            "contrast;seeds;nats per token;95 % interval;p;p (Holm);detectable;verdict".split(";"),
            "b, c beside a;2;-0.10;-0.25 to +0.05;0.04;0.08;0.20;not shown".split(";"),
        ],
    ),
    "search": (
        "study.json",
        'title = "row"',
        [
            ["row", "lr: valid nats per token"],
            ["a", "0.005: 4.500; **0.01: 4.250**; 0.02: diverged"],
            ["b, c", "**0.01**, taken from a"],
        ],
    ),
    "distances": (
        "study.json",
        'rows = ["b, c"]\nof = "test"\nagainst = "a"\nedges = [4]',
        [["tokens since the article began", "1 to 4", "beyond"], ["b, c", "-0.110", "-0.110"]],
    ),
    "plain": (
        "plain.json",
        'rows = {rows = "list", "other.one" = "one"}\ncolumns = ["n", "ms"]\ndigits = {ms = 1}',
        [
            ["", "n", "ms"],
            ["list", "2,000", "1,234.6"],
            ["list", "", "2.0"],
            ["one", "1", "3.0"],
        ],
    ),
    "cells": (
        "plain.json",
        """title = "what"
columns = ["2M", "6M"]
[cells]
"n-gram" = '''
0.0 = value("rows", 0, "ms")
0.09 = "table 6 of the paper"
'''
ours = '''
study.json
0.00 = mean("a", "test")
plain.json
+0 = value("rows", 1, "ms")
'''
""",
        [["what", "2M", "6M"], ["n-gram", "1234.6", "0.09"], ["ours", "103.00", "+2"]],
    ),
    "occurrences": (
        "groups.csv",
        'where = {"last occurrence" = "memory"}',
        [
            "last occurrence;in training;tokens;of;against;difference;95 % interval;share".split(
                ";"
            ),
            "memory;rare;100;3.0000;3.5000;-0.5000;-0.5000 to -0.5000;40.0%".split(";"),
        ],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_table(kind: str, here: Path) -> None:
    file, settings, expected = TABLES[kind]
    table = table_of(kind, Figures(Path(file)), settings)
    assert [table.header, *table.rows] == expected


def test_a_row_beside_another_is_the_contrast_of_its_name(here: Path) -> None:
    settings = 'contrast = "{row} beside a"\ncolumns = ["detectable"]'
    table = table_of("beside", Figures(Path("study.json")), settings)
    assert table.rows == [["a", ""], ["b, c", "0.200"]]


def test_columns_without_a_figure_are_left_out_unless_they_are_asked_for(here: Path) -> None:
    study = Figures(Path("study.json"))
    assert "detectable" not in table_of("beside", study, 'of = "test"').header
    asked = 'of = "test"\ncolumns = ["detectable"]'
    assert table_of("beside", study, asked).header == ["", "detectable"]


def test_a_row_has_its_loss_and_where_it_is_from(here: Path) -> None:
    runs = STUDY["runs"] | {"a": [a_run(1, 100.0, source="text 12ab, code 3f", processor="x")]}
    again = a_run(2, 104.0, source="text 12ab, code 4e", processor="x")
    runs["a"].append(again)
    Path("study.json").write_text(json.dumps(STUDY | {"runs": runs}))
    asked = 'of = "test"\nrows = ["a"]\ncolumns = ["nats", "code", "processor"]'
    table = table_of("beside", Figures(Path("study.json")), asked)
    assert table.header == ["", "nats per token", "commit", "processor"]
    assert table.rows == [["a", "1.020 ± 0.028", "3f; 4e", "x"]]


def test_what_an_older_file_does_not_note_is_named(here: Path) -> None:
    older = a_run(1, 100.0)
    del older["distances"]
    runs = {"a": [older], "b, c": [a_run(1, 90.0, source="text 12ab", processor=None)]}
    Path("study.json").write_text(json.dumps(STUDY | {"runs": runs}))
    study = Figures(Path("study.json"))
    for row in runs:
        for kind in ("code", "processor"):
            with pytest.raises(UsageError, match=f"'{row}': its {kind} was not noted$"):
                table_of("metric", study, f'rows = ["{row}"]\ncolumns = ["{kind}"]')
    with pytest.raises(UsageError, match=r"they begin at no distance$"):
        study.at("a", "test", 0)


def test_lengths_that_were_chosen_stand_once_if_they_are_alike(here: Path) -> None:
    runs = {
        "a": [a_run(1, 1.0, chosen={"best": 64}), a_run(2, 1.0, chosen={"best": 64})],
        "b": [a_run(1, 1.0, chosen={"best": 64}), a_run(2, 1.0, chosen={"best": 1024})],
    }
    Path("study.json").write_text(json.dumps(STUDY | {"runs": runs}))
    table = table_of("metric", Figures(Path("study.json")), 'columns = ["chosen, best"]')
    assert table.rows == [["a", "64"], ["b", "64; 1,024"]]


def test_a_group_of_tokens_has_its_numbers(here: Path) -> None:
    page = "0.000 and 0.0 %\n<!-- numbers: groups.csv\n"
    page += '0.000 = -group("all", "all", "difference")\n'
    page += '0.0 = 100 * group("memory", "rare", "share")\n-->\n'
    assert filled(page).startswith("0.125 and 40.0 %\n")


def test_plain_rows_are_chosen_by_their_fields(here: Path) -> None:
    plain = Figures(Path("plain.json"))
    table = table_of("plain", plain, 'where = {kind = "y"}\ncolumns = {ms = "time"}')
    assert [table.header, *table.rows] == [["time"], ["2.00"]]


def test_losses_of_a_range_are_those_of_its_tokens(here: Path) -> None:
    study = Figures(Path("study.json"))
    assert study.at("a", "test", 0, 3) == pytest.approx((2 * 5 + 6 * 4) / 8 + 1.03)
    assert study.tokens_at("a", "test", 2) == 16
    for first, last in ((1, 3), (0, 2), (10, None)):
        with pytest.raises(UsageError, match=r"they begin at 0; 2; 4$"):
            study.at("a", "test", first, last)
        with pytest.raises(UsageError, match=r"they begin at 0; 2; 4$"):
            study.tokens_at("a", "test", first, last)


PAGE = """# A page, 1.5 without a source

<!-- table: metric study.json -->
old
<!-- end -->

It is at 0.00 after 64 tokens, and 0.000 nats (+0.0 to -0.1) of 9,999: a rate of 0.005, by 2.
<!-- numbers: study.json
0.00 = mean("b, c", "test")
0.000 = -difference("b, c", "test")
+0.0 = high("b, c", "test")
-0.1 = low("b, c", "test") * 2
9,999 = value("rows", 0, "n")
0.005 = flag("a", "lr")
-->
"""


def test_a_page_is_filled_and_filled_again_it_stays(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = PAGE.replace("9,999 =", "plain.json\n9,999 =").replace("0.005 =", "study.json\n0.005 =")
    once = filled(page)
    table = as_markdown(table_of("metric", Figures(Path("study.json")), ""))
    assert f"<!-- table: metric study.json -->\n\n{table}\n\n<!-- end -->" in once
    assert "It is at 92.00 after 64 tokens, and 0.100 nats (+0.1 to -0.5) of 2,000: a rate" in once
    assert '92.00 = mean("b, c", "test")\n0.100 = -diff' in once
    assert "old" not in once
    capsys.readouterr()
    assert filled(once) == once
    assert filled(once, "--check") == once
    assert capsys.readouterr().out == ""


def test_numbers_that_are_alike_are_written_one_by_one(here: Path) -> None:
    page = "0.0 and 0.0, 0.0\n<!-- numbers: study.json\n"
    page += '0.0 = mean("a", "test")\n0.0 = mean("b, c", "test")\n0.0 = "a paper"\n-->\n'
    once = filled(page)
    assert once.startswith("103.0 and 92.0, 0.0\n")
    assert [line[:5] for line in once.splitlines()[2:5]] == ["103.0", "92.0 ", "0.0 ="]
    assert filled(once, "--check") == once


def test_a_check_says_what_differs_and_writes_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = PAGE.replace("9,999 =", "plain.json\n9,999 =").replace("0.005 =", "study.json\n0.005 =")
    assert filled(page, "--check", status=1) == page
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| page.md:3: table of study.json: differs"
    assert lines[1].startswith('| page.md:7: 0.00 is 92.00 by mean("b, c", "test") of study.json')
    assert lines[-1] == "| page.md: differs; python -m lab.studies.fill page.md writes it"
    wrong = filled(page).replace("92.00 after", "92.01 after").replace("92.00 =", "92.01 =")
    assert filled(wrong, "--check", status=1) == wrong


def test_a_number_without_a_source_is_an_error_from_the_marker_on(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "`0.1` [here](a/0.3.md) 2.13.0\n```\n0.4\n```\n| 0.5 |\n\nSegments of 64, of wt103 0.6M.\n"
    )
    filled(f"Version 0.7.\n{STRICT}\n{code}")
    assert capsys.readouterr().out == ""
    for after in (
        "0.25 nats\n",
        '0.25 nats\n<!-- numbers: study.json\n64 = seeds("a") + 61\n-->\n',
    ):
        filled(f"Version 0.7.\n{STRICT}\n64 and {after}", status=1)
        assert capsys.readouterr().out == "| page.md:3: 0.25 has no source\n"
    filled(f'{STRICT}\n0.25 nats\n<!-- numbers:\n0.25 = "table 1 of the paper"\n-->\n')


@pytest.mark.parametrize(
    ("text", "value", "written"),
    [
        ("0.000", 1.23456, "1.235"),
        ("+0.1", 2.0, "+2.0"),
        ("-0.1", 2.0, "2.0"),
        ("1,000", 999.6, "1,000"),
        ("0", 12345.0, "12,345"),
        ("0", 9999.6, "10,000"),
        ("0.00", -0.5, "-0.50"),
    ],
)
def test_numbers_keep_their_form(text: str, value: float, written: str) -> None:
    assert like(text, value) == written


def asks(line: str, file: str = "study.json") -> str:
    return f"0.1\n<!-- numbers: {file}\n0.1 = {line}\n-->\n"


REFUSED = {
    "<!-- table: search empty.json -->\n<!-- end -->": "empty.json: holds no search",
    "<!-- table: search list.json -->\n<!-- end -->": "list.json: 'study': not in the file",
    asks('group("all", "rare", "share")', "groups.csv"): "all, rare: no such group",
    asks('group("all", "all", "p")', "groups.csv"): "p: there are difference",
    asks('group("all", "all", "share")', "plain.json"): "plain.json: not what",
    asks('tokens_at("a", "test", 0, 4)'): "'test': no figures from 0 to 4",
    "<!-- table: metric none.json -->\n<!-- end -->": "none.json: No such file",
    "<!-- table: sums study.json -->\n<!-- end -->": "sums: no such kind of table; there are metric",
    "<!-- table: metric -->\n<!-- end -->": "write <!-- table: KIND FILE",
    "<!-- table: metric plain.json -->\n<!-- end -->": "plain.json: holds no runs",
    '<!-- table: metric study.json\nrows = ["d"]\n-->\n<!-- end -->': "'d': no such row; there are a; b, c",
    '<!-- table: metric study.json\ncolumns = ["d"]\n-->\n<!-- end -->': "'a': no column 'd'",
    "<!-- table: metric study.json\ndigits = {tset = 2}\n-->\n<!-- end -->": "digits: 'tset': no such column",
    '<!-- table: metric study.json\nrow = ["a"]\n-->\n<!-- end -->': "row: no such setting",
    "<!-- table: metric study.json\nrows = 3\n-->\n<!-- end -->": "rows = 3: of another type",
    "<!-- table: metric study.json\nrows\n-->\n<!-- end -->": "not TOML",
    "<!-- table: metric study.json -->\n\n<!-- table: metric study.json -->\n<!-- end -->": "no <!-- end -->",
    '<!-- table: metric study.json\ncolumns = ["chosen, best"]\n-->\n<!-- end -->': "'a': no length was chosen",
    '<!-- table: beside study.json\ncontrast = "{row} besid a"\n-->\n<!-- end -->': "'{row} besid a': there is none",
    '<!-- table: distances study.json\nof = "test"\nedges = [4]\nagainst = {d = "a"}\n-->\n<!-- end -->': "'d': no row",
    '<!-- table: contrasts study.json\nrows = ["d"]\n-->\n<!-- end -->': "'d': no such comparison",
    '<!-- table: distances study.json\nof = "test"\nedges = [3]\n-->\n<!-- end -->': "they begin at 0; 2; 4",
    '<!-- table: plain plain.json\ncolumns = ["b"]\n-->\n<!-- end -->': "'b': not in 0 of 'rows'",
    "<!-- table: cells plain.json\n[cells]\na = '1 = 1'\n-->\n<!-- end -->": "a table of cells needs columns",
    "<!-- table: cells plain.json\ncolumns = ['b', 'c']\n[cells]\na='1 = 1'\n-->\n<!-- end -->": "a: 1 numbers for",
    asks('mean("d", "test")'): "'d': no such row",
    asks('median("a", "test")'): "median: no such question; there are mean",
    asks('mean("a")'): "cannot be computed",
    asks("[1][0]"): "write numbers",
    asks("1 /"): "no expression",
    asks("1 / 0"): "cannot be computed",
    asks("log(0)"): "cannot be computed",
    asks('flag("a", "optim")'): "'optim': not in 'a'",
    asks("1")
    + "2.5\n<!-- numbers:\n3.5 = 1\n-->\n": "page.md:6: 3.5 = 1: the text before it has no",
    "0.1\n<!-- numbers: study.json\nmean\n-->\n": "'mean': write NUMBER = EXPRESSION",
}


@pytest.mark.parametrize("page", REFUSED)
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    page: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("page.md").write_text(page)
    monkeypatch.setattr(sys, "argv", ["lab.studies.fill", "page.md"])
    with pytest.raises(SystemExit) as stop:
        run(main)
    out, complaint = capsys.readouterr()
    assert (stop.value.code, out, complaint.count("\n")) == (2, "", 1)
    assert REFUSED[page] in complaint
    assert Path("page.md").read_text() == page


def test_a_file_that_is_no_json_is_named(here: Path) -> None:
    Path("study.json").write_text("{")
    with pytest.raises(UsageError, match=r"^study\.json: not JSON"):
        Figures(Path("study.json"))
