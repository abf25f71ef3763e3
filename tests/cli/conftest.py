"""A tiny text, a tiny trained model, and the programs, called in this process by their command lines."""

import contextlib
import importlib
import io
import json
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import sign
from txl import plugins
from txl.programs.run import run
from txl.registry import ALL_PARTS, DATA_SETS, SOURCES
from txl.training import metrics

WORDS = [
    a + b
    for a in ("ba", "de", "fi", "go", "ku", "lo", "mi", "ne")
    for b in ("b", "d", "f", "k", "l", "n", "r", "s")
]
N_WORD = {"train": 800, "valid": 120, "test": 90}
# weights so large that memory and batch boundaries show in the loss
TINY = (
    "--dataset text --d_model 16 --n_layer 2 --n_head 2 --d_head 8 --d_inner 32 --batch_size 4 --tgt_len 8 --mem_len 8 "
    "--eval_tgt_len 8 --max_step 4 --eval_interval 1 --log_interval 2 --init_std 0.2 --sample_length 1"
).split()
BEFORE = {
    "train": ["--data", "text", "--work_dir", "new", *TINY],
    "eval": ["--work_dir", "run", "--data", "text"],
    "eval --text": ["--work_dir", "run"],
    "generate": ["--work_dir", "run"],
}
"""Flags that stand before those of a line, with which the program would succeed."""


def change_weights(run: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change the weights of a run's checkpoints, on purpose: their digests are those of the new ones."""
    for path in run.glob("step_*/model.safetensors"):
        save_file({name: change(weight) for name, weight in load_file(path).items()}, path)
        sign(path.parent)


def pointed(run: Path, pointer: str = "latest") -> Path:
    return run / (run / pointer).read_text().strip()


def config_of(run: Path) -> dict[str, Any]:
    """What the newest checkpoint of a run says of itself."""
    return json.loads((pointed(run) / "config.json").read_text())


def records(run: Path, kind: str = "") -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record for record in lines if kind in ("", record["kind"])]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@dataclass(frozen=True)
class Outcome:
    """How a program ended and what it said."""

    status: int
    out: str
    err: str

    @property
    def notes(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("note: ")]

    @property
    def complaints(self) -> list[str]:
        return [line for line in self.err.splitlines() if not line.startswith("note: ")]


@dataclass(frozen=True)
class Trained:
    """A finished run, the text it was trained on, and what the training printed. Not to be written to."""

    run: Path
    text: Path
    out: str


@dataclass(frozen=True)
class Here:
    """The current folder: copies of the trained run and of its text lie in it as run and text, and `train` makes new.

    Programs are called by their command lines, behind `BEFORE`.
    """

    call: Callable[..., Outcome]

    def __call__(self, line: str, *, status: int = 0) -> Outcome:
        entry, *words = shlex.split(line)
        flag = ""
        if entry == "eval" and "--text" in words:
            flag = "--text"
        outcome = self.call(entry, *BEFORE.get(f"{entry} {flag}".strip(), []), *words)
        assert outcome.status == status, outcome
        return outcome

    def result(self, line: str) -> dict[str, Any]:
        """What an evaluation writes, and what it prints under "out"."""
        Path("result.json").unlink(missing_ok=True)  # perhaps another program's
        outcome = self(f"{line} --json result.json")
        return json.loads(Path("result.json").read_text()) | {"out": outcome.out}

    def rows(self, line: str) -> list[dict[str, Any]]:
        return self.result(line)["rows"]

    def row(self, line: str) -> dict[str, Any]:
        (row,) = self.rows(line)
        return row

    def refused(self, line: str) -> str:
        """The line in which a program says why it refuses a command line."""
        outcome = self(line, status=2)
        assert len(outcome.complaints) == 1, outcome.err
        assert len(outcome.complaints[0]) <= 500
        assert half_written(Path()) == []
        return outcome.complaints[0]


def half_written(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.name.endswith(".tmp") or path.name.startswith(".")
    ]


