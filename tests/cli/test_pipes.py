"""A pipe in the place of a file blocks nobody, and a device is not read without end."""

import hashlib
import json
import os
import shlex
import sys
from pathlib import Path
from threading import Thread

import pytest

from tests.cli.conftest import Here
from tests.forks import ROOT
from txl.checkpoint.folder import read_into, tensors_in
from txl.config import UsageError
from txl.files import NoFileError, content_of, require_readable, sha256, typed_content

ENDLESS = "/dev/zero: is a device, which may never end"


def put_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize("name", ["config.json", "SHA256SUMS", "vocab.txt", "model.safetensors"])
def test_a_pipe_in_a_checkpoint_is_named(here: Here, name: str) -> None:
    path = Path("run/step_00000004") / name
    put_pipe(path)
    for line in ("eval --split valid", "generate --length 1", "train --work_dir run --resume"):
        said = here.refused(line)
        assert f"{path}: " in said
        assert "; use another checkpoint of the run, or train again" in said


def test_a_run_is_read_beside_pipes_that_are_not_needed(here: Here) -> None:
    for name in ("latest", "best", "metrics.jsonl"):
        put_pipe(Path("run", name))
    for name in ("optimizer.safetensors", "progress.json", "streams_00000_00004.safetensors"):
        put_pipe(Path("run/step_00000004", name))
    here("eval --split valid")
    here("generate --length 1")


def test_tokens_beside_pipes_are_made_anew(here: Here) -> None:
    cache = Path("text/txl-cache")
    for path in Path("text").glob("*.txt"):
        os.utime(path, (0, 0))  # what is known of younger files is not kept
    here("train --max_step 1")
    files = [path for path in cache.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"checked.json", "store.json", "vocab.txt", "ids.bin"}
    for path in files:
        put_pipe(path)
    here("train --max_step 1 --work_dir other")
    assert all(not path.is_fifo() for path in cache.rglob("ids.bin"))


def test_a_vocabulary_whose_record_names_no_files_may_be_a_pipe(here: Here) -> None:
    here("train --max_step 1")
    (folder,) = Path("text/txl-cache").glob("text-vocabulary-*")
    put_pipe(folder / "vocab.txt")
    record = {"sha256": {}}
    digest = hashlib.sha256(json.dumps(record).encode()).hexdigest()
    (folder / "store.json").write_text(json.dumps({**record, "digest": digest}))
    here("train --max_step 1 --work_dir other")


def test_shards_are_not_read_beside_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "other.safetensors")
    with pytest.raises(UsageError, match="missing, truncated or damaged"):
        tensors_in(tmp_path)
    with pytest.raises(UsageError, match="missing, truncated or damaged"):
        read_into({}, tmp_path)


def test_a_pipe_is_no_vocabulary_and_no_weights(here: Here) -> None:
    weights = shlex.quote(f"{ROOT}/tests/golden/hf/hf_div2")
    for name in ("v.txt", "v.json", "v.bin"):
        put_pipe(Path(name))
        assert f"{name}: " in here.refused(f"convert {weights} out --vocab {name}")
    Path("weights").mkdir()
    put_pipe(Path("weights/model.pt"))
    assert "weights: holds no checkpoint" in here.refused("convert weights out")


def test_files_that_a_user_names_may_be_pipes_but_no_devices(here: Here) -> None:
    for line in (
        "eval --text /dev/zero",
        "eval --text text/test.txt --context /dev/zero",
        "generate --prompt_file /dev/zero",
        "convert run out --about /dev/zero",
    ):
        assert ENDLESS in here.refused(line)
    said = here.refused("train --work_dir other --dataset bpe --tokenizer /dev/zero")
    assert "/dev/zero: cannot be read (is a device, which may never end)" in said
    os.mkfifo("pipe")
    writer = Thread(target=Path("pipe").write_text, args=("ba be",))
    writer.start()
    assert here("generate --length 1 --prompt_file pipe").out.startswith("ba be")
    writer.join()


def test_standard_input_is_no_device_either(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/zero") as zero:
        monkeypatch.setattr(sys, "stdin", zero)
        assert "-: is a device, which may never end" in here.refused("generate --prompt_file -")
        said = here.refused("generate --length 1 --interactive")
        assert (
            "standard input is a device, which may never end; --interactive reads a terminal"
            in said
        )
    with open("text/test.txt") as file:
        monkeypatch.setattr(sys, "stdin", file)
        here("eval --text -")


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        for read in (content_of, sha256, require_readable):
            with pytest.raises(NoFileError, match="is a folder, a pipe or a device, and no file"):
                read(name)
    assert typed_content("/dev/null") == b""
    require_readable(tmp_path / "none")
