"""Bad input: one line that names the thing and the remedy, exit status 2, no traceback, nothing half written."""

import errno
import itertools
import os
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import change_record
from tests.cli.conftest import change_weights
from tests.forks import console
from txl.config import ModelConfig, UsageError

ROOT = Path(__file__).parents[2]

Refused = Callable[..., str]
STRETCHED = ("--max_step_scheduler", 8)
FullDisk = Callable[[int], AbstractContextManager[None]]


def cut(path: Path, *, keep: float) -> None:
    """Truncate a file to a share of its size."""
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])


# text


@pytest.mark.parametrize(("split", "dataset"), [("train", "text"), ("valid", "wt103")])
def test_a_missing_split_is_named_before_training(
    refused: Refused, training: list[str], text: Path, split: str, dataset: str
) -> None:
    (text / f"{split}.txt").unlink()
    line = refused("train", *training, "--dataset", dataset)
    assert f"{text / split}.txt: no such file" in line
    assert "needs train.txt, valid.txt and test.txt" in line


def test_a_missing_split_is_named_before_the_others_are_tokenised(
    refused: Refused, training: list[str], text: Path
) -> None:
    shutil.rmtree(text / "txl-cache")
    (text / "valid.txt").unlink()
    refused("train", *training, "--dataset", "wt103")
    assert not (text / "txl-cache").exists()


@pytest.mark.parametrize("split", ["train", "valid"])
def test_bytes_that_are_not_utf8_are_named_by_file_and_line(
    refused: Refused, training: list[str], text: Path, split: str
) -> None:
    lines = (text / f"{split}.txt").read_bytes().splitlines(keepends=True)
    lines[2] = " caf\xe9 \n".encode("latin1")
    (text / f"{split}.txt").write_bytes(b"".join(lines))
    line = refused("train", *training)
    assert f"{text / split}.txt, line 3: not UTF-8" in line
    assert "iconv -f latin1 -t utf-8" in line


def test_an_unknown_word_is_named_by_file_and_line_where_there_is_no_unk(
    refused: Refused, training: list[str], text: Path
) -> None:
    (text / "valid.txt").write_text("bab ded\nbab unread\n")
    line = refused("train", *training, "--dataset", "wt103")
    assert f"{text / 'valid.txt'}, line 2: the word 'unread' is not in the vocabulary" in line
    assert "use --dataset text" in line


# sizes and other values


def test_a_vocabulary_too_small_for_clusters_is_blamed_on_the_flag_that_was_typed(
    refused: Refused, training: list[str], tmp_path: Path, write_text: Callable[..., Path]
) -> None:
    small = write_text(tmp_path / "small", words=["only", "four", "words", "here"])
    assert "--adaptive" in refused("train", *training, "--data", small, "--adaptive")


