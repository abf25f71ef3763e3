"""What train.py leaves behind and prints, and the settings that change what it reads, keeps or reports."""

import dataclasses
import itertools
import re
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import txl
from tests.cli.conftest import Here, Trained, config_of, pointed, records, train_here
from tests.cli.test_flags import read
from txl.runs.resolve import ENDLESS, with_batch_size, without_last_update
from txl.runtime.distributed import Ranks
from txl.training import loop
from txl.training.step import TrainState

LINE_2019 = re.compile(
    r"\| epoch +\d+ step +\d+ \| +\d+ batches \| lr \S+ \| ms/batch +\S+ \| loss +\S+ \| ppl +\S+ \| eta \d+:\d\d:\d\d"
)


def weights(run: str) -> dict[str, bytes]:
    held = load_file(pointed(Path(run)) / "model.safetensors")
    return {name: tensor.numpy().tobytes() for name, tensor in held.items()}


# what is left behind


def test_a_run_holds_whole_checkpoints_what_was_typed_and_nothing_else(trained: Trained) -> None:
    best, latest = pointed(trained.run, "best"), pointed(trained.run)
    names = {path.name for path in trained.run.iterdir()}
    assert names == {
        "best",
        "latest",
        "tensorboard",
        "metrics.jsonl",
        "log.txt",
        best.name,
        "step_00000004",
    }
    losses = {r["step"]: r["valid/nll_nats"] for r in records(trained.run, "valid")}
    assert (latest.name, int(best.name[-8:])) == (
        "step_00000004",
        min(losses, key=lambda step: losses[step]),
    )
    for folder in (best, latest):
        assert {path.name for path in folder.iterdir()} >= {
            "config.json",
            "model.safetensors",
            "vocab.txt",
        }
    record, words = config_of(trained.run), (trained.text / "train.txt").read_text().split()
    found = (
        record["step"],
        record["model"]["d_head"],
        record["context"]["mem_len"],
        record["train"]["max_step"],
    )
    assert found == (4, 8, 8, 4)
    assert set((latest / "vocab.txt").read_text().split()) == {"<eos>", "<unk>", *words}
    lines = [line for line in trained.out.splitlines() if line.startswith("| epoch")]
    assert [bool(LINE_2019.fullmatch(line)) for line in lines] == [True, True]


def test_tensorboard_gets_curves_that_show_first_what_people_look_for_and_samples(
    trained: Trained,
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trained.run / "tensorboard")).Reload()
    assert [point.step for point in events.Scalars("loss/train_nats_per_token")] == [2, 4]
    assert [point.step for point in events.Scalars("perplexity/valid")] == [1, 2, 3, 4]
    curves = events.Tags()["scalars"]
    groups = list(dict.fromkeys(tag.partition("/")[0] for tag in sorted(curves)))
    assert groups == ["loss", "perplexity", "rate_and_gradient", "speed_and_memory"]
    assert {
        "loss/valid_bits_per_character",
        "perplexity/train",
        "rate_and_gradient/learning_rate",
    } <= set(curves)
    assert "_hparams_/session_start_info" in events.PluginTagToContent("hparams")
    samples = events.Tensors("sample/text_summary")
    assert [sample.step for sample in samples] == [1, 2, 3, 4]
    words = samples[-1].tensor_proto.string_val[0].decode().split()
    assert 0 < len(words) <= 50
    assert set(words) <= {"<eos>", *(trained.text / "train.txt").read_text().split()}


def test_as_many_checkpoints_are_kept_as_asked_for_and_the_best_one(here: Here) -> None:
    here("train --keep_last 2 --lr 3 --scheduler constant")
    losses = [record["valid/nll_nats"] for record in records(Path("new"), "valid")]
    assert losses[0] == min(losses)
    assert sorted(path.name for path in Path("new").glob("step_*")) == [
        f"step_0000000{i}" for i in (1, 3, 4)
    ]
    assert pointed(Path("new"), "best").name == "step_00000001"


