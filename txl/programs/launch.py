"""Start a program: threads that share the cores, and Ctrl-C and SIGTERM that end it in one line, also
during imports.

Only the standard library is imported before the program is.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn


class Program(NamedTuple):
    """A program: the module with its `main`, what it does, and the same command without installing
    txl.
    """

    module: str
    does: str
    same: str


PROGRAMS = {
    "try": Program(
        "txl.programs.try_text",
        "does a memory help on a text of your own? minutes, one sentence",
        "./run_wt103.sh try",
    ),
    "train": Program(
        "txl.programs.train",
        "train a model on a folder of text, in one process or in many",
        "python train.py",
    ),
    "eval": Program(
        "txl.programs.eval",
        "perplexity of splits at any context length",
        "python eval.py",
    ),
    "score": Program(
        "txl.programs.score", "the loss of each token of any text", "python eval.py --text"
    ),
    "report": Program(
        "txl.programs.report",
        "a page to look at: what memory is worth, and where",
        "python -m txl report",
    ),
    "generate": Program("txl.programs.generate", "continue texts", "python generate.py"),
    "read": Program(
        "txl.programs.read",
        "read a text once, and keep what is remembered of it",
        "python -m txl read",
    ),
    "convert": Program(
        "txl.programs.convert", "checkpoints of other programs, in and out", "python -m txl.convert"
    ),
    "download": Program(
        "txl.data_utils.download",
        "load a published data set, checked and resumed",
        "python -m data_utils.download",
    ),
    "lm_eval": Program("txl.lm_eval", "lm-evaluation-harness on a model", "python -m txl.lm_eval"),
}
_LAB = "moved to the laboratory, lab/ of a clone; type python -m lab."
GONE = {
    "recl": f"{_LAB}recl RUN RUN ...",
    "study": f"{_LAB}studies FILE",
    "studies": f"{_LAB}studies FILE",
    "occurrences": f"{_LAB}studies.occurrences FILE ...",
    "fill": f"{_LAB}studies.fill PAGE.md ...",
    "estimate": "is gone; the first lines of a training's log give its memory, a short run its"
    " tokens per second, and docs/scaling.md says what to set on many GPUs",
}
"""What is said of programs that are not here any more, by the names that they had."""
_WAITING = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
"""How long waiting threads spin before they sleep. If they spin for ever, programs that share the
cores slow each other down many times over; if not at all, the threads of one program wait for each
other to wake up.
"""


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the process in one line: libraries that are imported catch exceptions, or
    turn them into others.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if handler is not signal.SIG_IGN:  # a shell may have started us so
                before[number] = handler
                signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def launch(name: str) -> None:
    """Import one of `PROGRAMS` and run it with the arguments of the command line; never returns."""
    if name in ("train", "try"):
        # they ask a run to save and stop: blocked until the training handles them, or they would
        # kill the process
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
    prepare()
    import_module("txl.runtime.clock").note_launch()
    with ends_at_once():
        try:
            main = import_module(PROGRAMS[name].module).main
        except ImportError as error:
            if error.name is not None:  # else the program says what to install
                raise
            _refuse(str(error))
        run = import_module("txl.programs.run").run
    run(main)


def prepare() -> None:
    """Before PyTorch is imported: find it, and let its threads share the cores."""
    _use_own_environment()
    if not _WAITING & os.environ.keys():  # read by OpenMP when torch is imported
        os.environ |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "20000"}


def refuse_gone(name: str) -> NoReturn:
    """Say what there is in place of a program of `GONE`, and exit with status 2."""
    print(f"txl {name}: {GONE[name]}", file=sys.stderr)
    sys.exit(2)


def _use_own_environment() -> None:
    """Where this Python has no PyTorch, start again with that of .venv beside this package, which
    the scripts make.
    """
    if find_spec("torch") is not None:
        return
    venv = Path(__file__).absolute().parents[2] / ".venv"
    python = venv / "bin" / "python"
    if python.is_file() and Path(sys.prefix) != venv:
        os.execv(python, [str(python), *sys.orig_argv[1:]])
    _refuse(
        f"{sys.executable} has no PyTorch; pip install -r requirements.txt, or name a Python that"
        " has it"
    )


def _refuse(why: str) -> NoReturn:
    print(f"{os.path.basename(sys.argv[0])}: {why}", file=sys.stderr)
    sys.exit(2)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    what = "interrupted"
    if number == signal.SIGTERM:
        what = "stopped by SIGTERM"
    os.write(2, f"{os.path.basename(sys.argv[0])}: {what}\n".encode())
    os._exit(128 + number)
