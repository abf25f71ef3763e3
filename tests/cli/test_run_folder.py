"""A run's folder loses nothing, lets nothing in, and can be gone on with."""

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
from txl.runtime.lock import Lock
from txl.training.metrics import Metrics

Call = Callable[..., Any]
Refused = Callable[..., str]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def steps(run: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step_")) for path in run.glob("step_????????"))


@pytest.fixture
def resume(training: list[str], run_folder: Path) -> list[Any]:
    """Flags that train the finished run from step 4 to 8."""
    return [*training, "--work_dir", run_folder, "--resume", "--max_step", 8, "--max_step_scheduler", 8]


@pytest.fixture
def long_run(call: Call, training: list[str], tmp_path: Path) -> Path:
    """A run with all its checkpoints, of steps 1 to 4."""
    assert call("train", *training, "--keep_last", 9).status == 0
    return tmp_path / "new_run"


# what is removed


def test_no_clipping_is_said_with_0_or_infinity(call: Call, training: list[str], tmp_path: Path) -> None:
    weights = []
    for i, clip in enumerate(("0", "inf", "1e9")):
        run = tmp_path / f"{i}"
        assert call("train", *training, "--work_dir", run, "--max_step", 2, "--clip", clip).status == 0
        weights.append((run / "step_00000002" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] == weights[2]
    assert (
        call("train", *training, "--work_dir", tmp_path / "0", "--max_step", 2, "--clip", "inf", "--resume").status == 0
    )


def test_files_of_others_are_never_removed(call: Call, refused: Refused, training: list[str], tmp_path: Path) -> None:
    run = tmp_path / "new_run"
    theirs = {"tensorboard/events.out.tfevents.1.host.2": b"events", "step_00000003/notes.txt": b"mine", "log": b"x"}
    for name, content in theirs.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)
    assert call("train", *training).status == 0
    assert call("train", *training, "--overwrite").status == 0
    kept = contents(run)
    kept["step_00000003/notes.txt"] = kept.pop("step_00000003.aside/notes.txt", b"")
    assert {name: kept.get(name) for name in theirs} == theirs
    (run / "metrics.jsonl").write_text('{"loss": 1}\n')
    assert f"{run / 'metrics.jsonl'}: not written by txl" in refused("train", *training, "--overwrite")
    assert (run / "metrics.jsonl").read_text() == '{"loss": 1}\n'


def test_a_pointer_leads_out_of_no_run(call: Call, long_run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(long_run / "step_00000001", elsewhere)
    change_record(elsewhere, lambda record: record["model"].update(n_head=7))  # would not be read
    for name in (str(elsewhere), "../elsewhere", "."):
        (long_run / "best").write_text(name)
        assert call("generate", "--work_dir", long_run, "--length", 1).status == 0


def test_token_files_go_where_this_user_says(call: Call, run_folder: Path, text: Path, tmp_path: Path) -> None:
    def of_another(record: dict[str, Any]) -> None:
        record["data"] |= {"data": str(text), "cache_dir": str(tmp_path / "chosen by the checkpoint")}

    for checkpoint in run_folder.glob("step_*"):
        change_record(checkpoint, of_another)
    assert call("eval", "--work_dir", run_folder, "--split", "valid").status == 0
    resumed = call("train", "--work_dir", run_folder, "--resume", "--max_step", 5, "--max_step_scheduler", 5)
    assert resumed.status == 0, resumed
    assert not (tmp_path / "chosen by the checkpoint").exists()


def test_no_text_is_written_where_a_checkpoint_says(refused: Refused, run_folder: Path, tmp_path: Path) -> None:
    for checkpoint in run_folder.glob("step_*"):
        change_record(checkpoint, lambda record: record["data"].update(data=str(tmp_path / "x"), dataset="pydoc"))
    assert "the text of the training is not there" in refused("eval", "--work_dir", run_folder)
    assert not (tmp_path / "x").exists()


# two at once


def test_a_folder_in_which_somebody_trains_is_refused(call: Call, training: list[str], run_folder: Path) -> None:
    lock = Lock(run_folder / ".accepted")
    before = contents(run_folder)
    for flags in (("--overwrite",), ("--resume",), ()):
        outcome = call("train", *training, "--work_dir", run_folder, *flags)
        assert outcome.status == 2
        assert f"process {os.getpid()} on " in outcome.err
        assert "is training in it" in outcome.err
    assert contents(run_folder) == before
    lock.close()
    assert call("train", *training, "--work_dir", run_folder, "--resume").status == 0
    assert not (run_folder / ".accepted").exists()


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
def test_what_torchrun_starts_again_overwrites_no_run_of_its_own(
    call: Call, training: list[str], run_folder: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """A launch that crashed before it began has left the older run as it was."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    (run_folder / ".accepted").write_text('{"pid": 1}\n' + "begun\n" * begun)
    assert call("train", *training, "--work_dir", run_folder, "--overwrite", "--max_step", 4).status == 0
    assert records(run_folder)[-1]["kind"] == ("start" if begun else "valid")


def test_what_torchrun_starts_again_goes_on_from_the_newest_checkpoint(
    call: Call, training: list[str], long_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not again from the step of the command line."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    (long_run / ".accepted").write_text('{"pid": 1}\nbegun\n')
    assert call("train", *training, "--resume", 2, "--keep_last", 9).status == 0
    assert records(long_run)[-1]["resumed_from_step"] == 4


# going on


DAMAGES: dict[str, Callable[[Path], object]] = {
    "weights": lambda folder: flip(folder / "model.safetensors"),
    "optimizer": lambda folder: flip(folder / "optimizer.safetensors"),
    "streams": lambda folder: next(folder.glob("streams_*")).unlink(),
    "progress": lambda folder: (folder / "progress.json").write_text("{}"),
    "config": lambda folder: (folder / "config.json").unlink(),
    "name of a setting": lambda folder: replace(folder / "config.json", '"seed"', '"sead"'),
    "text": lambda folder: replace(folder / "config.json", '"valid": "', '"valid": "0'),
    "loss": lambda folder: replace(folder / "progress.json", '"best_nats": ', '"best_nats": -'),
}


def replace(path: Path, text: str, other: str) -> None:
    assert text in path.read_text()
    path.write_text(path.read_text().replace(text, other))


def flip(path: Path) -> None:
    """Another last bit."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("what", DAMAGES)
def test_resume_goes_on_from_the_newest_whole_checkpoint_and_says_so(
    call: Call, training: list[str], long_run: Path, what: str
) -> None:
    weights = (long_run / "step_00000004" / "model.safetensors").read_bytes()
    DAMAGES[what](long_run / "step_00000004")
    (long_run / "step_00000999").mkdir()
    (long_run / "latest").write_text("step_00000777\n")
    outcome = call("train", *training, "--resume", "--keep_last", 9)
    assert outcome.status == 0, outcome.err
    assert "resuming from step_00000003" in outcome.err
    assert "kept as step_00000004.aside" in outcome.err
    assert (long_run / "step_00000004" / "model.safetensors").read_bytes() == weights
    assert [r["step"] for r in records(long_run) if r["kind"] == "valid"] == [1, 2, 3, 4]


def test_resume_goes_on_from_the_step_it_names(
    call: Call, refused: Refused, training: list[str], long_run: Path
) -> None:
    before = {step: contents(long_run / f"step_{step:08d}")["model.safetensors"] for step in (3, 4)}
    assert "--resume 7: " in refused("train", *training, "--resume", 7)
    assert "there are 1, 2, 3, 4" in refused("train", *training, "--resume", 7)
    outcome = call("train", *training, "--resume", 2, "--keep_last", 9)
    assert outcome.status == 0, outcome
    assert records(long_run)[-1]["step"] == 4
    assert {step: contents(long_run / f"step_{step:08d}")["model.safetensors"] for step in (3, 4)} == before
    assert len(list(long_run.glob("*.aside"))) == 2
    assert call("train", *training, "--overwrite").status == 0
    assert list(long_run.glob("*.aside")) == []


def test_a_checkpoint_moved_to_another_disk_is_gone_on_from_through_its_link(
    call: Call, training: list[str], long_run: Path, tmp_path: Path
) -> None:
    moved = [shutil.move(long_run / f"step_{step:08d}", tmp_path / f"disk{step}") for step in (3, 4)]
    for step, folder in zip((3, 4), moved, strict=True):
        (long_run / f"step_{step:08d}").symlink_to(folder)
    before = [contents(folder) for folder in moved]
    more = ("--max_step_scheduler", 4, "--keep_last", 9)
    assert call("train", *training, "--resume", "--max_step", 5, *more).status == 0
    assert [r["resumed_from_step"] for r in records(long_run) if r["kind"] == "start"] == [None, 4]
    assert call("train", *training, "--resume", 2, "--max_step", 3, *more).status == 0
    assert not (long_run / "step_00000003").is_symlink()
    assert call("train", *training, "--overwrite").status == 0
    assert [contents(folder) for folder in moved] == before


def test_what_a_link_leads_to_nowhere_or_to_another_step_is_not_written_over(
    call: Call, training: list[str], long_run: Path, tmp_path: Path
) -> None:
    shutil.rmtree(long_run / "step_00000003")
    shutil.rmtree(long_run / "step_00000004")
    (long_run / "step_00000003").symlink_to(tmp_path / "not mounted")
    outcome = call("train", *training, "--resume", "--keep_last", 9)
    assert outcome.status == 0, outcome.err
    assert "step_00000003/config.json: missing, truncated or damaged" in outcome.err
    assert (long_run / "step_00000003.aside").is_symlink()
    (long_run / "step_00000005").symlink_to(long_run / "step_00000004")
    before = contents(long_run / "step_00000004")
    more = ("--resume", "--max_step", 5, "--max_step_scheduler", 4, "--keep_last", 9)
    assert call("train", *training, *more).status == 0
    assert contents(long_run / "step_00000004") == before
    assert json.loads((long_run / "step_00000005" / "config.json").read_text())["step"] == 5


def test_best_names_no_checkpoint_that_is_made_anew(call: Call, training: list[str], long_run: Path) -> None:
    """The best one before step 3 was removed long ago; one later than step 2 is set aside."""
    for step in (1, 2, 3, 4):
        change_record(long_run / f"step_{step:08d}", lambda record, step=step: record.update(best=step == 4))
    change_record(long_run / "step_00000002", lambda progress: progress.update(best_nats=0.1), "progress.json")
    (long_run / "best").write_text("step_00000004\n")
    assert call("train", *training, "--resume", 2, "--max_step", 2, "--keep_last", 9).status == 0
    assert not (long_run / "best").exists()
    assert call("train", *training, "--resume", "--keep_last", 9).status == 0
    nats = {r["step"]: r["valid/nll_nats"] for r in records(long_run) if r["kind"] == "valid" and r["step"] > 2}
    best = min(nats, key=lambda step: nats[step])
    assert (long_run / "best").read_text() == f"step_{best:08d}\n"
    assert json.loads((long_run / f"step_{best:08d}" / "config.json").read_text())["best"]


@pytest.mark.parametrize("name", ["streams_00000_00004.safetensors", "optimizer.safetensors"])
def test_a_checkpoint_without_checksums_lacks_nothing_unnoticed(refused: Refused, resume: list[Any], name: str) -> None:
    run = Path(resume[resume.index("--resume") - 1])
    for folder in run.glob("step_*"):
        as_of_0_2(folder, digests=False)
        (folder / name).unlink() if name.startswith("streams") else save_file({}, folder / name)
    line = refused("train", *resume)
    assert str(run / "step_00000004") in line
    assert name[:7] in line


def test_a_checkpoint_without_checksums_is_gone_on_with(call: Call, resume: list[Any], run_folder: Path) -> None:
    for folder in run_folder.glob("step_*"):
        as_of_0_2(folder, digests=False)
        change_record(folder, lambda progress: progress.pop("n_token"), "progress.json")
    assert call("train", *resume).status == 0


def test_a_limit_of_time_is_one_of_this_start(call: Call, training: list[str], tmp_path: Path) -> None:
    stopped = call("train", *training, "--max_hours", "1e-9")
    assert stopped.status == 0
    assert "stopped by --max_hours after step 1; saved in" in stopped.err
    assert call("train", *training, "--resume").status == 0
    assert steps(tmp_path / "new_run")[-1] == 4


def test_an_ended_cosine_is_extended_only_by_one_who_says_how(
    call: Call, refused: Refused, training: list[str], run_folder: Path
) -> None:
    more = [*training, "--work_dir", run_folder, "--resume", "--max_step", 8]
    line = refused("train", *more)
    assert "--max_step 8: the cosine schedule of the run ends after step 4, at a learning rate of 0" in line
    assert call("train", *more, "--max_step_scheduler", 8).status == 0
    lr = {record["step"]: record["train/lr"] for record in records(run_folder) if record["kind"] == "train"}
    assert lr[6] > 0
    assert (
        call(
            "train", *training, "--work_dir", run_folder, "--resume", "--max_step", 10, "--max_step_scheduler", 8
        ).status
        == 0
    )


# records


def test_records_of_later_steps_are_made_once(call: Call, training: list[str], long_run: Path) -> None:
    shutil.rmtree(long_run / "step_00000004")
    with (long_run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 4, "trai')
    assert call("train", *training, "--resume", "--log_interval", 1).status == 0
    found = records(long_run)
    assert [r["step"] for r in found if r["kind"] == "valid"] == [1, 2, 3, 4]
    assert [r["step"] for r in found if r["kind"] == "train"] == [2, 4]
    assert [r["resumed_from_step"] for r in found if r["kind"] == "start"] == [None, 3]
    assert [(r["epoch"], r["tokens"]) for r in found if r["kind"] == "train"] == [(1, 2 * 4 * 8), (1, 4 * 4 * 8)]
    assert all(r["time/unix_s"] > 1e9 for r in found if r["kind"] != "start")


def test_tensorboard_is_told_which_points_are_made_anew(call: Call, training: list[str], long_run: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shutil.rmtree(long_run / "step_00000004")
    assert call("train", *training, "--resume").status == 0
    assert all(path.name.endswith(".txl") for path in (long_run / "tensorboard").iterdir())
    events = EventAccumulator(str(long_run / "tensorboard")).Reload()
    assert [point.step for point in events.Scalars("perplexity/valid")] == [1, 2, 3, 4]


def test_a_full_disk_leaves_no_half_record(tmp_path: Path, full_disk: Any) -> None:
    path = tmp_path / "metrics.jsonl"
    with Metrics(tmp_path) as metrics:
        metrics.add("train", 1, {"train/nll_nats": 1.0})
        before = path.read_bytes()
        with full_disk(len(before) + 10), pytest.raises(OSError, match="too large") as error:
            metrics.add("train", 2, {"train/nll_nats": 1.0})
    assert error.value.filename == str(path)
    assert path.read_bytes() == before


# weights


def test_weights_that_are_not_finite_are_never_saved(
    call: Call, training: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from txl.training.step import TrainState

    step = TrainState.step

    def spoiling(state: TrainState, *batch: Any) -> Any:
        result = step(state, *batch)
        if state.progress.step == 3:
            next(state.model.parameters()).data[0, 0] = torch.nan
        return result

    monkeypatch.setattr(TrainState, "step", spoiling)
    outcome = call("train", *training)
    assert outcome.status == 1
    assert "step 3: a weight is not finite; not saved" in outcome.err
    saved = steps(tmp_path / "new_run")
    assert saved[-1] == 2
    assert all(
        tensor.isfinite().all() for tensor in load_file(tmp_path / "new_run/step_00000002/model.safetensors").values()
    )


def test_a_memory_that_is_not_finite_is_cleared_where_bad_steps_are_skipped(
    call: Call, resume: list[Any], run_folder: Path
) -> None:
    for folder in run_folder.glob("step_*"):
        (path,) = folder.glob("streams_*")
        tensors = load_file(path)
        tensors["memory.0"][1, 2] = torch.nan
        save_file(tensors, path)
        sign(folder)
    assert call("train", *resume).status == 1
    outcome = call("train", *resume, "--on_nonfinite", "skip", "--max_nonfinite", 1)
    assert outcome.status == 0, outcome.err
    assert outcome.out.count("skipped") == 1