def test_training_ends_with_the_figures_of_the_best_checkpoint_where_asked(here: Here) -> None:
    """Those that eval.py gives, in one table, and the last line of the 2019 code. The best is not the last one."""
    out = here("train --eval_test --ema 0.3 --lr 0.5 --scheduler constant").out
    assert Path("new/best").read_text() != Path("new/latest").read_text()
    rows = {row["split"]: row for row in here.rows("eval --work_dir new")}
    for split, row in rows.items():
        (line,) = re.findall(rf"^{split} +8 +8 +(\d+) +(\S+) +(\S+) ", out, flags=re.MULTILINE)
        assert line == (
            str(row["tokens"]),
            f"{row['nats_per_token']:.4f}",
            f"{row['perplexity']:.3f}",
        )
    test = rows["test"]
    line = f"| End of training | test loss {test['nats_per_token']:5.2f} | test ppl {test['perplexity']:9.3f}"
    assert line in out
    assert records(Path("new"))[-1]["test/ppl"] == pytest.approx(test["perplexity"])


def test_a_short_valid_split_does_not_shorten_the_memory_of_the_test_split(here: Here) -> None:
    """A memory is at most as long as its own text."""
    valid = Path("text/valid.txt")
    valid.write_text("".join(valid.read_text().splitlines(keepends=True)[:3]))
    out = here("train --eval_test --mem_len 60").out
    lengths = dict(re.findall(r"^(valid|test) +8 +(\d+) ", out, flags=re.MULTILINE))
    assert int(lengths["valid"]) < 60 == int(lengths["test"])
    rows = here.rows("eval --work_dir new --split test")
    assert f"{rows[0]['perplexity']:9.3f}" == out.splitlines()[-2].split("ppl ")[1]


# what decides the weights


def test_one_seed_gives_one_model_whatever_is_sampled_and_another_another(here: Here) -> None:
    for name, flags in {
        "a": "--seed 1",
        "b": "--seed 1 --sample_length 20",
        "c": "--seed 2",
    }.items():
        here(f"train --work_dir {name} --max_step 2 --dropout 0.3 {flags}")
    assert weights("a") == weights("b") != weights("c")


def test_no_clipping_is_said_with_0_or_infinity(here: Here) -> None:
    for clip in ("0", "inf", "1e9"):
        here(f"train --work_dir {clip} --max_step 2 --clip {clip}")
    assert weights("0") == weights("inf") == weights("1e9")
    here("train --work_dir 0 --max_step 2 --clip inf --resume")


def test_an_epoch_begins_anew_when_the_text_is_read(here: Here) -> None:
    n_segment = 6  # (880 tokens / 4 streams - 1) / 40
    out = here(
        f"train --tgt_len 40 --max_step {n_segment + 1} --log_interval 1 --eval_interval 100"
    ).out
    counters = re.findall(
        r"^\| epoch +(\d+) step +(\d+) \| +(\d+) batches", out, flags=re.MULTILINE
    )
    assert counters[-2:] == [("1", "6", "6"), ("2", "7", "1")]


def test_the_batch_is_that_of_a_process_times_the_processes(here: Here) -> None:
    for n_process in (1, 2):
        typed, last = {"local_batch_size": 3}, Ranks(n_process - 1, n_process, torch.device("cpu"))
        assert with_batch_size(typed, last)["batch_size"] == 3 * n_process
    assert last.columns(6) == slice(3, 6)
    here("train --local_batch_size 4 --max_step 2")
    assert records(Path("new"), "train")[0]["tokens"] == 2 * 4 * 8