def test_a_text_from_a_closed_standard_input_is_refused(
    refused: Refused, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in refused("eval", "--work_dir", run_folder, "--text", "-")
    assert "standard input is closed" in refused("generate", "--work_dir", run_folder, "--prompt", "-")
    assert "standard input is closed" in refused("generate", "--work_dir", run_folder, "--interactive")


def test_a_run_that_cannot_be_written_to_is_evaluated_without_a_picture(
    call: Callable[..., Any], run_folder: Path, text: Path, tmp_path: Path
) -> None:
    (run_folder / ".context.png.writable").mkdir()
    flags = ["--work_dir", run_folder, "--data", text, "--split", "test", "--mem_len", 0, 8]
    outcome = call("eval", *flags)
    assert (outcome.status, "no picture is drawn" in outcome.err) == (0, True)
    assert call("eval", *flags, "--pictures", tmp_path / "elsewhere").status == 0
    assert (tmp_path / "elsewhere" / "context.png").is_file()


@pytest.mark.parametrize("place", ["--text", "--context"])
@pytest.mark.parametrize(("content", "complaint"), [(b"", "is empty"), (b"  ", "is empty"), (b"bab \xe9", "not UTF-8")])
def test_a_text_that_cannot_be_scored_is_named(
    refused: Refused, run_folder: Path, tmp_path: Path, place: str, content: bytes, complaint: str
) -> None:
    (tmp_path / "good.txt").write_text("bab bad\n")
    (tmp_path / "bad.txt").write_bytes(content)
    files = {"--text": tmp_path / "good.txt", place: tmp_path / "bad.txt"}
    line = refused("eval", "--work_dir", run_folder, *itertools.chain(*files.items()))
    assert f"{tmp_path / 'bad.txt'}: {complaint}" in line


@pytest.mark.parametrize("flag", ["--json", "--per_token"])
def test_an_unwritable_result_of_a_text_is_named(
    refused: Refused, run_folder: Path, text: Path, below_a_file: Path, flag: str
) -> None:
    line = refused("eval", "--work_dir", run_folder, "--text", text / "test.txt", flag, below_a_file / "result.json")
    assert str(below_a_file) in line


def test_a_split_of_one_token_is_named(refused: Refused, run_folder: Path, text: Path) -> None:
    """A blank line is one `<eos>`."""
    (text / "test.txt").write_text("\n")
    line = refused("eval", "--work_dir", run_folder, "--data", text, "--split", "test")
    assert f"{text / 'test.txt'}: holds white space only" in line


@pytest.mark.parametrize("temperature", ["1e-40", "inf"])
def test_an_extreme_temperature_is_honoured_or_refused(
    call: Callable[..., Any], run_folder: Path, temperature: str
) -> None:
    outcome = call("generate", "--work_dir", run_folder, "--length", 3, "--no_unk", "--temperature", temperature)
    assert (outcome.status, "--temperature" in outcome.err) in [(0, False), (2, True)]


@pytest.mark.parametrize("prompt", ["", "  ", "\n", "\u00a0"])
def test_an_empty_prompt_is_refused(refused: Refused, run_folder: Path, prompt: str) -> None:
    line = refused("generate", "--work_dir", run_folder, "--prompt", prompt)
    assert "--prompt is empty" in line
    assert "or leave the flag out" in line


@pytest.mark.parametrize("flag", ["--prompt_file", "--prompts"])
@pytest.mark.parametrize(("content", "complaint"), [(b" \n\n", "is empty; give some text"), (b"bab \xe9", "not UTF-8")])
def test_a_file_of_prompts_that_cannot_be_used_is_named(
    refused: Refused, run_folder: Path, tmp_path: Path, flag: str, content: bytes, complaint: str
) -> None:
    (tmp_path / "my.txt").write_bytes(content)
    line = refused("generate", "--work_dir", run_folder, flag, tmp_path / "my.txt")
    assert str(tmp_path / "my.txt") in line
    assert complaint in line


def test_an_unknown_word_in_the_prompt_is_named_where_there_is_no_unk(
    refused: Refused, call: Callable[..., Any], training: list[str], tmp_path: Path
) -> None:
    call("train", *training, "--dataset", "wt103", "--max_step", 1)
    line = refused("generate", "--work_dir", tmp_path / "new_run", "--prompt", "bab unread")
    assert "--prompt: the word 'unread' is not in the vocabulary, which has no <unk>" in line


# the run's folder


@pytest.mark.parametrize("name", ["model.pt", "checkpoint_best.pt", "config.json", "pytorch_model.bin"])
def test_a_damaged_checkpoint_of_another_program_is_named(refused: Refused, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"model_type": "transfo-xl"}')
    for place in (tmp_path, tmp_path / name) if name != "config.json" else (tmp_path,):
        assert str(place) in refused("generate", "--work_dir", place)


def test_a_file_of_a_checkpoint_is_not_its_folder(refused: Refused, run_folder: Path, tmp_path: Path) -> None:
    checkpoint = run_folder / "step_00000004"
    for path in (checkpoint / "model.safetensors", checkpoint / "config.json", run_folder / "best"):
        for line in (refused("convert", path, tmp_path / "out"), refused("eval", "--work_dir", path)):
            assert f"{path}: is a file; name its folder, {path.parent}" in line


def test_weights_that_may_not_be_read_are_not_called_damaged(
    refused: Refused, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors says that a file it may not open is not there."""
    path = run_folder / (run_folder / "best").read_text().strip() / "model.safetensors"
    open_it = Path.open

    def forbid(asked: Path, *args: Any, **how: Any) -> Any:
        if asked == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_it(asked, *args, **how)

    def not_there(asked: Path, **_: Any) -> None:
        raise FileNotFoundError(f"No such file or directory: {asked}")

    monkeypatch.setattr(Path, "open", forbid)
    monkeypatch.setattr("txl.checkpoint.load.safe_open", not_there)
    assert f"{path}: Permission denied; change its permissions" in refused("generate", "--work_dir", run_folder)


@pytest.mark.parametrize("keep", [None, 0.0, 0.99])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt"])
def test_a_missing_or_truncated_file_of_a_checkpoint_is_named(
    refused: Refused, run_folder: Path, name: str, keep: float | None
) -> None:
    path = run_folder / (run_folder / "best").read_text().strip() / name
    path.unlink() if keep is None else cut(path, keep=keep)
    for entry in ("eval", "generate"):
        line = refused(entry, "--work_dir", run_folder)
        assert str(path) in line
        assert "use another checkpoint" in line


@pytest.mark.parametrize(
    "damage",
    [lambda record: record.pop("data"), lambda record: record["data"].update(dataset="?")],
    ids=["not said", "not known"],
)
def test_a_checkpoint_that_does_not_say_what_text_it_was_trained_on_is_named(
    refused: Refused, run_folder: Path, damage: Callable[[dict[str, Any]], None]
) -> None:
    path = run_folder / (run_folder / "best").read_text().strip() / "config.json"
    change_record(path.parent, damage)
    assert str(path) in refused("eval", "--work_dir", run_folder)


def test_a_pointer_to_no_checkpoint_is_passed_over(call: Callable[..., Any], run_folder: Path) -> None:
    for pointer, content in (("best", b"step_00000099\n"), ("best", b"\xff\xfe"), ("latest", b"")):
        (run_folder / pointer).write_bytes(content)
        assert call("generate", "--work_dir", run_folder, "--length", 1).status == 0


def test_weights_that_are_not_numbers_are_named(refused: Refused, run_folder: Path) -> None:
    path = run_folder / (run_folder / "best").read_text().strip() / "model.safetensors"
    change_weights(run_folder, lambda weight: torch.full_like(weight, torch.nan))
    assert str(path.parent) in refused("generate", "--work_dir", run_folder)


def test_weights_of_another_shape_are_named(refused: Refused, run_folder: Path) -> None:
    checkpoint = run_folder / (run_folder / "best").read_text().strip()
    change_record(checkpoint, lambda record: record["model"].update(n_layer=3))
    line = refused("generate", "--work_dir", run_folder)
    assert f"{checkpoint / 'model.safetensors'}: the weights do not fit" in line
    assert "use another checkpoint" in line


def test_a_text_with_another_vocabulary_is_refused(
    refused: Refused, run_folder: Path, tmp_path: Path, write_text: Callable[..., Path]
) -> None:
    other = write_text(tmp_path / "other", words=["other", "words", "than", "those"])
    line = refused("eval", "--work_dir", run_folder, "--data", other)
    assert f"{other}: its vocabulary (6 words) is not the one" in line
    assert "give the --data and --dataset of the training run" in line


def test_a_text_that_has_changed_since_the_run_to_go_on_with_is_named(
    refused: Refused, training: list[str], text: Path, run_folder: Path
) -> None:
    (text / "valid.txt").write_text("bab bad\n")
    line = refused("train", *training, "--work_dir", run_folder, "--resume", "--max_step", 8, *STRETCHED)
    assert "valid.txt has changed" in line
    assert "bring the text back, or start a new run" in line


def test_a_vocabulary_that_has_changed_since_the_run_to_go_on_with_is_named(
    refused: Refused, training: list[str], text: Path, run_folder: Path
) -> None:
    (text / "train.txt").write_text((text / "train.txt").read_text().replace("bab", "new"))
    line = refused("train", *training, "--work_dir", run_folder, "--resume", "--max_step", 8, *STRETCHED)
    assert f"{text}: its vocabulary is no longer the one" in line
    assert "bring the text back, or start a new run" in line


@pytest.mark.parametrize("keep", [0.5])
@pytest.mark.parametrize("name", ["optimizer.safetensors", "progress.json", "streams_*"])
def test_a_truncated_checkpoint_to_go_on_from_is_named(
    refused: Refused, training: list[str], run_folder: Path, name: str, keep: float
) -> None:
    (path,) = run_folder.glob(f"step_00000004/{name}")
    cut(path, keep=keep)
    line = refused("train", *training, "--work_dir", run_folder, "--resume", "--max_step", 8, *STRETCHED)
    assert str(path) in line
    assert "use another checkpoint" in line


# disks and folders


@pytest.fixture
def below_a_file(tmp_path: Path) -> Path:
    """A folder that nobody can make, root included."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "folder"


def test_an_unwritable_run_folder_is_found_before_the_text_is_read(
    refused: Refused, training: list[str], below_a_file: Path, tmp_path: Path
) -> None:
    assert str(below_a_file) in refused("train", *training, "--work_dir", below_a_file, "--data", tmp_path / "nowhere")


def test_an_unwritable_folder_of_token_files_is_named(
    refused: Refused, training: list[str], below_a_file: Path
) -> None:
    line = refused("train", *training, "--cache_dir", below_a_file)
    assert str(below_a_file) in line
    assert "name another folder with --cache_dir" in line


def test_an_unwritable_json_is_named(refused: Refused, run_folder: Path, text: Path, below_a_file: Path) -> None:
    line = refused("eval", "--work_dir", run_folder, "--data", text, "--json", below_a_file / "result.json")
    assert str(below_a_file) in line
    assert "name a folder that can be written" in line


def test_a_full_disk_is_named_by_the_store_it_stopped(
    refused: Refused, training: list[str], text: Path, full_disk: FullDisk
) -> None:
    shutil.rmtree(text / "txl-cache")
    with full_disk(1024):
        line = refused("train", *training)
    assert str(text / "txl-cache") in line
    assert "make room" in line


def test_a_disk_that_fills_up_while_flushing_is_named_by_the_checkpoint_it_stopped(
    refused: Refused, training: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    line = refused("train", *training)
    assert str(tmp_path / "new_run") in line
    assert "No space left on device; make room" in line


def test_a_full_disk_costs_no_earlier_checkpoint(
    call: Callable[..., Any], training: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_run, fsync = tmp_path / "new_run", os.fsync

    def full_from_the_second_checkpoint_on(descriptor: int) -> None:
        if (new_run / "latest").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full_from_the_second_checkpoint_on)
    call("train", *training)
    assert (new_run / (new_run / "latest").read_text().strip() / "model.safetensors").is_file()


def test_a_full_disk_is_named_by_the_metrics_it_stopped(
    refused: Refused, training: list[str], tmp_path: Path, full_disk: FullDisk
) -> None:
    with full_disk(1000):
        line = refused("train", *training)
    assert str(tmp_path / "new_run" / "metrics.jsonl") in line
    assert "make room" in line


TEN_LENGTHS = ["--mem_len", *map(str, range(10, 20))]


def test_a_full_disk_is_named_by_the_json_it_stopped(
    refused: Refused, run_folder: Path, text: Path, tmp_path: Path, full_disk: FullDisk
) -> None:
    with full_disk(9000):
        line = refused("eval", "--work_dir", run_folder, "--data", text, *TEN_LENGTHS, "--json", tmp_path / "new.json")
    assert str(tmp_path / "new.json") in line
    assert "make room" in line


def test_a_full_disk_leaves_an_older_json_as_it_was(
    call: Callable[..., Any], run_folder: Path, text: Path, tmp_path: Path, full_disk: FullDisk
) -> None:
    (tmp_path / "old.json").write_text("{}")
    with full_disk(5000):
        call("eval", "--work_dir", run_folder, "--data", text, *TEN_LENGTHS, "--json", tmp_path / "old.json")
    assert (tmp_path / "old.json").read_text() == "{}"


def test_a_full_disk_leaves_an_older_picture_as_it_was(
    call: Callable[..., Any], run_folder: Path, text: Path, full_disk: FullDisk
) -> None:
    (run_folder / "context.png").write_bytes(b"an older picture")
    with full_disk(5000):
        call("eval", "--work_dir", run_folder, "--data", text, "--split", "valid", "--mem_len", 0, 8)
    assert (run_folder / "context.png").read_bytes() == b"an older picture"


# token files


def test_a_truncated_store_is_made_anew(call: Callable[..., Any], training: list[str], text: Path) -> None:
    (ids,) = (text / "txl-cache").glob("text-train-*/ids.bin")
    whole = ids.read_bytes()
    cut(ids, keep=0.9)
    assert call("train", *training).status == 0
    assert ids.read_bytes() == whole


# Ctrl-C


@pytest.fixture
def press_at_call(ctrl_c: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], None]:
    """Presses Ctrl-C in a certain call of the function that stands at `place`."""

    def press_at_call(number: int, place: str) -> None:
        module, _, name = place.rpartition(".")
        original = getattr(sys.modules[module], name)
        calls = itertools.count(1)

        def pressing(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == number:
                ctrl_c()
            return original(*args, **kwargs)

        monkeypatch.setattr(place, pressing)

    return press_at_call


PressAtCall = Callable[[int, str], None]


@pytest.mark.parametrize(
    "place", ["txl.training.loop.train_line", "torch.nn.utils.clip_grad_norm_", "txl.training.loop.eval_line"]
)
def test_ctrl_c_saves_the_last_whole_update_and_says_where(
    call: Callable[..., Any], training: list[str], tmp_path: Path, press_at_call: PressAtCall, place: str
) -> None:
    press_at_call(3, place)
    outcome = call("train", *training, "--log_interval", 1)
    saved = tmp_path / "new_run" / "step_00000003"
    said = f"train.py: interrupted after step 3; saved in {saved}; continue with --resume\n"
    assert (outcome.status, outcome.err) == (130, said)


def test_a_second_ctrl_c_does_not_stop_the_saving(
    call: Callable[..., Any], training: list[str], tmp_path: Path, press_at_call: PressAtCall
) -> None:
    press_at_call(2, "txl.training.loop.train_line")
    press_at_call(1, "txl.checkpoint.save.save_file")
    call("train", *training, "--log_interval", 1, "--eval_interval", 100)
    assert (tmp_path / "new_run" / "step_00000002" / "config.json").is_file()


def test_ctrl_c_leaves_no_token_file_half_written(
    call: Callable[..., Any],
    training: list[str],
    text: Path,
    press_at_call: PressAtCall,
    leftovers: Callable[[], list[Path]],
) -> None:
    shutil.rmtree(text / "txl-cache")
    press_at_call(2, "txl.data_utils.tokenizers.words.array")
    outcome = call("train", *training)
    assert (outcome.status, leftovers()) == (130, [])


@pytest.mark.parametrize(
    ("entry", "place"),
    [("eval", "txl.evaluation.report.perplexity"), ("generate", "txl.generation.sampling.require_in_range")],
)
def test_ctrl_c_ends_a_program_in_one_line(
    call: Callable[..., Any], run_folder: Path, press_at_call: PressAtCall, entry: str, place: str
) -> None:
    press_at_call(1, place)
    outcome = call(entry, "--work_dir", run_folder)
    assert (outcome.status, outcome.err) == (130, f"{entry}.py: interrupted; nothing was left half written\n")


def test_a_mistake_at_the_console_is_one_line_and_no_traceback(training: list[str], tmp_path: Path) -> None:
    process = console("train", *training, "--d_model", "17", folder=tmp_path)
    assert (process.returncode, process.stdout) == (2, "")
    assert re.fullmatch(r"train.py: --d_model 17: must be even[^\n]*\n", process.stderr)


# position encodings


def test_floater_says_what_it_needs(
    refused: Callable[..., str], training: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    line = refused("train", *training, "--position", "floater")
    assert "--position floater: needs torchdiffeq, which is not installed; pip install torchdiffeq" in line


@pytest.mark.parametrize("name", ["attention", "activation", "recurrence"])
def test_a_choice_that_is_not_there_is_refused_from_python_too(name: str) -> None:
    with pytest.raises(UsageError, match=f"--{name} foo: no such choice; there are {getattr(ModelConfig, name)}, "):
        ModelConfig(n_token=5, **{name: "foo"})