@pytest.fixture(scope="session", autouse=True)
def one_look_at_git() -> Iterator[None]:
    """Each training asks git for the commit of the code; here only the first does."""
    asked: dict[tuple[str, ...], Any] = {}

    def run(words: list[str], **how: Any) -> Any:
        if tuple(words) not in asked:
            asked[tuple(words)] = subprocess.run(words, **how)
        return asked[tuple(words)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            metrics,
            "subprocess",
            SimpleNamespace(run=run, SubprocessError=subprocess.SubprocessError),
        )
        yield


@pytest.fixture(scope="session")
def entry_points() -> dict[str, ModuleType]:
    names = "train train_many eval score report read generate convert".split()
    modules = {name: importlib.import_module(f"txl.programs.{name}") for name in names}
    return {**modules, "try": importlib.import_module("txl.programs.try_text")}


def random_text(
    folder: Path,
    *,
    seed: int = 0,
    words: Sequence[str] = WORDS,
    n_word: Mapping[str, int] = MappingProxyType(N_WORD),
) -> Path:
    """A folder of text in which every word of `words` occurs; another seed, other words or another text."""
    dice = random.Random(seed)
    folder.mkdir(parents=True)
    for split, n in n_word.items():
        all_words = words if split == "train" else words[::-1]  # no line of theirs is one of train
        drawn = [*all_words, *dice.choices(words, k=n - len(words))]
        lines = [" ".join(drawn[i : i + 10]) for i in range(0, n, 10)]
        (folder / f"{split}.txt").write_text(
            "".join(f" {line} \n" for line in lines), encoding="utf-8"
        )
    return folder


@pytest.fixture(scope="session")
def write_text() -> Callable[..., Path]:
    return random_text


def train_here(folder: Path, flags: str = "") -> Trained:
    """Train on the text of a folder, without a test that looks on."""
    out, train = io.StringIO(), importlib.import_module("txl.programs.train")
    with contextlib.redirect_stdout(out):
        train.main(
            [
                "--data",
                str(folder / "text"),
                "--work_dir",
                str(folder / "run"),
                *TINY,
                *flags.split(),
            ]
        )
    return Trained(folder / "run", folder / "text", out.getvalue())


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, write_text: Callable[..., Path]) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    write_text(folder / "text")
    return train_here(folder)


@pytest.fixture
def text(trained: Trained, tmp_path: Path) -> Path:
    """The text of the trained model with its token files, to be damaged at will."""
    return shutil.copytree(trained.text, tmp_path / "text")


@pytest.fixture
def run_folder(trained: Trained, tmp_path: Path) -> Path:
    """The run of the trained model, to be damaged at will."""
    return shutil.copytree(trained.run, tmp_path / "run")


@pytest.fixture
def training(text: Path, tmp_path: Path) -> list[str]:
    """Flags of a training that would succeed; later flags win over them."""
    return ["--data", str(text), "--work_dir", str(tmp_path / "new_run"), *TINY]


@pytest.fixture
def call(
    entry_points: dict[str, ModuleType],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Outcome]:
    """Calls an entry point as the console would; an exception that would be a traceback there is raised here."""

    def call(entry: str, *flags: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", [f"{entry}.py", *map(str, flags)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            run(entry_points[entry].main)
        return Outcome(int(stop.value.code or 0), *capfd.readouterr())

    return call


@pytest.fixture
def here(
    call: Callable[..., Outcome],
    run_folder: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Here:
    monkeypatch.chdir(tmp_path)
    return Here(call)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pictures, which take a second each; tests/evaluation/test_plots.py looks at them."""
    monkeypatch.setattr("txl.runs.evaluation.drawable", lambda *_: [])


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager[None]]:
    """Makes every file end at so many bytes, for compiled code too: the system refuses to write on."""

    @contextlib.contextmanager
    def limited(n_byte: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_byte, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Presses Ctrl-C; works too where the tests were started with SIGINT ignored, as shells start background jobs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What a file of --plugin defines is there in its own process only; here it is taken back."""
    yield
    plugins._loaded.clear()
    for registry in (*ALL_PARTS, DATA_SETS, SOURCES):
        registry._added.clear()
