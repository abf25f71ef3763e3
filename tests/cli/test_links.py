"""A folder that somebody else packed may hold links: nothing is written through one."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.checkpoints import change_record
from tests.cli.conftest import Here, pointed
from txl.files import not_through_a_link, written_whole
from txl.runtime.lock import Lock
from txl.training.metrics import show_pictures

RESUME = "train --work_dir run --resume --max_step 8 --max_step_scheduler 8"
NOTES = b"of the user\n"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A file that nothing may change."""
    path = tmp_path / "notes"
    path.write_bytes(NOTES)
    return path


def linked(name: str, target: Path) -> None:
    path = Path(name)
    path.unlink(missing_ok=True) if path.is_symlink() or not path.is_dir() else shutil.rmtree(path)
    path.symlink_to(target.absolute())


def refusal(here: Here, line: str) -> str:
    """As `Here.refused`, where hidden files were there before."""
    (complaint,) = here(line, status=2).complaints
    return complaint


@pytest.mark.parametrize("line", [RESUME, "train --work_dir run --overwrite"])
@pytest.mark.parametrize("name", [".accepted", "metrics.jsonl", "tensorboard", "log.txt"])
def test_what_would_be_written_through_a_link_is_refused(
    here: Here, notes: Path, name: str, line: str
) -> None:
    for target in (notes, Path("elsewhere")):
        linked(f"run/{name}", target)
        assert (
            f"run/{name}: is a link, and nothing is written through one; remove the link"
            in refusal(here, line)
        )
        assert notes.read_bytes() == NOTES
        assert not Path("elsewhere").exists()


def test_curves_in_another_folder_stay(here: Here, tmp_path: Path) -> None:
    events = tmp_path / "other" / "events.out.tfevents.1.host.2.txl"
    events.parent.mkdir()
    events.write_bytes(NOTES)
    linked("run/tensorboard", events.parent)
    here.refused("train --work_dir run --overwrite")
    show_pictures(Path("run"), [tmp_path / "none.png"])
    assert [path.read_bytes() for path in events.parent.iterdir()] == [NOTES]


def test_links_in_the_places_of_what_is_replaced_are_replaced(
    here: Here, notes: Path, undrawn: None
) -> None:
    """Also those that would make their target."""
    step = pointed(Path("run")).name
    others = (
        "latest",
        "best",
        f"{step}/SHA256SUMS",
        ".step_00000005.tmp",
        "result.json",
        ".tmp.1.txl.latest",
    )
    for name in ("latest", "best", ".step_00000005.tmp", ".tmp.1.txl.latest", ".tmp.2.txl.latest"):
        linked(f"run/{name}", notes)
    linked("run/.tmp.3.txl.latest", Path("elsewhere"))
    here(f"{RESUME} --max_step 5 --max_step_scheduler 5")
    linked("run/result.json", notes)
    here("eval --split valid --json run/result.json")
    assert json.loads(Path("run/result.json").read_text())["rows"]
    assert notes.read_bytes() == NOTES
    assert not Path("elsewhere").exists()
    assert not any((Path("run") / name).is_symlink() for name in others)


def test_a_checkpoint_behind_a_link_is_not_written_to(here: Here) -> None:
    """Though it owes an evaluation, after which its records are written anew."""
    moved = shutil.move(pointed(Path("run")), "moved")
    change_record(Path(moved), lambda record: record.update(best=False))
    change_record(
        Path(moved), lambda progress: progress.update(owes_evaluation=True), "progress.json"
    )
    before = {path.name: path.read_bytes() for path in Path(moved).iterdir()}
    linked("run/step_00000004", Path(moved))
    here(RESUME)
    assert {path.name: path.read_bytes() for path in Path(moved).iterdir()} == before


@pytest.mark.parametrize(
    "content", ["of the user\n", "\nuser\n", '["pid"]', '"pid"\nand more of it', "{}", "[" * 5000]
)
def test_a_file_that_is_no_lock_is_not_emptied(here: Here, content: str) -> None:
    Path("run/.accepted").write_text(content)
    assert "run/.accepted: no lock of txl" in refusal(here, RESUME)
    assert Path("run/.accepted").read_text() == content


def test_a_pipe_in_a_file_s_place_blocks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / ".tmp.1.txl.out")
    with pytest.raises(OSError, match="pipe"):
        Lock(tmp_path / "pipe")
    with (
        pytest.raises(OSError, match="pipe"),
        open(tmp_path / "pipe", "ab", opener=not_through_a_link),
    ):
        pass
    with written_whole(tmp_path / "out") as temporary:
        temporary.write_bytes(b"x")
    assert not (tmp_path / ".tmp.1.txl.out").exists()


def test_token_files_go_to_no_folder_that_a_link_beside_the_text_names(
    here: Here, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    linked("text/txl-cache", other)
    assert (
        "text/txl-cache: a link; name the folder that it leads to with --cache_dir"
        in here.refused("train")
    )
    assert list(other.iterdir()) == []
    here("train --max_step 1 --cache_dir text/txl-cache")
    (store,) = other.glob("text-train-*")
    shutil.rmtree(store)
    store.symlink_to(tmp_path / "text")
    here("train --max_step 1 --cache_dir text/txl-cache --overwrite")
    assert not store.is_symlink()
    assert (tmp_path / "text" / "train.txt").is_file()


def test_results_go_on_in_a_file_that_standard_output_is(here: Here, undrawn: None) -> None:
    out = here("eval --split valid --json /dev/stdout").out
    assert out.index("tokens counted") < out.index('"rows"')
