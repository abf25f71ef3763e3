"""What train, eval and generate leave behind and print."""

import csv
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.cli.conftest import Trained
from tests.forks import console
from txl.data_utils.detokenise import Detokeniser

ROOT = Path(__file__).parents[2]
LINE_2019 = re.compile(
    r"\| epoch +\d+ step +\d+ \| +\d+ batches \| lr \S+ \| ms/batch +\S+ \| loss +\S+ \| ppl +\S+ \| eta \d+:\d\d:\d\d"
)

Call = Callable[..., Any]


def pointed(run: Path, pointer: str) -> Path:
    return run / (run / pointer).read_text().strip()


# train


def test_a_run_holds_a_whole_checkpoint_behind_each_pointer_and_nothing_else(trained: Any) -> None:
    pointers = [pointed(trained.run, pointer) for pointer in ("best", "latest")]
    assert pointers[1].name == "step_00000004"
    for folder in pointers:
        assert {path.name for path in folder.iterdir()} >= {"config.json", "model.safetensors", "vocab.txt"}
    names = {path.name for path in trained.run.iterdir()}
    assert names == {"best", "latest", "tensorboard", "metrics.jsonl", *(folder.name for folder in pointers)}


def test_the_best_checkpoint_has_the_lowest_validation_loss(call: Call, training: list[str], tmp_path: Path) -> None:
    out = call("train", *training, "--lr", 1.0, "--eval_interval", 1).out
    evaluations = re.findall(r"^\| Eval .* at step +(\d+) .* valid ppl +(\S+)$", out, flags=re.MULTILINE)
    step, _ = min(evaluations, key=lambda evaluation: float(evaluation[1]))
    assert pointed(tmp_path / "new_run", "best").name == f"step_{int(step):08d}"


def test_a_checkpoint_records_what_was_typed_and_carries_its_vocabulary(trained: Any) -> None:
    record = json.loads((pointed(trained.run, "latest") / "config.json").read_text())
    found = record["step"], record["model"]["d_head"], record["context"]["mem_len"], record["train"]["max_step"]
    assert found == (4, 8, 8, 4)
    words = (pointed(trained.run, "latest") / "vocab.txt").read_text().split()
    assert set(words) == {"<eos>", "<unk>", *(trained.text / "train.txt").read_text().split()}


def test_tensorboard_gets_curves_that_show_first_what_people_look_for_and_samples(trained: Any) -> None:
    events = EventAccumulator(str(trained.run / "tensorboard")).Reload()
    assert [point.step for point in events.Scalars("loss/train_nats_per_token")] == [2, 4]
    assert [point.step for point in events.Scalars("perplexity/valid")] == [1, 2, 3, 4]
    curves = events.Tags()["scalars"]
    groups = list(dict.fromkeys(tag.partition("/")[0] for tag in sorted(curves)))
    assert groups == ["loss", "perplexity", "rate_and_gradient", "speed_and_memory"]
    assert {"loss/valid_bits_per_character", "perplexity/train", "rate_and_gradient/learning_rate"} <= set(curves)
    assert "_hparams_/session_start_info" in events.PluginTagToContent("hparams")
    samples = events.Tensors("sample/text_summary")
    assert [sample.step for sample in samples] == [1, 2, 3, 4]
    words = samples[-1].tensor_proto.string_val[0].decode().split()
    assert 0 < len(words) <= 50
    assert set(words) <= {"<eos>", *(trained.text / "train.txt").read_text().split()}


def test_a_sample_of_text_changes_nothing(call: Call, training: list[str], tmp_path: Path) -> None:
    for name, length in (("with", 20), ("without", 0)):
        call("train", *training, "--dropout", 0.3, "--work_dir", tmp_path / name, "--sample_length", length)
    assert weights(tmp_path / "with") == weights(tmp_path / "without")


def test_tensorboard_gets_the_pictures_of_an_evaluation(call: Call, run_folder: Path, text: Path) -> None:
    assert call("eval", "--work_dir", run_folder, "--data", text, "--split", "valid", "--mem_len", 0, 8).status == 0
    events = EventAccumulator(str(run_folder / "tensorboard")).Reload()
    (image,) = events.Images("pictures/context")
    assert image.encoded_image_string.startswith(b"\x89PNG")
    assert imread(run_folder / "context.png").std() > 0
    (run_folder / "context.png").unlink()
    call("eval", "--work_dir", run_folder, "--data", text, "--mem_len", 4)
    assert not (run_folder / "context.png").exists()  # of one length


