"""What refused command lines print: refusals.txt, made and compared here, read by people when a message changes.

    TXL_WRITE_REFUSALS=1 python -m pytest tests/cli/test_refusals.py -p no:xdist

writes the messages anew. `conftest.BEFORE` stands before the flags of a line. Errors of the machine and of the
environment are one line that fits the cause, never a traceback.
"""

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Here, contents
from tests.forks import ROOT
from txl.config import UsageError
from txl.programs.run import run
from txl.runtime.distributed import process_group
from txl.runtime.log import in_one_line

FILE = Path(__file__).with_name("refusals.txt")
BLOCK = re.compile(r"^\$ (?P<line>(?P<entry>\w+)\b.*)\n(?P<message>.*)$", re.MULTILINE)
BLOCKS = [match.groupdict() for match in BLOCK.finditer(FILE.read_text())]


@pytest.mark.parametrize("entry", sorted({block["entry"] for block in BLOCKS}))
def test_a_refused_command_line_prints_its_line_and_changes_nothing(entry: str, here: Here) -> None:
    before, found = contents_but_the_cache(), {}
    mine = {block["line"]: block["message"] for block in BLOCKS if block["entry"] == entry}
    for line in mine:
        # choices have no quotes from Python 3.12 on
        said = here.refused(line).replace(str(Path.cwd()), "HERE")
        found[line] = re.sub(r"\(choose from .*\)", lambda match: match[0].replace("'", ""), said)
    assert contents_but_the_cache() == before
    if "TXL_WRITE_REFUSALS" in os.environ:
        text = BLOCK.sub(
            lambda m: f"$ {m['line']}\n{found.get(m['line'], m['message'])}", FILE.read_text()
        )
        FILE.write_text(text)
    else:
        assert found == mine


def contents_but_the_cache() -> dict[str, bytes]:
    """Without that of the text, whose checks are noted as they are made."""
    return {name: content for name, content in contents(Path()).items() if "txl-cache" not in name}


# the machine and the environment

Ending = Callable[[BaseException], str]


@pytest.fixture
def ending(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ending:
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


def test_an_error_of_the_file_system_gets_the_remedy_for_its_cause(ending: Ending) -> None:
    remedies = {
        errno.EACCES: "change its permissions, or name another",
        errno.ENOENT: "check the name",
        errno.ENOSPC: "make room, or name a folder that can be written",
        errno.EROFS: "name a folder that can be written",
        errno.EMFILE: "too many files are open; raise the limit with ulimit -n",
    }
    for number, remedy in remedies.items():
        line = ending(OSError(number, os.strerror(number), "text/train.txt"))
        assert line == f"train.py: text/train.txt: {os.strerror(number)}; {remedy}\n"


def test_an_allocation_that_fails_is_one_line_and_another_error_keeps_its_traceback(
    ending: Ending,
) -> None:
    errors = {
        "GPU": torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..."
        ),
        "CPU": RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you ..."
        ),
        "numpy": MemoryError("Unable to allocate 2.00 GiB for an array with shape (1, 2)"),
    }
    for name, error in errors.items():
        line = ending(error)
        size = "" if name == "CPU" else " (allocating 2.00 GiB)"
        assert line.startswith(f"train.py: out of memory{size}: use a smaller --batch_size")
        assert line.count("\n") == 1
    with pytest.raises(RuntimeError, match="shapes differ"):
        ending(RuntimeError("shapes differ"))


GOOD = "WORLD_SIZE=2 RANK=0 MASTER_ADDR=localhost MASTER_PORT=29500"
BAD = {
    "WORLD_SIZE=abc": "WORLD_SIZE=abc: must be a whole number",
    "WORLD_SIZE=2": "RANK=: must be a whole number",
    "WORLD_SIZE=2 RANK=5": r"RANK=5: must be from 0 to WORLD_SIZE - 1 \(1\)",
    "WORLD_SIZE=2 RANK=1": "WORLD_SIZE=2, but MASTER_ADDR is not set",
    **{
        f"{GOOD} {bad}": f"^{bad}: must be "
        for bad in ("MASTER_PORT=99999", f"WORLD_SIZE={10**12}", "MASTER_PORT=0")
    },
}


def test_an_environment_that_torchrun_has_not_made_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for environment, complaint in BAD.items():
        with monkeypatch.context() as patch:
            for word in GOOD.split():
                patch.delenv(word.partition("=")[0], raising=False)
            for word in environment.split():
                patch.setenv(*word.split("="))
            with pytest.raises(UsageError, match=complaint), process_group(timeout_s=1):
                pass


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "stopped by SIGTERM")],
)
def test_a_signal_while_libraries_are_imported_is_one_line(
    tmp_path: Path, name: str, status: int, said: str
) -> None:
    """PyTorch is a module here that presses Ctrl-C and then catches everything, as half imported libraries do."""
    fake = f"import signal\ntry:\n signal.raise_signal(signal.{name})\nexcept BaseException: pass\n"
    (tmp_path / "torch.py").write_text(fake)
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import runpy, sys; "
    program += (
        f"sys.argv = ['train.py']; runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')"
    )
    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (status, f"train.py: {said}\n")


def test_what_no_machine_or_locale_can_serve_is_refused_before_it_is_made(here: Here) -> None:
    said = "out of memory before the first step.*lower --batch_size"
    assert re.search(said, here.refused("train --d_model 100000000"))
    assert "\\udce9: not UTF-8" in here.refused("train --work_dir caf\udce9")


def test_a_message_is_one_line_that_keeps_its_beginning_and_its_end() -> None:
    line = in_one_line("the thing:\n" + "x" * 9000 + " do this")
    assert len(line) == 500
    assert (line[:10], line[-7:]) == ("the thing:", "do this")
