"""Pages are what their templates give, and tables and numbers those of files of results."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.studies.figures import Figures
from lab.studies.fill import main, rendered
from lab.studies.page_tables import KINDS, Asked
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


PAGES = [template.with_suffix("") for template in sorted(ROOT.glob("**/docs/*.md.jinja"))]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_a_page_is_what_its_template_gives(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert rendered(Path(f"{page}.jinja")) == page.read_text(encoding="utf-8")
    assert "<!-- " not in page.read_text(encoding="utf-8")


def without_source(template: str) -> list[str]:
    """Numbers with a decimal point that a template writes itself; not in code, tables, addresses, versions."""
    asked = r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}|^```.*?^```$|`[^`\n]+`|\]\([^)\s]*\)|^\|.*?$"
    prose = re.sub(asked, " ", template, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"(?<![\w.,-])\d+\.\d+(?![\w]|[.,-]\d)", prose)


def test_every_number_of_the_results_has_a_source() -> None:
    assert without_source("{{ x }} `0.1` [a](b/0.2.md) 2.13.0, 0.6M and 0.3 nats") == ["0.3"]
    template = (ROOT / "lab" / "docs" / "results.md.jinja").read_text(encoding="utf-8")
    assert without_source(template) == []


Settings = dict[str, Any]
TABLES: dict[str, tuple[str, Settings, list[list[str]]]] = {
    "metric": (
        "study.json",
        {},
        [["", "seeds", "test"], ["a", "3", "103.0 ± 3.0"], ["b, c", "2 + 1 again", "92.0 ± 2.0"]],
    ),
    "budget": (
        "study.json",
        {"rows": {"b, c": "both"}, "columns": ["parameters", "cpu_seconds", "peak_mib"]},
        [["", "parameters", "CPU seconds", "peak MiB"], ["both", "1,234", "1,667 ± 577", "512"]],
    ),
    "beside": (
        "study.json",
        {"of": "test", "columns": ["test", "difference", "p_holm"], "digits": {"test": 2}},
        [
            ["", "test", "nats per token", "p (Holm)"],
            ["a", "103.00 ± 3.00", "", ""],
            ["b, c", "92.00 ± 2.00", "-0.100", "0.08"],
        ],
    ),
    "contrasts": (
        "study.json",
        {"digits": 2},
        [
            "contrast;seeds;nats per token;95 % interval;p;p (Holm);detectable;verdict".split(";"),
            "b, c beside a;2;-0.10;-0.25 to +0.05;0.04;0.08;0.20;not shown".split(";"),
        ],
    ),
    "search": (
        "study.json",
        {"title": "row"},
        [
            ["row", "lr: valid nats per token"],
            ["a", "0.005: 4.500; **0.01: 4.250**; 0.02: diverged"],
            ["b, c", "**0.01**, taken from a"],
        ],
    ),
    "distances": (
        "study.json",
        {"rows": ["b, c"], "of": "test", "against": "a", "edges": [4]},
        [["tokens since the article began", "1 to 4", "beyond"], ["b, c", "-0.110", "-0.110"]],
    ),
    "plain": (
        "plain.json",
        {
            "rows": {"rows": "list", "other.one": "one"},
            "columns": ["n", "ms"],
            "digits": {"ms": 1},
        },
        [
            ["", "n", "ms"],
            ["list", "2,000", "1,234.6"],
            ["list", "", "2.0"],
            ["one", "1", "3.0"],
        ],
    ),
    "occurrences": (
        "groups.csv",
        {"where": {"last occurrence": "memory"}},
        [
            "last occurrence;in training;tokens;of;against;difference;95 % interval;share".split(
                ";"
            ),
            "memory;rare;100;3.0000;3.5000;-0.5000;-0.5000 to -0.5000;40.0%".split(";"),
        ],
    ),
}


def table_of(kind: str, file: str, **settings: Any) -> list[list[str]]:
    table = KINDS[kind](Figures(Path(file)), Asked(**settings))
    return [list(table.columns), *table.to_numpy().tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_table(kind: str, here: Path) -> None:
    file, settings, expected = TABLES[kind]
    assert table_of(kind, file, **settings) == expected


def test_a_row_beside_another_is_the_contrast_of_its_name(here: Path) -> None:
    found = table_of("beside", "study.json", contrast="{row} beside a", columns=["detectable"])
    assert found[1:] == [["a", ""], ["b, c", "0.200"]]


def test_columns_without_a_figure_are_left_out_unless_they_are_asked_for(here: Path) -> None:
    assert "detectable" not in table_of("beside", "study.json", of="test")[0]
    asked = table_of("beside", "study.json", of="test", columns=["detectable"])
    assert asked[0] == ["", "detectable"]


def test_a_row_has_its_loss_and_where_it_is_from(here: Path) -> None:
    runs = STUDY["runs"] | {"a": [a_run(1, 100.0, source="text 12ab, code 3f", processor="x")]}
    again = a_run(2, 104.0, source="text 12ab, code 4e", processor="x")
    runs["a"].append(again)
    Path("study.json").write_text(json.dumps(STUDY | {"runs": runs}))
    asked = {"of": "test", "rows": ["a"], "columns": ["nats", "code", "processor"]}
    assert table_of("beside", "study.json", **asked) == [
        ["", "nats per token", "commit", "processor"],
        ["a", "1.020 ± 0.028", "3f; 4e", "x"],
    ]


def test_what_an_older_file_does_not_note_is_named(here: Path) -> None:
    older = a_run(1, 100.0)
    del older["distances"]
    runs = {"a": [older], "b, c": [a_run(1, 90.0, source="text 12ab", processor=None)]}
    Path("study.json").write_text(json.dumps(STUDY | {"runs": runs}))
    for row in runs:
        for kind in ("code", "processor"):
            with pytest.raises(UsageError, match=f"'{row}': its {kind} was not noted$"):
                table_of("metric", "study.json", rows=[row], columns=[kind])
    with pytest.raises(UsageError, match=r"they begin at no distance$"):
        Figures(Path("study.json")).at("a", "test", 0)


def test_lengths_that_were_chosen_stand_once_if_they_are_alike(here: Path) -> None:
    runs = {
        "a": [a_run(1, 1.0, chosen={"best": 64}), a_run(2, 1.0, chosen={"best": 64})],
        "b": [a_run(1, 1.0, chosen={"best": 64}), a_run(2, 1.0, chosen={"best": 1024})],
    }
    Path("study.json").write_text(json.dumps(STUDY | {"runs": runs}))
    found = table_of("metric", "study.json", columns=["chosen, best"])
    assert found[1:] == [["a", "64"], ["b", "64; 1,024"]]


def test_a_group_of_tokens_has_its_numbers(here: Path) -> None:
    groups = Figures(Path("groups.csv"))
    assert groups.group("all", "all", "difference") == pytest.approx(-0.125)
    assert groups.group("memory", "rare", "share") == 0.4


def test_plain_rows_are_chosen_by_their_fields(here: Path) -> None:
    found = table_of("plain", "plain.json", where={"kind": "y"}, columns={"ms": "time"})
    assert found == [["time"], ["2.00"]]


def test_losses_of_a_range_are_those_of_its_tokens(here: Path) -> None:
    study = Figures(Path("study.json"))
    assert study.at("a", "test", 0, 3) == pytest.approx((2 * 5 + 6 * 4) / 8 + 1.03)
    assert study.tokens_at("a", "test", 2) == 16
    for first, last in ((1, 3), (0, 2), (10, None)):
        with pytest.raises(UsageError, match=r"they begin at 0; 2; 4$"):
            study.at("a", "test", first, last)


TEMPLATE = """{% set study = results("study.json") %}
# A page

