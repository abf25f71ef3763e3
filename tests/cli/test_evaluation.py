"""eval.py on the splits of a text: its figures, tables, files and pictures, and its grids of lengths."""

import errno
import json
import math
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cli.conftest import Here, change_weights, config_of, pointed
from txl.evaluation.measures.token_losses import read_losses
from txl.evaluation.plots import _apart
from txl.ops.linear import Linear
from txl.ops.packed import PackedLinear

# figures


def test_a_split_that_is_not_there_is_no_fault_unless_it_is_named(here: Here) -> None:
    Path("text/test.txt").rename("aside.txt")
    done = here("eval --json valid.json")
    assert [row["split"] for row in json.loads(Path("valid.json").read_text())["rows"]] == ["valid"]
    assert "| valid is the only split that is there\n" in done.out
    assert "text/test.txt: no such file" in here.refused("eval --split test")
    Path("text/valid.txt").rename("text/test.txt")
    Path("text/train.txt").unlink()
    assert [row["split"] for row in here.rows("eval")] == ["test"]


def test_every_token_but_the_first_is_counted_and_the_batch_size_changes_no_loss(
    here: Here,
) -> None:
    rows, many = (
        here.rows("eval --batch_size 3"),
        here.rows("eval --batch_size 7 --tgt_len 3 --mem_len 13"),
    )
    one = here.rows("eval --batch_size 1 --tgt_len 3 --mem_len 13")
    assert [row["split"] for row in rows] == ["valid", "test"]
    for row in rows:
        file = Path(f"text/{row['split']}.txt").read_text()
        words, missing = file.split(), len(f" {file.split()[0]}")
        assert row["tokens"] == len(words) + file.count("\n") - 1
        assert row["bytes"] == row["characters"] == len(file) - missing
        assert (row["words"], row["lines"]) == (len(words) - 1, file.count("\n"))
    assert [row["nats"] for row in many] == pytest.approx([row["nats"] for row in one], rel=1e-5)


def test_an_evaluation_keeps_what_it_sums(here: Here) -> None:
    rows = here.rows("eval --mem_len 0 5 --token_losses kept/losses.npz")
    kept = read_losses(Path("kept/losses.npz"))
    assert [(one.split, one.context["mem_len"]) for one in kept] == [
        (row["split"], row["mem_len"]) for row in rows
    ]
    assert [np.nansum(one.nats_N, dtype=np.float64) for one in kept] == pytest.approx(
        [row["nats"] for row in rows]
    )
    assert [int((one.visible_N > 0).sum()) for one in kept] == [row["tokens"] for row in rows]
    assert "end its name in .npz" in here.refused("eval --token_losses losses.json")


def test_both_readings_are_in_the_table_the_files_and_a_sentence(here: Here) -> None:
    result = here.result("eval --mem_len 0 5 --borders both --token_losses losses.npz")
    rows, out = result["rows"], result["out"]
    manners = [(borders, mem_len) for borders in ("cut", "aside") for mem_len in (0, 5)]
    assert [(row["borders"], row["mem_len"]) for row in rows] == 2 * manners
    assert (
        len({(row["split"], row["tokens"], row["words"], row["characters"]) for row in rows}) == 2
    )
    # in two tables
    assert len(re.findall(r"^test +8 +\d+ .*  borders aside$", out, flags=re.MULTILINE)) == 2
    assert "\nborders aside: each token is predicted late in its segment" in out
    said = "memory 5 in place of none: too short to tell, 1 stretch of 200 tokens; 20 are needed"
    assert out.splitlines()[-3:-1] == [
        f"{split}, segments of 8: {said}" for split in ("valid", "test")
    ]
    assert [(gain["split"], gain["longer"], gain["in_all"]) for gain in result["gains"]] == [
        ("valid", 5, None),
        ("test", 5, None),
    ]
    kept = read_losses(Path("losses.npz"))
    assert [one.borders for one in kept] == [row["borders"] for row in rows]
    assert [np.nansum(one.nats_N, dtype=np.float64) for one in kept] == pytest.approx(
        [row["nats"] for row in rows]
    )
    alone = here.rows("eval --mem_len 5 --borders aside --split test --batch_size 3")
    assert [row["nats"] for row in alone] == pytest.approx([rows[-1]["nats"]], rel=1e-5)
    assert "--borders aside reads several times" in here.refused(
        "eval --borders aside --dynamic sgd"
    )


def test_the_checkpoint_may_be_any_of_the_run_and_its_validation_loss_is_found_again(
    here: Here,
) -> None:
    best = here.result("eval --split valid")
    assert best["checkpoint"] == str(pointed(Path("run"), "best"))
    latest = here.result(f"eval --split valid --work_dir {pointed(Path('run'))}")
    assert latest["checkpoint"] == str(pointed(Path("run")))
    expected = config_of(Path("run"))["valid_nats_per_token"]
    assert latest["rows"][0]["nats_per_token"] == pytest.approx(expected, rel=1e-5)