def test_training_ends_with_the_figures_of_the_best_checkpoint_where_asked(
    call: Call, training: list[str], tmp_path: Path
) -> None:
    """Those that eval.py gives, in one table, and the last line of the 2019 code. The best is not the last one."""
    run = tmp_path / "new_run"
    out = call("train", *training, "--eval_test", "--ema", 0.3, "--lr", 0.5, "--scheduler", "constant").out
    assert (run / "best").read_text() != (run / "latest").read_text()
    call("eval", "--work_dir", run, "--json", tmp_path / "all.json")
    rows = {row["split"]: row for row in json.loads((tmp_path / "all.json").read_text())["rows"]}
    for split in ("valid", "test"):
        (line,) = re.findall(rf"^{split} +8 +8 +(\d+) +(\S+) +(\S+) ", out, flags=re.MULTILINE)
        row = rows[split]
        assert line == (str(row["tokens"]), f"{row['nats_per_token']:.4f}", f"{row['perplexity']:.3f}")
    test = f"test loss {row['nats_per_token']:5.2f} | test ppl {row['perplexity']:9.3f}"
    assert f"| End of training | {test}" in out
    record = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert (record["kind"], record["test/ppl"]) == ("test", pytest.approx(rows["test"]["perplexity"]))


def test_a_missing_test_split_is_named_before_training(
    refused: Callable[..., str], training: list[str], text: Path
) -> None:
    (text / "test.txt").unlink()
    assert "test.txt" in refused("train", *training, "--eval_test")


def test_evaluations_read_segments_as_long_as_training_does_unless_told_otherwise(
    call: Call, refused: Callable[..., str], training: list[str], tmp_path: Path
) -> None:
    flags = [word for word in training if word != "--eval_tgt_len"]
    del flags[flags.index("--max_step") - 1]  # its value
    assert call("train", *flags, "--same_length", "--max_step", 1).status == 0
    record = json.loads((pointed(tmp_path / "new_run", "latest") / "config.json").read_text())
    assert record["train"]["eval_tgt_len"] == 8
    assert "--eval_tgt_len 50: longer than --tgt_len 8" in refused(
        "train", *training, "--eval_tgt_len", 50, "--overwrite"
    )


