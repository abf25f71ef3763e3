"""Errors of the machine and of the environment: one line that fits the cause, never a traceback."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import change_record
from txl.cli import run
from txl.runtime.log import in_one_line

ROOT = Path(__file__).parents[2]

Refused = Callable[..., str]
Call = Callable[..., Any]


@pytest.fixture
def ending(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], str]:
    """The line with which a program ends, with status 2, that raises this error."""

    def ending(error: BaseException) -> str:
        def main(argv: Sequence[str]) -> None:
            raise error

        monkeypatch.setattr(sys, "argv", ["train.py"])
        with pytest.raises(SystemExit) as stop:
            run(main)
        assert stop.value.code == 2
        return capfd.readouterr().err

    return ending


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "change its permissions, or name another"),
        (errno.ENOENT, "check the name"),
        (errno.ENOSPC, "make room, or name a folder that can be written"),
        (errno.EROFS, "name a folder that can be written"),
        (errno.EMFILE, "raise the limit with ulimit -n"),
    ],
)
def test_an_error_of_the_file_system_gets_the_remedy_for_its_cause(
    ending: Callable[[BaseException], str], number: int, remedy: str
) -> None:
    line = ending(OSError(number, os.strerror(number), "text/train.txt"))
    assert line.startswith(f"train.py: text/train.txt: {os.strerror(number)}; ")
    assert line.endswith(f"{remedy}\n")
    assert ("make room" in line) == (number == errno.ENOSPC)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        MemoryError("Unable to allocate 2.00 GiB for an array with shape (1, 2)"),
    ],
)
def test_an_allocation_that_fails_is_one_line(ending: Callable[[BaseException], str], error: Exception) -> None:
    line = ending(error)
    assert line.startswith("train.py: out of memory")
    assert line.count("\n") == 1
    assert "smaller --batch_size" in line
    assert ("(allocating 2.00 GiB)" in line) == ("GiB" in str(error))


def test_another_runtime_error_keeps_its_traceback() -> None:
    def main(argv: Sequence[str]) -> None:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        run(main)


@pytest.mark.parametrize(
    ("entry", "part", "name", "value", "complaint"),
    [
        ("generate", "model", "n_head", 0, "n_head 0: must be at least 1"),
        ("eval", "context", "mem_len", -5, "mem_len -5: must be at least 0"),
        ("train", "train", "dropout", 7.0, "dropout 7.0: must be at least 0 and below 1"),
        ("train", "train", "of_tomorrow", 1, "the field 'of_tomorrow' is not known"),
        ("train", "data", "min_freq", -3, "min_freq"),
    ],
)
def test_a_value_of_a_checkpoint_is_blamed_on_its_file(
    refused: Refused,
    training: list[str],
    run_folder: Path,
    entry: str,
    part: str,
    name: str,
    value: Any,
    complaint: str,
) -> None:
    for folder in run_folder.glob("step_*"):
        change_record(folder, lambda record: record[part].update({name: value}))
    flags = [*training, "--resume"] if entry == "train" else []
    line = refused(entry, *flags, "--work_dir", run_folder)
    assert f"{run_folder}/step_0000000" in line
    assert "config.json: " in line
    assert complaint in line
    assert "--" not in line


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE=abc: must be a whole number"),
        ({"WORLD_SIZE": "2"}, "RANK=: must be a whole number"),
        ({"WORLD_SIZE": "2", "RANK": "5"}, "RANK=5: must be from 0 to WORLD_SIZE - 1 (1)"),
        ({"WORLD_SIZE": "2", "RANK": "1"}, "WORLD_SIZE=2, but MASTER_ADDR is not set"),
    ],
)
def test_an_environment_that_torchrun_has_not_made_is_refused(
    training: list[str], environment: dict[str, str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from txl.config import UsageError
    from txl.runtime.distributed import process_group

    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as refusal, process_group(timeout_s=1):
        pass
    assert complaint in str(refusal.value)
    assert "torchrun" in str(refusal.value)


def test_a_work_dir_that_is_not_utf8_is_refused(refused: Refused, training: list[str]) -> None:
    assert "\\udce9: not UTF-8" in refused("train", *training, "--work_dir", os.fsdecode(b"caf\xe9"))


def test_ctrl_c_while_libraries_are_imported_is_one_line(tmp_path: Path) -> None:
    """PyTorch is a module here that presses Ctrl-C and then catches everything, as half imported libraries do."""
    press = "os.kill(os.getpid(), signal.SIGINT)\n time.sleep(9)"
    fake = f"import os, signal, time\ntry:\n {press}\nexcept BaseException: pass\n"
    (tmp_path / "torch.py").write_text(fake)
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import runpy, sys; "
    program += f"sys.argv = ['train.py']; runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "train.py: interrupted\n")


def test_a_model_that_is_larger_than_the_machine_is_refused_before_it_is_built(
    refused: Refused, training: list[str]
) -> None:
    line = refused("train", *training, "--d_model", 100_000_000)
    assert "out of memory before the first step" in line
    assert "lower --batch_size" in line


def test_a_memory_longer_than_any_text_is_no_burden_in_training(call: Call, training: list[str]) -> None:
    assert call("train", *training, "--mem_len", 2_000_000_000, "--max_step", 1).status == 0


def test_a_message_is_one_line_that_keeps_its_beginning_and_its_end() -> None:
    line = in_one_line("the thing:\n" + "x" * 9000 + " do this")
    assert len(line) == 500
    assert (line[:10], line[-7:]) == ("the thing:", "do this")