def test_what_was_counted_and_what_is_unknown_is_said(here: Here) -> None:
    Path("other").mkdir()
    Path("other/test.txt").write_text(" bab \u00fcnheard bad \n \n")
    outcome = here("eval --data other --split test --json result.json")
    assert outcome.notes[0].endswith("1 of 5 words are not in the vocabulary and are read as <unk>")
    names, rates, counted, note = outcome.out.splitlines()
    row = here.row("eval --data other --split test")
    assert (
        counted
        == "test: 4 tokens counted, 25.00% of them <unk>: 2 words and 2 line ends, 16 characters, 17 bytes"
    )
    figures = dict(zip(re.split(r"(?<!peak) +", names), rates.split(), strict=True))
    assert figures["perplexity"] == figures["ppl/word"] == f"{row['perplexity']:.3f}"
    assert figures["bits/char"] == f"{row['nats'] / math.log(2) / 16:.4f}"
    assert figures["bits/byte"] == f"{row['nats'] / math.log(2) / 17:.4f}"
    assert note == f"test: {row['note']}"
    assert note.startswith(
        "test: 25.00% of the tokens are <unk>, whose spelling is not predicted: figures per word, "
    )


def test_text_that_is_held_out_otherwise_than_in_the_training_may_be_of_it_which_is_said(
    here: Here,
) -> None:
    """A vocabulary of bytes does not show that the text is another."""
    shutil.copy("text/train.txt", "whole.txt")
    here("train --data whole.txt --dataset bytes --max_step 1")
    as_trained = "eval --work_dir new --data whole.txt --split test"
    assert not here(as_trained).notes
    (note,) = here(f"{as_trained} --held_out 0.3").notes
    assert "whole.txt: has changed since the training of new/step_00000001, or is split" in note
    Path("whole.txt").write_text(Path("text/train.txt").read_text()[:2000])
    assert here(as_trained).notes == [note]
    shutil.copy("text/train.txt", "other.txt")
    assert not here(f"{as_trained} --data other.txt --held_out 0.3").notes


