"""`txl report`: the figures of eval.py on a page, drawn again without the model, and what is refused."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoints import sign
from tests.cli.conftest import Here, change_weights, half_written, records, train_here
from txl.config import UsageError
from txl.data_utils.sources import CACHE
from txl.evaluation.config import ReportConfig
from txl.evaluation.gain import blocks_of
from txl.language.model import load
from txl.language.token_losses import losses_by_token
from txl.report.record import Report, read_report
from txl.runs.reporting import (
    add_report,
    average_part,
    compared_lengths,
    evaluation_of,
    folder_for,
    measure_report,
    name_of,
    name_of_model,
    saved_at,
)
from txl.runs.scoring import Split, rows_of, ways_of
from txl.runtime.distributed import Ranks

LENGTHS = "--mem_len 0 4 8"
PLAIN = "--sample_length 3 --attended 20"


@pytest.fixture
def report(here: Here) -> Report:
    """Of the tiny run."""
    here(f"report run {LENGTHS} {PLAIN}")
    return read_report(Path("run/report.json"))


def test_the_figures_are_those_of_eval(here: Here, report: Report) -> None:
    result = here.result(f"eval --split test {LENGTHS} --borders both --attention_by_distance")
    rows = [(row["mem_len"], row["borders"]) for row in result["rows"]]
    assert [(row.mem_len, row.borders) for row in report.rows] == rows
    for mine, theirs in zip(report.rows, result["rows"], strict=True):
        for name in ("nats_per_token", "perplexity", "word_perplexity", "bits_per_character"):
            assert getattr(mine, name) == theirs[name]
    assert report.n_token == result["rows"][0]["tokens"]
    assert report.weights == result["weights"]
    assert report.text == result["texts"]["test"]
    assert report.distances is not None
    attention = next(row for row in result["rows"] if row["mem_len"] == 8)["attention_by_distance"]
    np.testing.assert_allclose(report.distances.share_LNK, attention["share"], atol=1e-6)
    assert report.distances.first_K == [one["from"] for one in attention["bins"]]


def test_it_prints_what_eval_prints(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txl.evaluation.gain.LEAST_BLOCKS", 1)
    printed = here(f"report run --mem_len 0 8 {PLAIN}").out
    expected = here("eval --split test --mem_len 0 8 --borders both").out
    (sentence,) = (line for line in expected.splitlines() if " in place of none: " in line)
    assert " perplexity a word" in sentence
    assert sentence in printed
    gain = read_report(Path("run/report.json")).gain()
    assert gain is not None
    assert gain.sentence() == sentence
    for line in expected.splitlines():
        if line.startswith("| test"):
            assert line in printed


def test_the_text_is_that_of_the_split_with_its_losses(here: Here, report: Report) -> None:
    lm = load("run")
    ids = lm.corpus().split("test")
    shown = report.shown
    assert shown is not None
    assert shown.first == 1
    assert "".join(shown.pieces) == lm.decode(ids.tolist())[-len("".join(shown.pieces)) :]
    assert len(shown.pieces) == len(ids) - 1
    for length, nats_N in zip(shown.mem_len_M, shown.nats_MN, strict=True):
        context = dataclasses.replace(lm.context, mem_len=length)
        expected = losses_by_token(lm, ids, context, borders="aside")
        np.testing.assert_allclose(nats_N, expected, atol=6e-4)
    assert shown.looked is not None
    assert shown.looked.n_token == 20
    here(f"report run --first 31 --tokens 12 --mem_len 0 8 {PLAIN}")
    part = read_report(Path("run/report.json")).shown
    assert part is not None
    assert part.pieces == shown.pieces[30:42]
    assert part.before == shown.pieces[30 - 17 : 30][1:]
    assert part.nats_MN == [nats_N[30:42] for nats_N in (shown.nats_MN[0], shown.nats_MN[2])]


def test_the_run_tells_how_it_was_made(here: Here, report: Report) -> None:
    assert report.curve is not None
    validated = [
        [record["tokens"], record["valid/nll_nats"]] for record in records(Path("run"), "valid")
    ]
    assert report.curve.valid == validated
    assert len(report.curve.train) == len(records(Path("run"), "train"))
    assert report.origin.settings["model n_layer"] == "2"
    assert report.origin.settings["train lr"]
    assert report.origin.versions.keys() >= {"txl", "torch", "python"}
    assert report.sample
    written = Path("run/report.json").read_text() + Path("run/report.html").read_text()
    start = records(Path("run"), "start")[0]
    assert start["train"]["work_dir"].startswith("/")
    for place in (
        str(Path.cwd().parent),
        start["train"]["work_dir"],
        start["data"]["data"],
        str(Path.home()) + "/",
    ):
        assert place not in written


def test_it_is_drawn_again_without_the_model(
    here: Here, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path("run/report.html").read_text()

    def unread(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was read")

    monkeypatch.setattr("txl.runs.pages.LanguageModel.open", unread)
    Path("run/report.html").unlink()
    assert "drawn from it" in here("report run").out
    assert Path("run/report.html").read_text() == page
    Path("run/report.html").unlink()
    assert here("report run/report.json").out == "| page: run/report.html\n"
    assert Path("run/report.html").read_text() == page
    shutil.copy("run/report.json", "kept.json")
    here("report kept.json")
    assert Path("kept.html").read_text() == page
    for folder in Path("run").glob("step_*"):
        shutil.rmtree(folder)
    here("report run --out elsewhere/page.html")
    assert Path("elsewhere/page.html").read_text() == page


def test_it_is_measured_again_where_the_model_or_the_question_is_another(
    here: Here, report: Report
) -> None:
    here("report run --measure")
    assert [row.mem_len for row in read_report(Path("run/report.json")).rows_of("cut")] == [
        0,
        2,
        8,
        16,
    ]
    here("report run --mem_len 0 3")
    assert [row.mem_len for row in read_report(Path("run/report.json")).rows_of("cut")] == [0, 3]
    change_weights(Path("run"), lambda weight: 1.5 * weight)
    here("report run")
    again = read_report(Path("run/report.json"))
    assert again.weights != report.weights
    assert again.rows[0].perplexity != report.rows[0].perplexity


def test_several_runs_are_drawn_on_one_page(here: Here) -> None:
    shutil.copytree("run", "other")
    here(f"report run other {LENGTHS} {PLAIN}")
    assert not Path("run/report.html").exists()
    assert Path("other/report.json").is_file()
    assert Path("report.html").read_text().count('<div class="headline') == 2
    here("report run/report.json other --out two.html")
    assert Path("two.html").read_text() == Path("report.html").read_text()


def test_a_checkpoint_and_a_split_can_be_named(here: Here) -> None:
    (checkpoint, *_) = sorted(Path("run").glob("step_*"))
    before = sorted(path.name for path in checkpoint.iterdir())
    here(
        f"report {checkpoint} --split valid {LENGTHS} {PLAIN} --json figures.json --no_distances --attended 0"
    )
    report = read_report(Path("figures.json"))
    assert (report.split, report.checkpoint, report.name) == ("valid", checkpoint.name, "run")
    assert report.distances is None
    assert report.shown is not None
    assert report.shown.looked is None
    assert Path("run/report.html").is_file()
    assert sorted(path.name for path in checkpoint.iterdir()) == before


def test_without_a_test_split_it_is_valid(here: Here) -> None:
    Path("text/test.txt").unlink()
    shutil.rmtree(Path("text") / CACHE)
    here(f"report run --data text {LENGTHS} {PLAIN}")
    assert read_report(Path("run/report.json")).split == "valid"


@pytest.mark.parametrize(
    "flags",
    [
        "--memory none --mem_len 0",
        "--memory compressive",
        "--memory knn",
        "--attention performer --position rotary",
        "--same_length",
        "--ext_len 4 --mem_len 4",
        "--reset document --documents blank",
        "--recurrence same",
        "--dataset characters",
        "--dataset bytes",
        "--mem_len 0",
        "--max_step 1 --log_interval 5",
    ],
)
def test_every_kind_of_model_has_a_page(
    tmp_path: Path, write_text: Callable[..., Path], flags: str
) -> None:
    text = write_text(tmp_path / "text")
    if "document" in flags:
        for path in text.iterdir():
            path.write_text(path.read_text().replace("\n", "\n\n"))
    train_here(tmp_path, flags)
    page = add_report(tmp_path / "run", sample_length=2, attended=30)
    report = read_report(tmp_path / "run" / "report.json")
    assert page == tmp_path / "run" / "report.html"
    assert half_written(tmp_path / "run") == []
    assert report.shown is not None
    attends = not any(word in flags for word in ("compressive", "knn", "performer", "same"))
    attends = attends or "--same_length" in flags
    assert (report.shown.looked is not None) == attends
    assert (report.distances is not None) == attends
    nats = report.row("aside", report.compared[-1]).nats_per_token
    shown = report.shown.nats_MN[report.shown.mem_len_M.index(report.compared[-1])]
    assert np.mean(shown) == pytest.approx(nats, abs=0.2)
    if "none" in flags:
        assert report.compared == [0]
        assert "nothing to compare" in page.read_text()


def test_rows_that_are_there_are_not_read_again(
    here: Here, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = load("run")
    asked = ReportConfig(mem_len=(0, 4, 8), sample_length=3, attended=20)
    ranks = Ranks(0, 1, lm.model.device)
    config = evaluation_of(lm, asked, {}, ranks, "test")
    split = Split.of(lm.corpus(), "test")
    rows = rows_of(lm.model, split, ways_of(config, lm.context), ranks, keeps_losses=True)
    monkeypatch.setattr("txl.runs.reporting.rows_of", lambda *_, **__: pytest.fail("again"))
    assert measure_report(lm, asked, rows=rows) == report


def test_the_memory_of_the_training_is_compared_with_the_shortest() -> None:
    assert compared_lengths([0, 8, 32, 128, 256], 128) == [0, 128]
    assert compared_lengths([0, 8, 100], 128) == [0, 100]
    assert compared_lengths([0, 256], 128) == [0, 256]
    assert compared_lengths([16], 128) == [16]


def test_a_run_of_a_study_is_called_as_its_variant() -> None:
    assert name_of(Path("runs/studies/x/runs/memory_64/seed_3/run")) == "memory_64/seed_3"
    assert name_of(Path("runs/run")) == "run"
    assert name_of(Path("runs/mine")) == "mine"


def test_the_part_that_is_shown_is_an_average_one() -> None:
    saved_N = np.zeros(1000)
    saved_N[:300] = 1.0
    assert average_part(saved_N, 1000) == 0
    assert average_part(saved_N, 2000) == 0
    saved_N[300:] = 0.2
    saved_N[512:768] = 0.44
    assert average_part(saved_N, 256) == 512


# refused


def test_what_is_no_run_is_refused_in_one_line(here: Here) -> None:
    assert "nowhere" in here.refused("report nowhere")
    assert "name what is drawn" in here.refused("report")
    assert "name what is drawn" in here.refused("report --mem_len 3")
    Path("empty").mkdir()
    assert here.refused("report empty").count("empty")
    Path("bad.json").write_text("{}")
    assert "bad.json: no report.json of txl" in here.refused("report bad.json")
    (checkpoint, *_) = sorted(Path("run").glob("step_*"))
    assert "no report.json of txl" in here.refused(f"report {checkpoint}/progress.json")


def test_a_damaged_report_is_refused_and_stays(here: Here, report: Report) -> None:
    path = Path("run/report.json")
    whole = path.read_text()
    page = Path("run/report.html").read_bytes()
    for content, why in (
        (whole[:-9], "not JSON"),
        (whole.replace('"format": 1', '"format": 99'), "is of format 99"),
        ('{"program": "txl report", "format": 1}', "damaged"),
    ):
        path.write_text(content)
        assert why in here.refused("report run")
        assert why in here.refused("report run/report.json")
        assert path.read_text() == content
        assert Path("run/report.html").read_bytes() == page
    here(f"report run --measure {LENGTHS} {PLAIN}")
    assert read_report(path).rows == report.rows


def test_only_files_are_read_in_a_run_folder(here: Here) -> None:
    os.mkfifo("run/report.json")
    assert "report.json" in here.refused("report run/report.json")
    Path("run/metrics.jsonl").unlink()
    os.mkfifo("run/metrics.jsonl")
    here(f"report run {LENGTHS} {PLAIN} --json figures.json")
    assert read_report(Path("figures.json")).curve is None
    assert not read_report(Path("figures.json")).origin.command


def test_damaged_records_of_a_run_are_refused(here: Here) -> None:
    for content in ("{\n", "[]\n", '"x"\n'):
        Path("run/metrics.jsonl").write_text(content)
        assert "metrics.jsonl: damaged" in here.refused(f"report run {LENGTHS} {PLAIN}")
        assert not Path("run/report.html").exists()


def test_flags_without_effect_are_refused(here: Here, report: Report) -> None:
    assert "--mem_len" in here.refused("report run/report.json --mem_len 3")
    assert "nowhere" in here.refused("report run nowhere --measure")
    assert "--mem_len" in here.refused("report run run/report.json --mem_len 3")
    assert read_report(Path("run/report.json")) == report  # nothing was measured before
    assert "--json x.json" in here.refused("report run run --json x.json")
    assert "--tgt_len 8 16" in here.refused("report run --tgt_len 8 16")
    assert "at most" in here.refused("report run run run run run run run")
    assert "--first 1000" in here.refused("report run --first 1000 --mem_len 0 8")


def test_where_nothing_can_be_written_nothing_is_measured(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("file").write_text("")
    monkeypatch.setattr("txl.runs.pages.measure_report", lambda *_: pytest.fail("measured"))
    assert "file" in here.refused("report run --out file/page.html")
    assert "file" in here.refused("report run --json file/figures.json")


def test_a_page_takes_the_place_of_a_page_only(here: Here, report: Report) -> None:
    Path("notes.md").write_text("my own notes\n")
    Path("index.html").write_text("<!doctype html>\n<title>my site</title>\n")
    shutil.copy("run/report.json", "index.json")
    for line in ("run --out notes.md", "index.json", "index.json --out index.json"):
        said = here.refused(f"report {line}")
        assert "is there, and is nothing that" in said or "is the file of --runs, too" in said
    assert Path("notes.md").read_text() == "my own notes\n"
    assert "my site" in Path("index.html").read_text()
    assert read_report(Path("index.json")) == report
    here("report index.json --out page.html")
    here("report index.json --out page.html")


def test_the_report_of_what_is_no_run_is_kept_beside_it(here: Here) -> None:
    """Each under its own name; nothing of another program is lost."""
    for name in ("hf", "hf2"):
        here(f"convert run {name} --to huggingface")
    Path("report.json").write_text('{"format": "other", "coverage": 97}')
    here(f"report hf hf2 --data text --dtype auto {LENGTHS} {PLAIN}")
    reports = [read_report(Path(name, "report.json")) for name in ("hf", "hf2")]
    assert [report.name for report in reports] == ["hf", "hf2"]
    assert reports[0].dtype in ("float32", "bfloat16")
    assert Path("report.json").read_text() == '{"format": "other", "coverage": 97}'
    shutil.copytree("hf", "cache/models--me--mine/snapshots/1a2b")
    assert folder_for(Path("cache/models--me--mine/snapshots/1a2b")) == Path()
    assert name_of_model(load("cache/models--me--mine/snapshots/1a2b")) == "me/mine"
    shutil.copytree("hf", "data/snapshots/a")
    assert folder_for(Path("data/snapshots/a")) == Path("data/snapshots/a")
    shutil.copy("report.json", "hf/report.json")
    with pytest.raises(UsageError, match=r"nothing that txl report writes"):
        add_report("hf", data="text")
    said = here.refused(f"report hf --data text {LENGTHS} {PLAIN}")
    assert "hf/report.json: is there, and is nothing that txl report writes" in said
    shutil.copy("hf2/report.json", "hf/report.json")
    here(f"report hf --data text {LENGTHS} {PLAIN}")
    assert read_report(Path("hf/report.json")).name == "hf"


def test_a_model_without_its_text_is_refused(here: Here) -> None:
    shutil.rmtree("text")
    config = Path("run").glob("step_*/config.json")
    for path in config:
        record = json.loads(path.read_text())
        record["data"]["data"] = "nowhere"
        path.write_text(json.dumps(record))
        sign(path.parent)
    assert "nowhere" in here.refused("report run")
    with pytest.raises(UsageError):
        add_report("run")


def test_a_kind_of_word_in_few_stretches_tells_nothing() -> None:
    """However many stretches the text has, and tokens of the kind stand in them."""
    blocks = blocks_of(8000, 100, starts=None, are_read_alone=False)
    saved_N = np.random.default_rng(0).normal(1.0, 0.1, 8000)
    in_five_N = np.arange(8000) < 1000
    assert saved_at(in_five_N, saved_N, blocks) is None
    everywhere = saved_at(np.arange(8000) % 8 == 0, saved_N, blocks)
    assert everywhere is not None
    assert everywhere.low < 1 < everywhere.high