{{ metric(study) }}

At {{ study.mean("b, c", "test") | f(".2f") }}, {{ -study.comparison("b, c", "test").difference | f("+.3f") }} nats
of {{ results("plain.json").value("rows", 0, "n") | f(",") }}; {{ cited("0.5", "a paper") }}.
"""
PAGE = """# A page

|  | seeds | test |
| --- | --- | --- |
| a | 3 | 103.0 ± 3.0 |
| b, c | 2 + 1 again | 92.0 ± 2.0 |

At 92.00, +0.100 nats
of 2,000; 0.5.
"""


def test_a_page_is_written_where_it_differs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("page.md.jinja").write_text(TEMPLATE)
    assert main(["page.md", "--check"]) == 1
    says = "| page.md: differs; python -m lab.studies.fill page.md writes it\n"
    assert capsys.readouterr().out == says
    assert not Path("page.md").exists()
    assert main(["page.md"]) == 0
    assert Path("page.md").read_text() == PAGE
    capsys.readouterr()
    assert main(["page.md", "--check"]) == 0
    assert capsys.readouterr().out == ""


REFUSED = {
    'search(results("empty.json"))': "empty.json: holds no search",
    'search(results("list.json"))': "list.json: 'study': not in the file",
    'results("groups.csv").group("all", "rare", "share")': "all, rare: no such group",
    'results("groups.csv").group("all", "all", "p")': "p: there are difference",
    'results("plain.json").group("all", "all", "share")': "plain.json: not what",
    'metric(results("plain.json"))': "plain.json: holds no runs",
    'metric(study, rows=["d"])': "'d': no such row; there are a; b, c",
    'metric(study, columns=["d"])': "'a': no column 'd'",
    "metric(study, digits={'tset': 2})": "digits: 'tset': no such column",
    'metric(study, row=["a"])': "unexpected keyword argument 'row'",
    'metric(study, columns=["chosen, best"])': "'a': no length was chosen",
    'beside(study, contrast="{row} besid a")': "'{row} besid a': there is none",
    'distances(study, of="test", edges=[4], against={"d": "a"})': "'d': no row",
    'contrasts(study, rows=["d"])': "'d': no such comparison",
    'plain(results("plain.json"), columns=["b"])': "'b': not in 0 of 'rows'",
    'study.median("a", "test")': "has no attribute 'median'",
    'study.mean("a")': "missing 1 required positional argument",
    'study.value("study").nothing': "has no attribute 'nothing'",
    "1 / 0": "division by zero",
    "1 /": "unexpected 'end of print statement'",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    line: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("page.md.jinja").write_text(f'{{% set study = results("study.json") %}}\n{{{{ {line} }}}}')
    Path("page.md").write_text("as it was")
    monkeypatch.setattr(sys, "argv", ["lab.studies.fill", "page.md"])
    with pytest.raises(SystemExit) as stop:
        run(main)
    out, complaint = capsys.readouterr()
    assert (stop.value.code, out, complaint.count("\n")) == (2, "", 1)
    assert "page.md.jinja:2: " in complaint
    assert REFUSED[line] in complaint
    assert Path("page.md").read_text() == "as it was"


def test_a_file_that_is_no_json_is_named(here: Path) -> None:
    Path("study.json").write_text("{")
    with pytest.raises(UsageError, match=r"^study\.json: not JSON"):
        Figures(Path("study.json"))
