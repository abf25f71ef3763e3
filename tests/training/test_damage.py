"""Whatever happens to a file of a checkpoint is noticed before it is read, and costs no more than that checkpoint."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoints import as_of_0_2, change_record
from tests.training.runs import Run, config
from txl.checkpoint import CheckpointWriter, newest_whole, open_checkpoint, point_at_best
from txl.checkpoint.folder import DIGESTS
from txl.checkpoint.load import require_whole
from txl.checkpoint.record import open_folder
from txl.config import UsageError

N_FLIP = 8
"""Of each file, besides its first and last byte."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With checkpoints of steps 3 and 6, each evaluated, so that their records were written twice."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    Run(config(eval_interval=3, keep_last=2), folder=folder).begin().train()
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """To be damaged at will."""
    return shutil.copytree(trained, tmp_path / "run")


def test_each_flipped_bit_of_each_file_is_noticed_and_the_checkpoint_before_is_whole(
    run: Path,
) -> None:
    last = run / "step_00000006"
    files = sorted(last.iterdir())
    assert {DIGESTS, "config.json", "progress.json", "model.safetensors"} < {
        path.name for path in files
    }
    dice = random.Random(24)
    for path in files:
        good = path.read_bytes()
        for at in [0, len(good) - 1, *dice.choices(range(len(good)), k=N_FLIP)]:
            content = bytearray(good)
            content[at] ^= 1 << dice.randrange(8)
            path.write_bytes(content)
            checkpoint, (error,) = newest_whole(run)
            assert checkpoint.folder.name == "step_00000003", (path.name, at)
            assert f"{path}: missing, truncated or damaged; use another checkpoint" in str(error)
        path.write_bytes(good)
    assert newest_whole(run)[0].folder == last


@pytest.mark.parametrize("damage", ["removed", "cut", "longer", "a file too many"])
def test_what_is_missing_or_does_not_belong_there_is_noticed(run: Path, damage: str) -> None:
    last = run / "step_00000006"
    for path in sorted(last.iterdir()):
        good = path.read_bytes()
        other = path if damage != "a file too many" else last / "streams_00004_00008.safetensors"
        if damage == "removed":
            path.unlink()
        else:
            other.write_bytes({"cut": good[:-7], "longer": good + b"\n"}.get(damage, good))
        checkpoint, _ = newest_whole(run)
        assert checkpoint.folder.name == "step_00000003", path.name
        if other != path:
            other.unlink()
        path.write_bytes(good)


def test_the_checkpoint_that_is_meant_is_the_one_that_is_named(run: Path) -> None:
    """Not an older one that is damaged too."""
    for step in (6, 3):
        (run / f"step_{step:08d}" / "config.json").unlink()
        for asked in (open_checkpoint, *([newest_whole] if step == 3 else [])):
            with pytest.raises(UsageError, match=r"step_00000006/config\.json: missing"):
                asked(run)


def test_a_kill_between_records_leaves_a_checkpoint_whole(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before each of the files that an evaluation writes."""
    again = Run(config(eval_interval=3, keep_last=2), folder=run).resume()
    writer = CheckpointWriter(run, again.state.context, again.ranks, again.columns, keep_last=2)
    from txl import files

    fsync, n_kill = files._fsync, 0

    class Killed(BaseException):
        pass

    for i in range(9):
        left = [i]

        def die(path: Path, left: list[int] = left) -> None:
            if not left[0]:
                raise Killed
            left[0] -= 1
            fsync(path)

        monkeypatch.setattr(files, "_fsync", die)
        try:
            writer.save(
                again.state.model,
                again.state.snapshot(),
                step=6,
                best=i % 2 == 0,
                valid_nats=0.1 * i,
            )
        except Killed:
            n_kill += 1
        monkeypatch.setattr(files, "_fsync", fsync)
        checkpoint, errors = newest_whole(run)
        assert (checkpoint.folder.name, errors) == ("step_00000006", [])
    assert 4 <= n_kill < 9
    assert len((run / "step_00000006" / DIGESTS).read_text().splitlines()) == len(
        list(checkpoint.folder.iterdir())
    )


def test_a_search_that_is_gone_is_forgotten(run: Path) -> None:
    for folder in run.glob("step_*"):
        change_record(folder, lambda record: record["context"].update(lookup_faiss=True))
    checkpoint, errors = newest_whole(run)
    assert (checkpoint.record["step"], errors) == (6, [])
    Run(config(eval_interval=3, keep_last=2), folder=run).resume()


@pytest.mark.parametrize("digests", [True, False])
def test_older_checkpoints_get_digests_when_they_are_written_again(
    run: Path, digests: bool
) -> None:
    for folder in run.glob("step_*"):
        as_of_0_2(folder, digests=digests)
    checkpoint, errors = newest_whole(run)
    assert (checkpoint.record["step"], checkpoint.names_all, errors) == (6, False, [])
    for path in (*checkpoint.folder.glob("streams_*"), checkpoint.folder / "optimizer.safetensors"):
        good = path.read_bytes()
        path.write_bytes(good[:-7])  # noticed without digests too
        assert newest_whole(run)[0].record["step"] == 3
        path.write_bytes(good)
    again = Run(config(eval_interval=3, keep_last=2), folder=run).resume()
    writer = CheckpointWriter(run, again.state.context, again.ranks, again.columns, keep_last=2)
    writer.save(again.state.model, again.state.snapshot(), step=6, best=True, valid_nats=1.0)
    require_whole(open_folder(run / "step_00000006"))
    assert open_folder(run / "step_00000006").names_all


POINTERS: dict[str, Callable[[Path], object]] = {
    "to another checkpoint": lambda pointer: pointer.write_text("step_00000006\n"),
    "to nothing": lambda pointer: pointer.write_text("step_00000002\n"),
    "no text": lambda pointer: pointer.write_bytes(b"\xff\x00"),
    "missing": Path.unlink,
    "a folder": lambda pointer: (
        pointer.unlink(),
        pointer.mkdir(),
        (pointer / "mine").write_text("kept"),
    ),
}


@pytest.mark.parametrize("damage", POINTERS)
def test_the_best_checkpoint_is_found_whatever_became_of_its_name(
    tmp_path: Path, damage: str
) -> None:
    run = Run(config(eval_interval=3, keep_last=2), folder=tmp_path).begin()
    run.state.progress.n_eval = 3  # the losses of the evaluations are 1.9, 2.4, 2.3
    run.train()
    assert (tmp_path / "best").read_text() == "step_00000003\n"
    for name in ("best", "latest"):
        POINTERS[damage](tmp_path / name)
    assert open_checkpoint(tmp_path).folder.name == "step_00000003"
    assert point_at_best(tmp_path)  # as each start does
    Run(config(eval_interval=3, keep_last=1, max_step=9), folder=tmp_path).resume().trained()
    kept = {path.name for path in tmp_path.glob("step_*")}
    assert {"step_00000003", "step_00000009"} <= kept
    mine = [path.read_text() for path in tmp_path.glob("*.aside*/mine")]
    assert mine == (["kept", "kept"] if damage == "a folder" else [])