def test_each_convention_has_streams_and_figures_of_its_own(here: Here) -> None:
    found = {}
    for convention, n_stream in {
        "txl": 10,
        "original": 10,
        "nvidia": 16,
        "huggingface": 10,
    }.items():
        result = here.result(f"eval --split test --convention {convention} --tgt_len 4 --mem_len 4")
        assert (result["convention"], result["reset"]) == (convention, "never")
        (row,) = result["rows"]
        assert row["tokens"] == (98 if convention == "txl" else n_stream * (99 // n_stream - 1))
        found[convention] = round(row["nats_per_token"], 6)
    assert len(set(found.values())) == 4


# grids, tables and pictures


def test_a_grid_has_a_row_for_each_pair_of_lengths_in_the_table_and_the_file_and_a_picture(
    here: Here,
) -> None:
    from matplotlib.image import imread
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = here.result("eval --split test --tgt_len 3 8 --mem_len 0 4")
    rows, pattern = (
        result["rows"],
        r"^(\w+) +(\d+) +(\d+) +(\d+) +([\d.]+) +([\d.]+)(?: +[\d.]+){3} +\d+ +[\d-]+$",
    )
    assert [(row["tgt_len"], row["mem_len"]) for row in rows] == [(3, 0), (3, 4), (8, 0), (8, 4)]
    lengths = ("tgt_len", "mem_len", "tokens")
    assert re.findall(pattern, result["out"], flags=re.MULTILINE) == [
        (
            "test",
            *(str(row[x]) for x in lengths),
            f"{row['nats_per_token']:.4f}",
            f"{row['perplexity']:.3f}",
        )
        for row in rows
    ]
    for row in rows:
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["seconds"])
        assert row["peak_bytes"] is None or row["peak_bytes"] > 2**20
    assert here.row("eval --split test --tgt_len 8 --mem_len 4")["nats"] == rows[3]["nats"]
    assert imread("context.png").std() > 0  # beside the JSON file
    (image,) = EventAccumulator("run/tensorboard").Reload().Images("pictures/context")
    assert image.encoded_image_string.startswith(b"\x89PNG")


def test_pictures_go_where_they_are_asked_for_and_no_others_are_drawn(here: Here) -> None:
    here("eval --mem_len 4")
    assert not list(Path().rglob("*.png"))
    here("eval --mem_len 0 4 --split test --pictures seen")
    assert list(Path().rglob("*.png")) == [Path("seen/context.png")]


def test_results_that_cannot_be_written_are_refused_before_the_evaluation(here: Here) -> None:
    outcome = here("eval --json text", status=2)
    assert (outcome.out, outcome.err) == ("", "eval.py: text: Is a directory; check the name\n")


def test_two_readings_of_one_memory_are_no_comparison_which_is_said(here: Here) -> None:
    said = "--borders both: compares memories; give --mem_len at least two lengths\n"
    assert here("eval --split test --mem_len 4 --borders both").out.endswith(said)
    assert "give --mem_len" not in here("eval --split test --mem_len 0 4 --borders both").out


def test_a_run_that_cannot_be_written_to_is_evaluated_without_a_picture(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("txl.evaluation.plots.require_writable", read_only)
    assert "no picture is drawn" in here("eval --split test --mem_len 0 8").err


@pytest.mark.usefixtures("undrawn")
def test_attention_by_distance_is_written(here: Here) -> None:
    for row in here.rows("eval --attention_by_distance --split test --mem_len 0 5"):
        shown = row["attention_by_distance"]
        assert shown["tokens"] == row["tokens"]
        assert shown["bins"][-1]["to"] == row["tgt_len"] + row["mem_len"] - 1
        for head in (head for layer in shown["share"] for head in layer):
            assert sum(head) == pytest.approx(1, rel=1e-6)


def test_labels_of_close_lengths_do_not_touch() -> None:
    from matplotlib.figure import Figure

    axes, lengths = Figure(figsize=(6, 4)).subplots(), [0, 64, 65, 128, 640]
    axes.set_xscale("symlog", linthresh=64)
    axes.plot(lengths, lengths)
    assert _apart(axes, lengths) == [0, 65, 128, 640]


def test_scores_have_a_program_of_their_own(here: Here) -> None:
    """eval.py --text is another name of it."""
    score = here("score text/test.txt --work_dir run --per_token -").out
    assert score == here("eval --text text/test.txt --per_token -").out != ""
    assert "--per_token" in here("score --help").out
    assert "--per_token" not in here("eval --help").out


# half precision


@pytest.fixture
def product_kinds(monkeypatch: pytest.MonkeyPatch) -> set[torch.dtype]:
    """The numbers that linear maps have given."""
    seen = set()

    def watch(kind: type[Linear] | type[PackedLinear]) -> None:
        forward = kind.forward

        def watched(self: Linear | PackedLinear, x: torch.Tensor) -> torch.Tensor:
            out = forward(self, x)
            seen.add(out.dtype)
            return out

        monkeypatch.setattr(kind, "forward", watched)

    watch(Linear)
    watch(PackedLinear)
    return seen


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_products_are_made_in_the_numbers_asked_for(
    here: Here, product_kinds: set[torch.dtype], dtype: str
) -> None:
    for line in ("eval --split valid", "generate --length 20 --prompt 'bab ded' --top_p 0.9"):
        product_kinds.clear()
        here(f"{line} --dtype {dtype}")
        assert product_kinds == {getattr(torch, dtype)}


@pytest.mark.parametrize(
    "line",
    [
        "eval --split valid --cache_size 30",
        "eval --text text/test.txt",
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_figures_in_bfloat16_are_nearly_those_in_float32(here: Here, line: str) -> None:
    results = [here.result(f"{line} --dtype {dtype}") for dtype in ("float32", "bfloat16")]
    assert [result["dtype"] for result in results] == ["float32", "bfloat16"]
    full, half = (result["rows"] for result in results)
    for one, other in zip(full, half, strict=True):
        assert other["perplexity"] == pytest.approx(one["perplexity"], rel=2e-2)
        assert other["perplexity"] != pytest.approx(one["perplexity"], rel=1e-7)


@pytest.mark.parametrize(
    "line",
    [
        "eval --split valid",
        "eval --text text/test.txt",
        "generate",
    ],
)
def test_a_model_that_leaves_the_range_of_float16_is_refused(here: Here, line: str) -> None:
    change_weights(Path("run"), lambda weight: weight * 1e6)
    assert "--dtype float16: " in here.refused(f"{line} --dtype float16")
    assert not list(Path().rglob("*.png"))
    if line == "generate":
        here(f"{line} --dtype bfloat16")


@pytest.mark.parametrize("line", ["eval", "eval --text text/test.txt"])
def test_a_loss_that_is_no_number_is_an_error(here: Here, line: str) -> None:
    change_weights(Path("run"), lambda weight: weight * 1e38)
    assert "its loss is nan" in here.refused(line)


def test_lengths_are_judged_as_they_are_read(here: Here) -> None:
    """Not those of the training, which others are laid over."""
    for trained, asked in (
        ("--mem_len 0", "--mem_len 6 --same_length"),
        ("--same_length", "--mem_len 0 --no_same_length"),
    ):
        here(f"train --max_step 1 --overwrite {trained}")
        row = here.row(f"eval --work_dir new --split valid {asked}")
        assert (row["mem_len"], row["same_length"]) == ((6, True) if "6" in asked else (0, False))
        here(f"score text/test.txt --work_dir new {asked}")
