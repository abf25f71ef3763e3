"""A run's folder loses nothing, lets nothing in, and can be gone on with."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import as_of_0_2, change_record, sign
from tests.cli.conftest import Here, Trained, config_of, contents, pointed, records, train_here
from txl.language import sources
from txl.language.model import LanguageModel
from txl.runs import training as txl_train
from txl.runtime.clock import Clock
from txl.runtime.lock import Lock
from txl.training.metrics import Metrics
from txl.training.step import TrainState

NEW = Path("new")
RESUME = "train --work_dir run --resume --max_step 8 --max_step_scheduler 8"
"""From step 4 on."""


@pytest.fixture(scope="session")
def long_trained(tmp_path_factory: pytest.TempPathFactory, trained: Trained) -> Trained:
    folder = tmp_path_factory.mktemp("long")
    shutil.copytree(trained.text, folder / "text")
    return train_here(folder, "--keep_last 9")


@pytest.fixture
def steps(here: Here, long_trained: Trained) -> list[Path]:
    """The checkpoints of new, a run that has kept all of them: of steps 1 to 4."""
    shutil.copytree(long_trained.run, NEW)
    for folder in NEW.glob("step_*"):  # it was trained on this text under another name
        change_record(folder, lambda record: record["data"].update(data="text"))
    return [NEW / f"step_{step:08d}" for step in (1, 2, 3, 4)]


# what is removed


def test_files_of_others_are_never_removed(here: Here) -> None:
    theirs = {
        "tensorboard/events.out.tfevents.1.host.2": b"events",
        "step_00000003/notes.txt": b"mine",
        "log": b"x",
    }
    for name, content in theirs.items():
        (NEW / name).parent.mkdir(parents=True, exist_ok=True)
        (NEW / name).write_bytes(content)
    here("train")
    here("train --overwrite")
    kept = contents(NEW)
    kept["step_00000003/notes.txt"] = kept.pop("step_00000003.aside/notes.txt", b"")
    assert {name: kept.get(name) for name in theirs} == theirs
    (NEW / "metrics.jsonl").write_text('{"loss": 1}\n')
    assert "new/metrics.jsonl: not written by txl" in here.refused("train --overwrite")
    assert (NEW / "metrics.jsonl").read_text() == '{"loss": 1}\n'
    (NEW / "metrics.jsonl").unlink()
    (NEW / "best").write_text("of my notes\n")
    for flag in ("--overwrite", "--resume"):
        assert "new/best: not written by txl" in here.refused(f"train {flag}")
    assert (NEW / "best").read_text() == "of my notes\n"


def test_the_weights_that_a_run_begins_with_are_not_removed_first(here: Here) -> None:
    here("train")
    before = contents(NEW)
    for initial in (NEW, next(NEW.glob("step_*"))):
        refusal = here.refused(f"train --init_from {initial} --overwrite")
        assert f"--init_from {initial}: lies in --work_dir" in refusal
    assert contents(NEW) == before
    shutil.copytree(NEW, NEW / "kept")
    here(f"train --init_from {NEW / 'kept'} --overwrite --max_step 1")
    assert list((NEW / "kept").glob("step_*"))


def test_an_export_is_not_put_into_a_checkpoint(here: Here) -> None:
    here("train")
    inside = next(NEW.glob("step_*")) / "exports/mine"
    assert "lies in a checkpoint, " in here.refused(f"convert {NEW} {inside}")
    assert not inside.parent.exists()


def test_a_checkpoint_that_no_pointer_names_is_neither_written_over_nor_taken_for_a_newer_run_s(
    here: Here,
) -> None:
    """What a run leaves that is killed after its first checkpoint and before the pointers to it."""
    here("train --max_step 2 --eval_interval 2 --seed 1")
    for pointer in ("best", "latest"):
        (NEW / pointer).unlink()
    (old,) = NEW.glob("step_*/model.safetensors")
    before = old.read_bytes()
    assert "--work_dir new: already holds the checkpoints of a run" in here.refused(
        "train --max_step 2"
    )
    here("train --max_step 2 --eval_interval 2 --seed 2 --overwrite")
    assert (pointed(NEW) / "model.safetensors").read_bytes() != before


def test_a_pointer_leads_out_of_no_run(here: Here, steps: list[Path]) -> None:
    shutil.copytree(steps[0], "elsewhere")
    # would not be read
    change_record(Path("elsewhere"), lambda record: record["model"].update(n_head=7))
    for name in (str(Path("elsewhere").absolute()), "../elsewhere", "."):
        (NEW / "best").write_text(name)
        here("generate --work_dir new --length 1")


def test_token_files_go_where_this_user_says(here: Here) -> None:
    for checkpoint in Path("run").glob("step_*"):
        change_record(
            checkpoint, lambda record: record["data"].update(cache_dir="chosen by the checkpoint")
        )
    here("eval --split valid")
    here("train --work_dir run --resume --max_step 5 --max_step_scheduler 5")
    assert not Path("chosen by the checkpoint").exists()


# two at once


@pytest.mark.parametrize("late", ["load_model", "tokenizer_in"])
def test_a_reader_looks_again_where_a_training_has_replaced_the_checkpoint(
    here: Here, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    old = pointed(Path("run"))
    original, calls = getattr(sources, late), []

    def replaced_meanwhile(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if old.exists():
            new = shutil.copytree(old, old.with_name("step_00000008"))
            change_record(new, lambda record: record.update(step=8))
            shutil.rmtree(old)
        return original(*args, **kwargs)

    monkeypatch.setattr(sources, late, replaced_meanwhile)
    assert here.result("eval --split valid")["checkpoint"] == "run/step_00000008"
    assert len(calls) == 2
    (Path("run") / "step_00000008" / "vocab.txt").unlink()
    assert "step_00000008/vocab.txt: missing, truncated or damaged" in here.refused(
        "eval --split valid"
    )


def test_a_model_is_known_by_its_weights_after_they_were_removed(here: Here) -> None:
    model = LanguageModel.open("run")
    weights = pointed(Path("run")) / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    shutil.rmtree("run")
    assert model.fingerprint() == digest


def test_a_folder_in_which_somebody_trains_is_refused(here: Here) -> None:
    lock = Lock(Path("run/.accepted"))
    before = contents(Path("run"))
    for flags in ("--overwrite", "--resume", ""):
        err = here(f"train --work_dir run {flags}", status=2).err
        assert f"process {os.getpid()} on " in err
        assert "is training in it" in err
    assert contents(Path("run")) == before
    lock.close()
    here("train --work_dir run --resume")
    assert not Path("run/.accepted").exists()


def renamed(at_step: int, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rename the folder new after a step of the training."""
    step = TrainState.step

    def and_rename(state: TrainState, *args: Any) -> Any:
        result = step(state, *args)
        if state.progress.step == at_step:
            NEW.rename(to)
        return result

    monkeypatch.setattr(TrainState, "step", and_rename)