def test_settings_that_are_typed_are_those_of_the_run(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = (
        "--varlen --roll --optim adamw --beta1 0.8 --beta2 0.9 --epsilon 1e-06 --weight_decay 0.1 --scheduler dev_perf "
        "--warmup_step 1 --warmup_convention original --decay_rate 0.3 --patience 1 --lr_min 1e-05 --init uniform "
        "--init_range 0.2 --proj_init_std 0.3 --tf32 --recompute --div_val 2 --cutoffs 10 30 --min_freq 1 "
        "--max_size 50 --attn_keep_mib 8 --shard --async_save"
    )
    budgets = []
    spy = lambda model, impl, *, keep_mib: budgets.append(keep_mib)  # noqa: E731
    monkeypatch.setattr("txl.runs.training.use_attention", spy)
    # its default: it is not read with --init uniform
    out = here(f"train --init_std 0.02 {flags} --max_step 2").out
    assert budgets == [8]
    assert "| --shard: one process has nothing to share out" in out
    (start,) = records(Path("new"), "start")
    settings = {**start["train"], **start["model"], **start["data"]}
    typed = {
        name: value.split() or ["True"]
        for name, _, value in (w.partition(" ") for w in flags[2:].split(" --"))
    }
    asked = {
        name: [*map(str, one)] if isinstance(one := settings[name], list) else [str(one)]
        for name in typed
    }
    assert asked == typed
    assert (
        start["remembered_floats"]
        == settings["n_layer"] * start["context"]["mem_len"] * settings["d_model"]
        > 0
    )


def test_train_py_is_six_calls_from_the_first_step(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is `launch`, which starts every program."""
    calls: list[list[str]] = []
    package, step = str(Path(txl.__file__).parent), TrainState.step

    def noted(*args: Any) -> torch.Tensor:
        frames = traceback.extract_stack()[:-1]
        calls.append([frame.name for frame in frames if frame.filename.startswith(package)])
        return step(*args)

    monkeypatch.setattr(TrainState, "step", noted)
    here("train --max_step 1")
    assert calls == [["run", "main", "train", "train"]]


# what is reported


TARGETS = {
    "--target_perplexity 1.5": ["is above --target_perplexity 1.5"],
    "--target_throughput 1e12": ["tokens/s are below --target_throughput 1000000000000.0"],
    "--target_perplexity 1e9 --target_throughput 1e-9": [],
}


def test_a_missed_target_is_named_and_ends_with_status_1(here: Here) -> None:
    for flags, missed in TARGETS.items():
        out = here(f"train --overwrite --max_step 2 {flags}", status=len(missed)).out
        assert (
            re.findall(r"^\| missed: .* ((?:is|tokens/s) .*)$", out, flags=re.MULTILINE) == missed
        )
        assert pointed(Path("new")).name == "step_00000002"  # it is saved all the same


def test_evaluations_read_as_many_segments_as_asked_for(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[tuple[int, int]] = []
    scored: list[int] = []
    evaluate = loop.evaluate

    def noted(model: Any, segments: Any, context: Any) -> Any:
        read: list[Any] = []
        score = evaluate(model, (read.append(segment) or segment for segment in segments), context)
        counted.append((len(read), len(read[0].input_BT)))
        return score

    monkeypatch.setattr(loop, "evaluate", noted)
    for batch_size, limit in ((2, -1), (3, -1), (2, 3), (2, 0)):
        here(
            f"train --max_step 1 --overwrite --eval_batch_size {batch_size} --max_eval_steps {limit}"
        )
        scored.append(records(Path("new"), "valid")[-1]["scored_tokens"])
    (whole, _), (fewer, _), *_ = counted
    assert whole > fewer > 3
    assert counted == [(whole, 2), (fewer, 3), (3, 2), (whole, 2)]
    assert scored[0] == scored[1] == scored[3] > scored[2] > 0


def test_validations_of_other_tokens_are_not_compared(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few easy ones at first would stay the best."""
    worse = itertools.count(10)
    evaluate = loop.evaluate

    def scaled(*of: Any) -> Any:
        score = evaluate(*of)
        return dataclasses.replace(score, nats=score.nats * next(worse))

    monkeypatch.setattr(loop, "evaluate", scaled)
    here("train --max_step 2 --scheduler constant --max_eval_steps 3")
    here("train --resume --max_step 4")
    assert pointed(Path("new"), "best").name == "step_00000001"
    said = here("train --resume --max_step 6 --max_eval_steps -1").out
    assert re.search(r"this validation reads \d+ tokens, those before \d+: their best", said)
    assert pointed(Path("new"), "best").name == "step_00000005"


def test_recurrence_without_limit_is_evaluated_in_one_stream_unless_told_otherwise(
    here: Here,
) -> None:
    said = here("train --recurrence same --n_layer 1").out
    assert "| --recurrence same: evaluations read one stream, " in said
    found = [
        here.result(f"eval --work_dir new --split valid {flags}")
        for flags in ("", "--batch_size 1")
    ]
    many = here.row("eval --work_dir new --split valid --batch_size 10")
    (default, one), best = (
        [result["rows"][0]["nats"] for result in found],
        pointed(Path("new"), "best"),
    )
    assert default == one != pytest.approx(many["nats"], rel=1e-6)
    assert ["read in one stream" in result["out"] for result in found] == [True, False]
    losses = {r["step"]: r["valid/nll_nats"] for r in records(Path("new"), "valid")}
    assert many["nats_per_token"] != pytest.approx(losses[int(best.name[-8:])], rel=1e-6)
    assert found[0]["rows"][0]["nats_per_token"] == pytest.approx(
        losses[int(best.name[-8:])], rel=1e-5
    )


# by document

BY_DOCUMENT = "--reset document --roll --varlen --dropout 0.1 --eval_test"


@pytest.fixture(scope="module")
def of_articles(tmp_path_factory: pytest.TempPathFactory, trained: Trained) -> Trained:
    """A training by document, on a text with a heading before every third line."""
    folder = tmp_path_factory.mktemp("articles")
    shutil.copytree(trained.text, folder / "text", ignore=shutil.ignore_patterns("txl-cache"))
    for path in (folder / "text").glob("*.txt"):
        lines = path.read_text().splitlines()
        path.write_text(
            "".join(" = bab = \n" * (i % 3 == 0) + f"{line}\n" for i, line in enumerate(lines))
        )
    return train_here(folder, BY_DOCUMENT)


def last_loss(run: Path, kind: str) -> float:
    return records(run, kind)[-1][f"{kind}/nll_nats"]


def test_evaluations_follow_a_training_by_document(here: Here, of_articles: Trained) -> None:
    """Whatever the batch size; with memories that are never emptied the loss is another."""
    evaluated = (
        f"eval --work_dir {quote(str(of_articles.run))} --data {quote(str(of_articles.text))}"
    )
    best = min(r["valid/nll_nats"] for r in records(of_articles.run, "valid"))
    assert here.row(f"{evaluated} --split valid")["nats_per_token"] == pytest.approx(best, rel=1e-5)
    test = here.row(f"{evaluated} --split test --batch_size 2")
    assert test["nats_per_token"] == pytest.approx(last_loss(of_articles.run, "test"), rel=1e-5)
    never = here.row(f"{evaluated} --split test --reset never")
    assert never["tokens"] == test["tokens"]
    assert never["nats"] != pytest.approx(test["nats"], rel=1e-3)


def test_a_training_by_document_is_resumed_as_if_never_stopped(
    here: Here, of_articles: Trained
) -> None:
    line = f"train --data {quote(str(of_articles.text))} {BY_DOCUMENT} --max_step_scheduler 4"
    here(f"{line} --max_step 3")
    here(f"{line} --resume")
    assert last_loss(Path("new"), "valid") == last_loss(of_articles.run, "valid")


def test_chunks_and_recomputation_change_no_loss_by_document(
    here: Here, of_articles: Trained
) -> None:
    losses = []
    for flags in (
        "--reset never",
        "--reset document",
        "--reset document --batch_chunk 2 --recompute",
    ):
        to = "--work_dir new --overwrite --max_step 2 --dtype float32"
        here(f"train --data {quote(str(of_articles.text))} {to} {flags}")
        losses.append(last_loss(Path("new"), "train"))
    assert losses[2] == pytest.approx(losses[1], rel=1e-5)
    assert losses[1] != pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize(
    ("flags", "context", "parts", "note"),
    [
        ("--memory compressive", {"compressed_len": 8}, 1, ""),
        ("--memory compressive --mem_len 3 --compressed_len 5", {"compressed_len": 5}, 1, ""),
        ("--memory infini", {"mem_len": 8}, 4, ""),
        ("--memory neural --tgt_len 3 --eval_tgt_len 3", {"tgt_len": 3}, 3, ""),
        ("--memory recurrent_tokens --mem_len 0", {}, 4, ""),
        (
            "--memory infini --memory_parts 1",
            {},
            1,
            "--memory_parts 1: nothing teaches --memory infini what to write",
        ),
        ("--memory infini --ext_len 2", {}, 1, "give 2 or more, without --ext_len"),
        (
            "--memory none --mem_len 0 --memory_parts 4",
            {},
            4,
            "nothing is remembered, so a token sees 2 of 8 tokens",
        ),
        (
            "--mem_len 0 --memory_parts 2",
            {},
            2,
            "nothing is remembered, so a token sees 4 of 8 tokens",
        ),
        ("--memory_parts 2", {}, 2, ""),
    ],
)
def test_a_memory_remembers_and_learns_to_unless_that_is_said(
    here: Here, flags: str, context: dict[str, int], parts: int, note: str
) -> None:
    outcome = here(f"train {flags} --max_step 1 --sample_length 0")
    found = config_of(Path("new"))
    assert found["train"]["memory_parts"] == parts
    assert found["context"] == found["context"] | context
    assert [note in line for line in outcome.notes] == [True] * bool(note)


def test_what_reads_a_model_advises_no_other_memory_or_encoding(here: Here) -> None:
    here("train --memory none --mem_len 0 --position rotary --max_step 1 --sample_length 0")
    for flags, name in {
        "eval --same_length": "--memory none",
        "eval --mem_len 3": "--memory none",
        "generate --mem_len 3": "--memory none",
        "eval --clamp_len 3": "--position rotary",
    }.items():
        said = here.refused(f"{flags} --work_dir new")
        assert name in said
        assert "or use" not in said


def test_what_a_compressive_memory_holds_without_a_number_is_as_much_as_its_memory() -> None:
    model = txl.TransformerXL(
        txl.ModelConfig(n_token=9, n_layer=1, memory="compressive", compress_rate=2)
    )
    memory, token_BT = None, torch.zeros(1, 4, dtype=torch.int64)
    for _ in range(6):
        _, memory = model.nll(token_BT, token_BT, memory, txl.Context(tgt_len=4, mem_len=3))
    assert isinstance(memory, txl.Memory)
    assert memory.named()["0.compressed"].shape[1] == 3


def test_a_training_by_the_clock(here: Here) -> None:
    """With no time, one update; evaluations are not by updates."""
    out = here("train --minutes 1e-9 --eval_interval 3").out
    assert out.count("| Eval ") == 1
    assert config_of(Path("new"))["step"] == 1
    assert "none are left; raise --minutes to go on" in here("train --minutes 1e-9 --resume").out
    here("train --minutes 9 --max_step 4 --resume")
    assert config_of(Path("new"))["step"] == 4
    refused = here.refused("train --overwrite --minutes 1 --warmup_convention original")
    assert "sets the rate by updates, --minutes by the clock" in refused


def test_a_run_goes_on_with_the_conventions_that_it_began_with(here: Here) -> None:
    """Also where its preset names others since."""
    here("train --warmup_step 3 --max_step 1 --max_step_scheduler 4")
    done = here("train --warmup_step 3 --warmup_convention original --max_step 4 --resume")
    assert "--warmup_convention original: the run goes on with txl, as it began" in done.err
    assert config_of(Path("new"))["train"]["warmup_convention"] == "txl"
    here(
        "train --warmup_step 3 --warmup_convention original --max_step 1 --max_step_scheduler 4 --overwrite"
    )
    here("train --warmup_step 3 --max_step 4 --resume")
    assert config_of(Path("new"))["train"]["warmup_convention"] == "original"


def test_minutes_take_the_place_of_updates() -> None:
    found = without_last_update({"minutes": 5.0})
    assert found["max_step"] == found["max_step_scheduler"] == ENDLESS
    assert without_last_update({"minutes": 5.0, "max_step": 3}) == {"minutes": 5.0, "max_step": 3}
    assert without_last_update({"lr": 1.0}) == {"lr": 1.0}
    assert "max_step" not in read("train", "--preset", "tiny", "--minutes", "5")


def test_whether_updates_are_recorded_is_left_to_the_program(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says which and why. A resumed run keeps the setting; here work is repeated by doing it again."""
    n_recorded = 0

    def record(work: Callable[[], None]) -> Callable[[], None]:
        nonlocal n_recorded
        n_recorded += 1
        return work

    shape = "--adaptive --cutoffs 10 15 --max_step_scheduler 20 --eval_interval 50"
    for run, flags in (("plain", "--no_cuda_graph"), ("new", "--cuda_graph auto")):
        out = here(f"train {shape} --work_dir {run} --max_step 8 {flags}").out
        assert ("--cuda_graph auto: off: the device is cpu" in out) == (run == "new")
    monkeypatch.setattr("txl.runs.training.why_no_graph", lambda *_: "")
    monkeypatch.setattr("txl.runs.training.recorded", record)
    for run in ("plain", "new"):
        out = here(f"train --work_dir {run} --max_step 20 --resume").out
        assert ("--cuda_graph auto: on: one process trains on one GPU" in out) == (run == "new")
    assert n_recorded == 1
    assert last_loss(Path("new"), "valid") == pytest.approx(last_loss(Path("plain"), "valid"))