@pytest.mark.parametrize(
    ("entry", "device", "complaint"),
    [
        ("train", "gpu", "no such kind of device"),
        ("eval", "cuda:99", "this machine has"),
        ("generate", "cpu:1", "has 1"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    refused: Callable[..., str], training: list[str], run_folder: Path, entry: str, device: str, complaint: str
) -> None:
    flags = training if entry == "train" else ["--work_dir", str(run_folder)]
    line = refused(entry, *flags, "--device", device)
    assert f"--device {device}: " in line
    assert complaint in line


def test_the_cpu_can_be_named(call: Call, run_folder: Path) -> None:
    assert call("generate", "--work_dir", run_folder, "--length", 1, "--device", "cpu").status == 0


def test_the_console_line_is_that_of_2019(trained: Any) -> None:
    lines = [line for line in trained.out.splitlines() if line.startswith("| epoch")]
    assert [bool(LINE_2019.fullmatch(line)) for line in lines] == [True, True]


def test_an_epoch_begins_anew_when_the_text_is_read(call: Call, training: list[str]) -> None:
    n_segment = 28  # (880 tokens / 4 streams - 1) / 8
    out = call("train", *training, "--max_step", n_segment + 1, "--log_interval", 1, "--eval_interval", 100).out
    counters = re.findall(r"^\| epoch +(\d+) step +(\d+) \| +(\d+) batches", out, flags=re.MULTILINE)
    assert counters[-2:] == [("1", "28", "28"), ("2", "29", "1")]


@pytest.fixture
def short_training(training: list[str]) -> list[str]:
    return [*training, "--max_step", "2", "--eval_interval", "2", "--dropout", "0.1"]


def weights(run: Path) -> dict[str, bytes]:
    return {
        name: tensor.numpy().tobytes()
        for name, tensor in load_file(pointed(run, "latest") / "model.safetensors").items()
    }


def test_one_seed_gives_one_model_and_another_another(call: Call, short_training: list[str], tmp_path: Path) -> None:
    for name, seed in (("first", 1), ("second", 1), ("other", 2)):
        call("train", *short_training, "--work_dir", tmp_path / name, "--seed", seed)
    assert weights(tmp_path / "first") == weights(tmp_path / "second") != weights(tmp_path / "other")


@pytest.fixture
def unnamed_run(call: Call, short_training: list[str], tmp_path: Path) -> Path:
    """What a run leaves that is killed after its first checkpoint and before the pointers to it."""
    call("train", *short_training, "--seed", 1)
    for pointer in ("best", "latest"):
        (tmp_path / "new_run" / pointer).unlink()
    return tmp_path / "new_run"


def test_a_checkpoint_that_no_pointer_names_is_not_written_over(
    refused: Callable[..., str], short_training: list[str], unnamed_run: Path
) -> None:
    line = refused("train", *short_training)
    assert f"--work_dir {unnamed_run}: already holds the checkpoints of a run" in line


def test_a_checkpoint_that_no_pointer_names_is_not_taken_for_one_of_the_run_that_replaces_it(
    call: Call, short_training: list[str], unnamed_run: Path
) -> None:
    (old,) = unnamed_run.glob("step_*/model.safetensors")
    before = old.read_bytes()
    call("train", *short_training, "--seed", 2, "--overwrite")
    assert (pointed(unnamed_run, "latest") / "model.safetensors").read_bytes() != before


def test_adaptive_cutoffs_follow_the_vocabulary(call: Call, short_training: list[str], tmp_path: Path) -> None:
    call("train", *short_training, "--adaptive")
    record = json.loads((pointed(tmp_path / "new_run", "latest") / "config.json").read_text())
    assert record["model"]["cutoffs"] == [int(share * 66) for share in (0.075, 0.15, 0.75)]


# eval


@pytest.fixture
def evaluate(call: Call, run_folder: Path, text: Path, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Evaluates the trained model and returns the rows of the JSON file."""

    def evaluate(*flags: object) -> list[dict[str, Any]]:
        outcome = call("eval", "--work_dir", run_folder, "--data", text, "--json", tmp_path / "result.json", *flags)
        assert outcome.status == 0, outcome.err
        return json.loads((tmp_path / "result.json").read_text())["rows"]

    return evaluate


Evaluate = Callable[..., list[dict[str, Any]]]


def test_every_token_but_the_first_is_counted(evaluate: Evaluate, text: Path) -> None:
    splits = {split: (text / f"{split}.txt").read_text() for split in ("valid", "test")}
    expected = {split: len(words.split()) + words.count("\n") - 1 for split, words in splits.items()}
    assert {row["split"]: row["tokens"] for row in evaluate("--batch_size", 3)} == expected


def test_the_loss_does_not_depend_on_batch_size(evaluate: Evaluate) -> None:
    one, many = ([row["nats"] for row in evaluate("--batch_size", n, "--tgt_len", 3)] for n in (1, 7))
    assert many == pytest.approx(one, rel=1e-5)


def test_a_row_for_every_split_and_memory_length(evaluate: Evaluate) -> None:
    assert [row["split"] for row in evaluate("--split", "all")] == ["valid", "test"]
    assert [row["mem_len"] for row in evaluate("--mem_len", 16, 0, 4, "--split", "test")] == [16, 0, 4]


def test_the_table_shows_what_the_json_holds(call: Call, run_folder: Path, text: Path, evaluate: Evaluate) -> None:
    flags = ["--mem_len", 0, 4, 16]
    out = call("eval", "--work_dir", run_folder, "--data", text, *flags).out
    shown = re.findall(r"^(\w+) +\d+ +(\d+) +(\d+) +([\d.]+) +([\d.]+) +\d+ +[\d-]+$", out, flags=re.MULTILINE)
    assert shown == [
        (r["split"], str(r["mem_len"]), str(r["tokens"]), f"{r['nats_per_token']:.4f}", f"{r['perplexity']:.3f}")
        for r in evaluate(*flags)
    ]


def test_the_json_names_the_checkpoint_which_may_be_any_of_the_run(
    evaluate: Evaluate, run_folder: Path, tmp_path: Path
) -> None:
    evaluate()
    assert json.loads((tmp_path / "result.json").read_text())["checkpoint"] == str(pointed(run_folder, "best"))
    evaluate("--work_dir", pointed(run_folder, "latest"))
    assert json.loads((tmp_path / "result.json").read_text())["checkpoint"] == str(pointed(run_folder, "latest"))


def test_the_best_validation_loss_is_found_again(trained: Any, evaluate: Evaluate) -> None:
    record = json.loads((pointed(trained.run, "best") / "config.json").read_text())
    (row,) = evaluate("--split", "valid")
    assert row["nats_per_token"] == pytest.approx(record["valid_nats_per_token"], rel=1e-5)


def test_a_text_without_a_training_split_is_read_with_the_vocabulary_of_the_checkpoint(
    evaluate: Evaluate, text: Path, tmp_path: Path
) -> None:
    expected = [row["nats"] for row in evaluate()]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for split in ("valid", "test"):
        (elsewhere / f"{split}.txt").write_bytes((text / f"{split}.txt").read_bytes())
    assert [row["nats"] for row in evaluate("--data", elsewhere)] == expected


def test_unknown_words_of_such_a_text_are_counted_in_a_notice(call: Call, run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "test.txt").write_text("bab unread unseen <unk> bad\n")
    outcome = call("eval", "--work_dir", run_folder, "--data", tmp_path / "elsewhere", "--split", "test")
    assert [note.partition("test.txt: ")[2] for note in outcome.notes] == [
        "2 of 6 words are not in the vocabulary and are read as <unk>"
    ]


def test_recurrence_without_limit_is_read_in_one_stream_unless_told_otherwise(
    call: Call, training: list[str], text: Path, tmp_path: Path
) -> None:
    run = tmp_path / "new_run"
    told = call("train", *training, "--recurrence", "same", "--n_layer", 1).out
    assert "| --recurrence same: evaluations read one stream, " in told

    def nats(*flags: object) -> tuple[list[float], str]:
        out = call("eval", "--work_dir", run, "--split", "valid", "--json", tmp_path / "r.json", *flags).out
        return [row["nats"] for row in json.loads((tmp_path / "r.json").read_text())["rows"]], out

    default, one, ten = nats(), nats("--batch_size", 1), nats("--batch_size", 10)
    assert default[0] == one[0] != pytest.approx(ten[0], rel=1e-6)
    assert ["read in one stream" in out for _, out in (default, one, ten)] == [True, False, False]
    record = json.loads((pointed(run, "best") / "config.json").read_text())
    assert default[0][0] / 131 == pytest.approx(record["valid_nats_per_token"], rel=1e-5)


# eval: conventions and documents


def test_the_result_says_how_it_was_had(evaluate: Evaluate, tmp_path: Path) -> None:
    for flags, how in (
        ([], ("txl", "never")),
        (["--convention", "nvidia", "--tgt_len", 4, "--mem_len", 4], ("nvidia", "never")),
        (["--dataset", "text", "--convention", "txl"], ("txl", "never")),
    ):
        evaluate(*flags)
        result = json.loads((tmp_path / "result.json").read_text())
        assert (result["convention"], result["reset"]) == how


@pytest.mark.parametrize(("convention", "n_stream"), [("original", 10), ("nvidia", 16), ("huggingface", 10)])
def test_a_convention_brings_the_streams_of_its_program(evaluate: Evaluate, convention: str, n_stream: int) -> None:
    short = ["--convention", convention, "--tgt_len", 4, "--mem_len", 4]
    by_default, given = (evaluate(*short, *flags) for flags in ([], ["--batch_size", n_stream]))
    assert [row["nats"] for row in by_default] == [row["nats"] for row in given]
    assert [row["tokens"] for row in by_default] == [n_stream * (n // n_stream - 1) for n in (132, 99)]


@pytest.mark.parametrize("flags", ["--mem_len 8", "--mem_len 0"])
def test_conventions_differ_where_they_should(evaluate: Evaluate, flags: str) -> None:
    nats = {
        convention: [
            round(row["nats_per_token"], 6)
            for row in evaluate("--convention", convention, "--batch_size", 10, *flags.split())
        ]
        for convention in ("txl", "original", "nvidia", "huggingface")
    }
    n_way = 4 if "8" in flags else 2  # without memory the others are the same
    assert len({tuple(figures) for figures in nats.values()}) == n_way


def test_bytes_and_characters_are_those_of_the_file_but_for_its_first_token(evaluate: Evaluate, text: Path) -> None:
    for row in evaluate("--batch_size", 3):
        file = (text / f"{row['split']}.txt").read_text()
        missing = len(f" {file.split()[0]}")
        assert row["bytes"] == row["characters"] == len(file) - missing
        assert (row["words"], row["lines"]) == (len(file.split()) - 1, file.count("\n"))


def test_what_was_counted_is_said(call: Call, run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "test.txt").write_text(" bab \u00fcnheard bad \n \n")
    flags = ["--work_dir", run_folder, "--data", tmp_path / "elsewhere", "--split", "test"]
    *_, counted, names, rates, note = call("eval", *flags, "--json", tmp_path / "r.json").out.splitlines()
    assert counted == "test: 4 tokens counted, 25.00% of them <unk>: 2 words and 2 line ends, 16 characters, 17 bytes"
    (row,) = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert names.split() == ["split", "tgt_len", "mem_len", "ppl/word", "bits/char", "bits/byte"]
    assert rates.split() == [
        *("test", "8", "8", f"{row['perplexity']:.3f}"),
        *(f"{row['nats'] / math.log(2) / 16:.4f}", f"{row['nats'] / math.log(2) / 17:.4f}"),
    ]
    assert note == f"test: {row['note']}"
    assert note.startswith("test: 25.00% of the tokens are <unk>, whose spelling is not predicted: figures per word, ")


@pytest.fixture
def articles(text: Path, tmp_path: Path, run_folder: Path, call: Call, training: list[str]) -> list[str]:
    """Flags that evaluate a run on a text with headings: three articles, the second a heading only."""
    folder = tmp_path / "articles"
    folder.mkdir()
    words = (text / "train.txt").read_text()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text(
            f" \n = bab = \n \n{words[:300]}\n \n = baf bad = \n \n = bab = \n \n{words[-99:]}"
        )
    call("train", *training, "--data", folder, "--work_dir", tmp_path / "articles_run")
    return ["--work_dir", str(tmp_path / "articles_run"), "--data", str(folder), "--json", str(tmp_path / "a.json")]


def test_documents_are_read_with_empty_memories(call: Call, articles: list[str], tmp_path: Path) -> None:
    def nats(*flags: object) -> list[float]:
        outcome = call("eval", *articles, "--split", "test", *flags)
        assert outcome.status == 0, outcome.err
        return [row["nats"] for row in json.loads((tmp_path / "a.json").read_text())["rows"]]

    (through,), (apart,) = nats(), nats("--reset", "document")
    assert through != pytest.approx(apart, rel=1e-4)
    for batch_size in (1, 2):
        assert nats("--reset", "document", "--batch_size", batch_size) == pytest.approx([apart], rel=1e-5)
    counts = [json.loads((tmp_path / "a.json").read_text())["rows"][0]["tokens"]]
    nats()
    assert counts == [json.loads((tmp_path / "a.json").read_text())["rows"][0]["tokens"]]


# eval --text


@pytest.fixture
def score_text(call: Call, run_folder: Path, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Scores a text and returns its tokens, read from the JSON file."""

    def score_text(text: str, *flags: object) -> list[dict[str, Any]]:
        (tmp_path / "my.txt").write_text(text, encoding="utf-8")
        path = tmp_path / "tokens.json"
        outcome = call("eval", "--work_dir", run_folder, "--text", tmp_path / "my.txt", "--per_token", path, *flags)
        assert outcome.status == 0, outcome.err
        return json.loads(path.read_text())["tokens"]

    return score_text


ScoreText = Callable[..., list[dict[str, Any]]]


def test_every_token_of_a_text_is_scored(score_text: ScoreText) -> None:
    tokens = score_text("bab  bad\nbaf unread\n")
    assert [(t["position"], t["token"], t["unk"]) for t in tokens] == [
        (0, "bab", False),
        (1, "bad", False),
        (2, "<eos>", False),
        (3, "baf", False),
        (4, "<unk>", True),
        (5, "<eos>", False),
    ]
    assert all(t["nats"] > 0 for t in tokens)


@pytest.mark.parametrize("flags", ["--mem_len 5 --tgt_len 3", "--mem_len 0 --ext_len 4"])
def test_a_text_is_scored_as_a_split_that_begins_with_a_blank_line(
    score_text: ScoreText, evaluate: Evaluate, text: Path, tmp_path: Path, flags: str
) -> None:
    words = (text / "test.txt").read_text()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "test.txt").write_text("\n" + words)
    (row,) = evaluate("--split", "test", "--data", tmp_path / "elsewhere", *flags.split())
    tokens = score_text(words, *flags.split())
    assert len(tokens) == row["tokens"]
    assert sum(t["nats"] for t in tokens) == pytest.approx(row["nats"], rel=1e-5)


def test_a_context_is_read_and_not_scored(score_text: ScoreText, tmp_path: Path) -> None:
    """In one line with the text, or in a line of its own: as if both stood in one file."""
    for before in ("bab bad baf ", "bab bad\n"):
        (tmp_path / "before.txt").write_text(before)
        whole = score_text(before + "bad bab\n")
        part = score_text("bad bab\n", "--context", tmp_path / "before.txt")
        assert [t["token"] for t in part] == ["bad", "bab", "<eos>"]
        assert [t["nats"] for t in part] == pytest.approx([t["nats"] for t in whole[-3:]], rel=1e-6)
        assert part[0]["nats"] != pytest.approx(score_text("bad bab\n")[0]["nats"], rel=1e-3)


def test_running_text_is_written_as_wikitext_is(score_text: ScoreText, call: Call) -> None:
    assert [t["unk"] for t in score_text("bab, bad.", "--tokenise")] == [False, True, False, True]
    assert [t["unk"] for t in score_text("bab, bad.")] == [True, True]


def test_unknown_words_of_a_text_are_named_in_one_notice(call: Call, run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("bab Unheard unseen Unheard\n")
    outcome = call("eval", "--work_dir", run_folder, "--text", tmp_path / "my.txt")
    assert outcome.err == (
        f"note: {tmp_path / 'my.txt'}: 3 of 5 words are not in the vocabulary and are read as <unk>: "
        f"Unheard unseen; for running text there is --tokenise\n"
    )


def test_a_text_can_come_in_and_its_tokens_go_out_through_pipes(
    call: Call, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, score_text: ScoreText
) -> None:
    """Nothing else is then written to standard output."""
    tokens = score_text("bab bad\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"bab bad\n")))
    out = call("eval", "--work_dir", run_folder, "--text", "-", "--per_token", "-").out
    lines = [line.split("\t") for line in out.splitlines()]
    assert lines == [
        ["position", "token", "id", "nats", "unk", "offset", "surface"],
        *(
            [*map(str, [t["position"], t["token"], t["id"], t["nats"], int(t["unk"]), t["offset"]]), t["surface"]]
            for t in tokens
        ),
    ]


def test_every_token_is_found_by_ordinary_readers_of_tsv_and_in_the_text(
    call: Call, run_folder: Path, tmp_path: Path
) -> None:
    text = ' bab " un"read_by_another " \u00fc\n'
    (tmp_path / "my.txt").write_text(text, encoding="utf-8")
    call("eval", "--work_dir", run_folder, "--text", tmp_path / "my.txt", "--per_token", tmp_path / "tokens.tsv")
    with (tmp_path / "tokens.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert [row["token"] for row in rows] == ["bab", "<unk>", "<unk>", "<unk>", "<unk>", "<eos>"]
    assert [row["surface"] for row in rows] == [*text.split(), ""]
    for row in rows:
        assert text[int(row["offset"]) :].startswith(row["surface"])


@pytest.mark.parametrize("flags", ["--dynamic sgd", "--cache_size 30", "--knn_store STORE"])
def test_a_text_is_scored_with_additions_as_a_split_is(
    call: Call, evaluate: Evaluate, run_folder: Path, text: Path, tmp_path: Path, flags: str
) -> None:
    """The text of a split that begins with a blank line; the knn store is made from the training text of --data."""
    words = flags.replace("STORE", str(tmp_path / "store")).split()
    (tmp_path / "elsewhere").mkdir()
    for split in ("train", "valid", "test"):
        (tmp_path / "elsewhere" / f"{split}.txt").write_text(
            "\n" * (split == "test") + (text / f"{split}.txt").read_text()
        )
    plain, added = evaluate("--split", "test", "--data", tmp_path / "elsewhere", *words)
    where = ["--data", text] if "knn" in flags else []
    json_file = ["--json", tmp_path / "text.json"]
    outcome = call("eval", "--work_dir", run_folder, "--text", text / "test.txt", *words, *where, *json_file)
    assert outcome.status == 0, outcome.err
    rows = json.loads((tmp_path / "text.json").read_text())["rows"]
    assert [row["added"] for row in rows] == ["", added["added"]]
    assert [row["nats"] for row in rows] == pytest.approx([plain["nats"], added["nats"]], rel=1e-5)


def test_a_text_at_several_memory_lengths_makes_a_table(
    call: Call, run_folder: Path, text: Path, tmp_path: Path
) -> None:
    flags = ["--text", text / "test.txt", "--mem_len", 16, 0, "--json", tmp_path / "result.json"]
    assert call("eval", "--work_dir", run_folder, *flags).status == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert [(row["split"], row["mem_len"], row["tokens"]) for row in result["rows"]] == [
        ("text", 16, 99),
        ("text", 0, 99),
    ]
    assert result["text"] == str(text / "test.txt")
    assert not (run_folder / "context.png").exists()


def test_the_example_of_the_docs_gives_what_the_program_gives(run_folder: Path, score_text: ScoreText) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/evaluation.md").read_text(), flags=re.DOTALL)
    (example,) = (block for block in blocks if "score_text" in block)
    names: dict[str, Any] = {}
    exec(example.replace("runs/mine", str(run_folder)), names)
    tokens = score_text("the name of the file")
    assert names["nats"].tolist() == pytest.approx([t["nats"] for t in tokens], rel=1e-6)


def test_pictures_go_where_they_are_asked_for(evaluate: Evaluate, run_folder: Path, tmp_path: Path) -> None:
    evaluate("--mem_len", 0, 4, "--split", "test", "--pictures", tmp_path / "seen")
    assert imread(tmp_path / "seen" / "context.png").std() > 0
    assert not (run_folder / "context.png").exists()


# generate


@pytest.fixture
def write(call: Call, run_folder: Path) -> Callable[..., str]:
    """What the trained model writes."""
    return lambda *flags: call("generate", "--work_dir", run_folder, *flags).out


Write = Callable[..., str]


def tokens_of(out: str) -> list[str]:
    """The tokens of a printed text, `<eos>` being a line break; one that ends the output is not a token."""
    assert out.endswith("\n")
    return re.findall(r"\n|[^ \n]+", out[:-1])


def test_a_memory_longer_than_any_text_is_no_burden(write: Write) -> None:
    far = ["--mem_len", 2**31 - 1, "--clamp_len", 2**31 - 1, "--seed", 5]
    written = write(*far, "--length", 30)
    assert written == write("--mem_len", 40, "--seed", 5, "--length", 30)
    assert written != write("--mem_len", 1, "--seed", 5, "--length", 30)


def test_one_seed_writes_one_text_and_another_another(write: Write) -> None:
    one, again, other = (write("--seed", seed, "--length", 30) for seed in (5, 5, 6))
    assert one == again != other


def test_as_many_tokens_are_written_as_asked_for_also_after_a_prompt(write: Write) -> None:
    assert len(tokens_of(write("--length", 1))) == 1
    prompt = " ".join(["bab", "bad", "baf"] * 7)  # longer than a segment
    assert len(tokens_of(write("--prompt", prompt, "--length", 30).removeprefix(prompt))) == 30


def test_a_prompt_can_come_from_standard_input_or_a_file(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"bab ded\nbab\n")))
    out = write("--prompt", "-", "--length", 5)
    assert out.startswith("bab ded\nbab")
    assert len(tokens_of(out.removeprefix("bab ded\nbab"))) == 5
    (tmp_path / "my.txt").write_text("bab ded\nbab\n")
    assert write("--prompt_file", tmp_path / "my.txt", "--length", 5) == out


def test_many_prompts_are_continued_each_as_it_would_be_alone(write: Write, tmp_path: Path) -> None:
    prompts = ["bab ded bab bad", "ded\u2028bab", "", "bab " * 12, "baf"]
    (tmp_path / "my.txt").write_text("\n".join(prompts) + "\n")
    flags = ["--length", 12, "--top_k", 9]
    texts = write("--prompts", tmp_path / "my.txt", "--batch_size", 2, *flags).removesuffix("\n").split("\n---\n")
    alone = [
        write(*(["--prompt", text] if text else []), "--seed", 1111 + i, *flags)[:-1] for i, text in enumerate(prompts)
    ]
    assert texts == alone


def test_samples_of_a_prompt_differ_and_have_consecutive_seeds(write: Write) -> None:
    texts = write("--prompt", "bab", "--num_samples", 3, "--length", 9, "--seed", 7)[:-1].split("\n---\n")
    assert len(set(texts)) == 3
    assert texts[1] + "\n" == write("--prompt", "bab", "--length", 9, "--seed", 8)


def test_a_conversation_is_one_text_in_memory(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns that add nothing go on with the text."""
    greedy = ["--temperature", 0, "--mem_len", 100]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"bab ded\n\n\n")))
    turns = write("--interactive", "--length", 10, *greedy)
    whole = write("--prompt", "bab ded", "--length", 30, *greedy)
    assert "".join(turns.split()) == "".join(whole.removeprefix("bab ded").split())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"bab\n")))
    out = write("--interactive", "--prompt", "ded", "--length", 3, *greedy)
    assert out.startswith("ded ")


@pytest.mark.parametrize("flags", ["--min_p 0.9", "--typical_p 0.2", "--repetition_penalty 3", "--lines 1"])
def test_a_setting_changes_the_text(write: Write, flags: str) -> None:
    many = ["--num_samples", 20, "--length", 15]
    assert write(*many, *flags.split()) != write(*many)


def test_the_text_ends_before_a_string(write: Write) -> None:
    text = write("--length", 30)
    word = text.split()[5]
    assert write("--length", 30, "--stop", "never", word) == text[: text.index(word)] + "\n"


def test_the_text_ends_at_the_end_of_a_line_when_asked(write: Write) -> None:
    cut, finished = write("--length", 40), write("--length", 40, "--finish_line")
    assert finished.startswith(cut.rstrip("\n"))
    assert 40 < len(tokens_of(finished)) < 80
    longer = write("--length", 80)
    assert longer.startswith(finished)  # whose last character is the line break that the model has written


@pytest.mark.parametrize("entry", ["eval", "generate"])
def test_a_closed_standard_output_is_an_error_in_one_line(entry: str, run_folder: Path) -> None:
    done = console(entry, "--work_dir", run_folder, folder=run_folder.parent, closed=True)
    assert done.returncode == 2
    assert done.stderr == f"{entry}.py: standard output is closed; send it to a file, or to /dev/null\n"


def test_words_that_standard_output_cannot_spell_are_escaped(
    call: Call, training: list[str], text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in ("train", "valid"):
        (text / f"{split}.txt").write_text("\u00fcber \u6771\u4eac\n" * 40, encoding="utf-8")
    call("train", *training)
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", out)
    assert call("generate", "--work_dir", tmp_path / "new_run", "--prompt", "\u00fcber", "--length", 3).status == 0
    assert out.buffer.getvalue().startswith(b"\\xfcber ")


def test_greedy_words_are_the_likeliest_whatever_the_seed(write: Write) -> None:
    short = ["--length", 20]
    assert write("--temperature", 0, "--seed", 1, *short) == write("--top_k", 1, "--seed", 2, *short)


def test_unk_is_written_where_it_is_allowed_only(write: Write) -> None:
    many = ["--num_samples", 30, "--length", 20]
    assert "<unk>" in write(*many, "--allow_unk")
    assert "<unk>" not in write(*many)
    assert write(*many) == write(*many, "--no_unk")


def test_unknown_words_of_the_prompt_are_named_in_a_notice(call: Call, run_folder: Path) -> None:
    outcome = call("generate", "--work_dir", run_folder, "--prompt", "bab Unheard unseen Unheard", "--length", 3)
    said = "--prompt: 3 of 4 words are not in the vocabulary and are read as <unk>: Unheard unseen"
    assert outcome.err == f"note: {said}\n"


def test_unknown_words_of_the_prompt_are_printed_as_typed_or_raw(write: Write) -> None:
    assert write("--prompt", "bab unread", "--length", 3).startswith("bab unread ")
    assert write("--prompt", "bab unread", "--length", 3, "--raw").startswith("bab <unk> ")


def test_text_is_in_natural_spelling_unless_raw(call: Call, training: list[str], text: Path, tmp_path: Path) -> None:
    for split in ("train", "valid"):
        (text / f"{split}.txt").write_text("one @-@ two , ( three ) .\n" * 40, encoding="utf-8")
    call("train", *training, "--dataset", "wt2")
    flags = ["--work_dir", tmp_path / "new_run", "--length", 7, "--temperature", 0, "--prompt", "one-two,"]
    natural, raw = call("generate", *flags).out, call("generate", *flags, "--raw").out
    assert natural.startswith("one-two,")
    assert raw.startswith("one @-@ two ,")
    words = raw.replace("\n", " <eos> ").split()[:-1]
    assert natural == "".join(map(Detokeniser(), words)) + "\n"


def test_a_reader_that_has_seen_enough_gets_no_complaint(
    call: Call, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        outcome = call("generate", "--work_dir", run_folder)
    assert (outcome.status, outcome.err) == (141, "")


# from the console


def test_the_three_programs_work_from_the_console(training: list[str], tmp_path: Path) -> None:
    """In another folder than theirs."""
    for program, flags in (
        ("train", training),
        ("eval", ["--work_dir", "new_run"]),
        ("generate", ["--work_dir", "new_run"]),
    ):
        done = console(program, *flags, folder=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


# position encodings


@pytest.mark.slow
@pytest.mark.parametrize("position", ["floater", "learned_absolute", "relative_keys", "rotary"])
def test_an_encoding_of_each_kind_trains_evaluates_at_length_and_writes(
    call: Call, training: list[str], tmp_path: Path, position: str
) -> None:
    if position == "floater":
        pytest.importorskip("torchdiffeq")
    assert call("train", *training, "--position", position, "--max_step", 2, "--eval_interval", 2).status == 0
    run = tmp_path / "new_run"
    record = json.loads((pointed(run, "latest") / "config.json").read_text())
    assert (record["model"]["position"], record["model"]["n_position"]) == (position, 16)
    out = call("eval", "--work_dir", run, "--split", "test", "--mem_len", 0, 8, 60, "--json", tmp_path / "far.json")
    assert out.status == 0, out
    rows = json.loads((tmp_path / "far.json").read_text())["rows"]
    assert [row["mem_len"] for row in rows] == [0, 8, 60]
    assert all(math.isfinite(row["nats"]) for row in rows)
    assert call("generate", "--work_dir", run, "--prompt", "bab", "--length", 20).status == 0


def test_a_position_encoding_goes_on_with_the_run(call: Call, training: list[str], tmp_path: Path) -> None:
    """A flag that was not typed is the checkpoint's, and so is the length of its table."""
    assert call("train", *training, "--attn_type", 3, "--max_step", 2).status == 0
    assert call("train", *training, "--resume", "--max_step", 3, "--max_step_scheduler", 3).status == 0
    again = call("train", *training, "--resume", "--max_step", 4, "--position", "alibi")
    assert "--position alibi: the run in" in again.err
    assert "was started with learned_per_layer" in again.err


def test_scores_and_context_lengths_have_programs_of_their_own(call: Call, trained: Trained) -> None:
    """eval.py --text and --recl are other names of them."""
    text, run = trained.text / "test.txt", ("--work_dir", trained.run, "--per_token", "-")
    assert call("score", text, *run).out == call("eval", *run, "--text", text).out != ""
    flags = "--split test --recl_step 10 --recl_longest 20 --recl_every 5".split()
    assert call("recl", trained.run, *flags).out == call("eval", *flags, "--recl", trained.run).out != ""
    assert "name the file of the text" in call("score", *run).complaints[0]
    assert "name the runs" in call("recl", *flags).complaints[0]
    for program, flag in {"score": "--per_token", "recl": "--recl_every"}.items():
        assert flag in call(program, "--help").out
        assert flag not in call("eval", "--help").out