@pytest.mark.parametrize("flags", ["", "--async_save"])
def test_a_folder_that_is_renamed_while_it_is_trained_in_is_missed(
    here: Here, monkeypatch: pytest.MonkeyPatch, flags: str
) -> None:
    with monkeypatch.context() as patch:
        renamed(2, "moved", patch)
        complaints = here(f"train {flags}", status=2).complaints
    assert (
        "--work_dir new: was renamed or removed while it was trained in; give it this name again"
        in complaints[-1]
    )
    assert not NEW.exists()
    Path("moved").rename(NEW)
    here("train --resume")
    assert [record["step"] for record in records(NEW, "valid")] == [1, 2, 3, 4]


def test_a_lock_that_has_the_name_of_one_that_was_moved_stays(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    mine = Lock(tmp_path / "new" / "lock")
    (tmp_path / "new").rename(tmp_path / "moved")
    mine.remove()
    (tmp_path / "new").mkdir()
    mine = Lock(tmp_path / "new" / "lock")
    (tmp_path / "new" / "lock").rename(tmp_path / "moved" / "other")
    theirs = Lock(tmp_path / "new" / "lock")
    mine.remove()
    assert theirs.path.is_file()


def test_a_lock_ends_with_its_process_and_tells_that_it_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    if (pid := os.fork()) == 0:
        lock = Lock(path)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    lock = Lock(path)
    assert f'"pid": {pid}' in lock.before
    lock.remove()
    assert not path.exists()
    assert Lock(path).before == ""


@pytest.mark.parametrize("begun", [False, True])
def test_a_restart_overwrites_no_run_of_its_own(
    here: Here, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """A launch that crashed before it began has left the older run as it was."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    Path("run/.accepted").write_text('{"pid": 1}\n' + "begun\n" * begun)
    here("train --work_dir run --overwrite --max_step 4")
    assert records(Path("run"))[-1]["kind"] == ("start" if begun else "valid")


def test_a_restart_goes_on_from_the_newest(
    here: Here, steps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not again from the step of the command line."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    (NEW / ".accepted").write_text('{"pid": 1}\nbegun\n')
    here("train --resume 2 --keep_last 9")
    assert records(NEW)[-1]["resumed_from_step"] == 4


# going on


def replace(path: Path, text: str, other: str) -> None:
    assert text in path.read_text()
    path.write_text(path.read_text().replace(text, other))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "streams": lambda folder: next(folder.glob("streams_*")).unlink(),
    "progress": lambda folder: (folder / "progress.json").write_text("{}"),
    "config": lambda folder: (folder / "config.json").unlink(),
    "name of a setting": lambda folder: replace(folder / "config.json", '"seed"', '"sead"'),
    "loss": lambda folder: replace(folder / "progress.json", '"best_nats": ', '"best_nats": -'),
}
"""Flipped bits are those of tests/training/test_damage.py."""


@pytest.mark.parametrize("what", DAMAGES)
def test_resume_goes_on_from_the_newest_whole_checkpoint_and_says_so(
    here: Here, steps: list[Path], what: str
) -> None:
    weights = (steps[3] / "model.safetensors").read_bytes()
    DAMAGES[what](steps[3])
    (NEW / "step_00000999").mkdir()
    (NEW / "latest").write_text("step_00000777\n")
    said = here("train --resume --keep_last 9").err
    assert "resuming from step_00000003" in said
    assert "kept as step_00000004.aside" in said
    assert (steps[3] / "model.safetensors").read_bytes() == weights
    assert [r["step"] for r in records(NEW, "valid")] == [1, 2, 3, 4]


def test_a_run_with_blockwise_attention_is_resumed_with_dense(here: Here) -> None:
    here("train --max_step 2 --max_step_scheduler 4")
    for path in Path("new").glob("step_*/config.json"):
        record = json.loads(path.read_text())
        record["train"]["attn_impl"] = "blockwise"
        path.write_text(json.dumps(record))
        sign(path.parent)
    here("train --resume --max_step 4")
    assert config_of(Path("new"))["train"]["attn_impl"] == "dense"
    assert "'dense'" in here.refused("train --resume --max_step 4 --attn_impl blockwise")


def test_resume_goes_on_from_the_step_it_names(here: Here, steps: list[Path]) -> None:
    before = [contents(folder)["model.safetensors"] for folder in steps[2:]]
    refused = here.refused("train --resume 7")
    assert "--resume 7: " in refused
    assert "there are 1, 2, 3, 4" in refused
    here("train --resume 2 --keep_last 9")
    assert records(NEW)[-1]["step"] == 4
    assert [contents(folder)["model.safetensors"] for folder in steps[2:]] == before
    assert len(list(NEW.glob("*.aside"))) == 2
    here("train --overwrite")
    assert list(NEW.glob("*.aside")) == []


def test_a_run_that_is_ended_sooner_says_where_its_schedule_goes(
    here: Here, steps: list[Path]
) -> None:
    said = here("train --resume 2 --max_step 3 --keep_last 9").err
    assert "--max_step 3: the cosine schedule of the run goes on to step 4" in said
    said = here("train --resume 2 --max_step 3 --max_step_scheduler 3 --keep_last 9").err
    assert "schedule" not in said


def test_a_checkpoint_moved_to_another_disk_is_gone_on_from_through_its_link(
    here: Here, steps: list[Path]
) -> None:
    moved = [Path(shutil.move(folder, f"disk{i}")).absolute() for i, folder in enumerate(steps[2:])]
    for link, folder in zip(steps[2:], moved, strict=True):
        link.symlink_to(folder)
    before = [contents(folder) for folder in moved]
    here("train --resume --max_step 5 --max_step_scheduler 4 --keep_last 9")
    assert [r["resumed_from_step"] for r in records(NEW, "start")] == [None, 4]
    here("train --resume 2 --max_step 3 --max_step_scheduler 4 --keep_last 9")
    assert not steps[2].is_symlink()
    here("train --overwrite")
    assert [contents(folder) for folder in moved] == before


def test_what_a_link_leads_to_nowhere_or_to_another_step_is_not_written_over(
    here: Here, steps: list[Path]
) -> None:
    for folder in steps[2:]:
        shutil.rmtree(folder)
    steps[2].symlink_to(Path("not mounted").absolute())
    said = here("train --resume --keep_last 9").err
    assert "step_00000003/config.json: missing, truncated or damaged" in said
    assert (NEW / "step_00000003.aside").is_symlink()
    fifth = NEW / "step_00000005"
    fifth.symlink_to(steps[3].absolute())
    before = contents(steps[3])
    here("train --resume --max_step 5 --max_step_scheduler 4 --keep_last 9")
    assert contents(steps[3]) == before
    assert json.loads((fifth / "config.json").read_text())["step"] == 5


def test_best_names_no_checkpoint_that_is_made_anew(here: Here, steps: list[Path]) -> None:
    """The best one before step 3 was removed long ago; one later than step 2 is set aside."""
    for folder in steps:
        change_record(folder, lambda record, folder=folder: record.update(best=folder == steps[3]))
    change_record(steps[1], lambda progress: progress.update(best_nats=0.1), "progress.json")
    (NEW / "best").write_text("step_00000004\n")
    here("train --resume 2 --max_step 2 --keep_last 9")
    assert not (NEW / "best").exists()
    here("train --resume --keep_last 9")
    nats = {r["step"]: r["valid/nll_nats"] for r in records(NEW, "valid") if r["step"] > 2}
    assert pointed(NEW, "best").name == f"step_{min(nats, key=lambda step: nats[step]):08d}"
    assert json.loads((pointed(NEW, "best") / "config.json").read_text())["best"]


def test_a_checkpoint_without_checksums_is_gone_on_with_if_it_lacks_nothing(here: Here) -> None:
    for folder in Path("run").glob("step_*"):
        as_of_0_2(folder, digests=False)
        change_record(folder, lambda progress: progress.pop("n_token"), "progress.json")
    shutil.copytree("run", "lacking")
    for folder in Path("lacking").glob("step_*"):
        save_file({}, folder / "optimizer.safetensors")
    assert "lacking/step_00000004/optimizer.safetensors: " in here.refused(
        f"{RESUME} --work_dir lacking"
    )
    here(RESUME)


def test_a_limit_of_time_is_one_of_this_start(here: Here) -> None:
    assert "stopped by --max_hours after step 1; saved in" in here("train --max_hours 1e-9").err
    here("train --resume")
    assert config_of(NEW)["step"] == 4


def test_a_limit_of_time_counts_what_is_before_the_first_step(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a text takes two hours to be read."""
    monkeypatch.setattr(Clock, "seconds", lambda _: 7200.0)
    assert "stopped by --max_hours after step 1; saved in" in here("train --max_hours 2").err
    here("train --overwrite --max_hours 3")
    assert config_of(NEW)["step"] == 4


def test_an_ended_cosine_is_extended_only_by_one_who_says_how(here: Here) -> None:
    line = here.refused("train --work_dir run --resume --max_step 8")
    assert (
        "--max_step 8: the cosine schedule of the run ends after step 4, at a learning rate of 0"
        in line
    )
    here(RESUME)
    assert {r["step"]: r["train/lr"] for r in records(Path("run"), "train")}[6] > 0
    here(f"{RESUME} --max_step 10")


# records


def test_records_of_later_steps_are_made_once_and_tensorboard_is_told(
    here: Here, steps: list[Path]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shutil.rmtree(steps[3])
    with (NEW / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 4, "trai')
    here("train --resume --log_interval 1")
    assert [r["step"] for r in records(NEW, "valid")] == [1, 2, 3, 4]
    assert [r["resumed_from_step"] for r in records(NEW, "start")] == [None, 3]
    found = [(r["step"], r["epoch"], r["tokens"]) for r in records(NEW, "train")]
    assert found == [(2, 1, 2 * 4 * 8), (4, 1, 4 * 4 * 8)]
    assert all(r["time/unix_s"] > 1e9 for r in records(NEW) if r["kind"] != "start")
    assert all(path.name.endswith(".txl") for path in (NEW / "tensorboard").iterdir())
    events = EventAccumulator(str(NEW / "tensorboard")).Reload()
    assert [point.step for point in events.Scalars("perplexity/valid")] == [1, 2, 3, 4]


def test_the_log_holds_what_every_start_has_printed(here: Here) -> None:
    """Behind a line with the time and the command."""
    first = here("train").out.splitlines()
    second = here("train --overwrite").out.splitlines()
    lines = (NEW / "log.txt").read_text().splitlines()
    begins = [i for i, line in enumerate(lines) if line.startswith("=== ")]
    assert begins[0] == 0
    assert lines[begins[0] + 1 : begins[1]] == first
    assert lines[begins[1] + 1 :] == second
    assert [line.split()[0] for line in first[-1:]] == ["|"]


def test_a_finished_run_says_so_and_a_text_that_is_read_often_is_named(here: Here) -> None:
    assert (
        "this run is finished: its 4 steps are those of --max_step"
        in here("train --work_dir run --resume").out
    )
    assert "finished" not in here("train").out
    few = here("train --overwrite --max_step 4 --batch_size 20 --tgt_len 40").out
    assert "reads this text 2 times" not in few
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(txl_train, "MANY_READINGS", 2)
        assert (
            "--max_step 4 reads this text 2 times"
            in here("train --overwrite --max_step 4 --batch_size 20 --tgt_len 40").out
        )


def test_a_full_disk_leaves_no_half_record(tmp_path: Path, full_disk: Any) -> None:
    path = tmp_path / "metrics.jsonl"
    with Metrics(tmp_path) as metrics:
        metrics.add("train", 1, {"train/nll_nats": 1.0})
        before = path.read_bytes()
        with full_disk(len(before) + 10), pytest.raises(OSError, match="too large") as error:
            metrics.add("train", 2, {"train/nll_nats": 1.0})
    assert error.value.filename == str(path)
    assert path.read_bytes() == before


# weights and memories that are no numbers


def test_weights_that_are_not_finite_are_never_saved(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = TrainState.step

    def spoiling(state: TrainState, *batch: Any) -> Any:
        result = step(state, *batch)
        if state.progress.step == 3:
            next(state.model.parameters()).data[0, 0] = torch.nan
        return result

    monkeypatch.setattr(TrainState, "step", spoiling)
    assert "step 3: a weight is not finite; not saved" in here("train", status=1).err
    saved = sorted(NEW.glob("step_*"))[-1]
    assert saved.name == "step_00000002"
    assert all(
        tensor.isfinite().all() for tensor in load_file(saved / "model.safetensors").values()
    )


def test_a_memory_that_is_not_finite_is_cleared_where_bad_steps_are_skipped(here: Here) -> None:
    for folder in Path("run").glob("step_*"):
        (path,) = folder.glob("streams_*")
        tensors = load_file(path)
        tensors["memory.0"][1, 2] = torch.nan
        save_file(tensors, path)
        sign(folder)
    here(RESUME, status=1)
    assert here(f"{RESUME} --on_nonfinite skip --max_nonfinite 1").out.count("skipped") == 1


@pytest.mark.parametrize("name", ["log.txt", "metrics.jsonl"])
def test_a_file_of_the_user_in_a_new_folder_is_not_continued(here: Here, name: str) -> None:
    Path("mine").mkdir()
    Path("mine", name).write_text("my own notes\n")
    said = here.refused("train --work_dir mine")
    assert f"mine/{name}: not written by txl; name another folder with --work_dir" in said
    assert Path("mine", name).read_text() == "my own notes\n"
