"""A new memory is one new file and a line in the registry."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.hygiene.test_declared_settings import asked_by
from tests.hygiene.test_new_encoding import TINY, edit
from txl import Context, ModelConfig, TransformerXL
from txl.cli import read_flags
from txl.commands.evaluations import evaluation_of
from txl.config import UsageError
from txl.evaluation.config import EvalConfig
from txl.memory import MEMORIES, require_works
from txl.runtime.distributed import Ranks
from txl.training.config import TrainConfig

ROOT = Path(__file__).parents[2]
SESSION = f"""
from txl.commands import eval, generate, train
tiny = {TINY}
train.main([*tiny, "--memory", "toy", "--memory_parts", "2"])
train.main([*tiny, "--resume", "--max_step", "5", "--max_step_scheduler", "5"])
eval.main(["--work_dir", "run", "--split", "test", "--batch_size", "1"])
generate.main(["--work_dir", "run", "--prompt", "ba de", "--length", "3"])
"""


@pytest.mark.slow
def test_a_file_and_a_line_in_the_registry_are_all(tmp_path: Path) -> None:
    """In a copy of the repository, with all programs."""
    for name in ("txl", "data_utils"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("ba de fi go ku de ba\n" * 10)
    shutil.copy(Path(__file__).with_name("toy_memory.py"), tmp_path / "txl" / "memory" / "toy.py")
    edit(tmp_path / "txl" / "memory" / "__init__.py", '    "none": "NoMemory",', '    "toy": "ToyMemory",')
    done = subprocess.run([sys.executable, "-c", SESSION], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    record = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert '"memory": "toy"' in record
    assert '"train/memory_loss"' in record


def test_one_that_is_not_there_is_refused_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"--memory paper: no such memory; there are fifo, .*none"):
        TransformerXL(ModelConfig(n_token=5, memory="paper"))
    with pytest.raises(UsageError, match="paper"):
        read_flags(["--memory", "paper"], ModelConfig, description="")


@pytest.mark.parametrize("name", MEMORIES)
def test_it_reads_what_it_declares_and_says_where_it_is_from(name: str) -> None:
    cls = MEMORIES[name]
    fields = set(Context.__dataclass_fields__)
    assert asked_by(cls, memory=name) - {"recurrence"} == set(cls.settings) - fields
    assert re.search(r" et al\. 20\d\d", cls.__doc__ or "")
    of_the_paper = ("fifo", "none")  # their equation is that of every position encoding, over a memory and without
    assert name in of_the_paper or (ROOT / "tests" / "equations" / f"test_{name}.py").is_file()


def test_the_page_has_a_row_for_each_and_the_table_of_what_works() -> None:
    """The table is the one that refusals are made from."""
    page = (ROOT / "docs" / "memory.md").read_text()
    listed, works = ([re.findall(r"`([^`]*)`", row) for row in table] for table in tables(page))
    assert [name for name, *_ in listed] == list(MEMORIES)
    table = {
        (name, f"--{setting}", *map(str, allowed))
        for name, cls in MEMORIES.items()
        for setting, allowed in cls.only.items()
    }
    assert {tuple(row) for row in works} == table


def test_the_table_refuses_in_one_line_and_lets_pass_what_is_not_given() -> None:
    with pytest.raises(UsageError, match=r"^--reversible: --memory compressive does not work with it; leave it out"):
        TransformerXL(ModelConfig(n_token=5, memory="compressive", reversible=True, pre_lnorm=True))
    with pytest.raises(UsageError, match=r"^--mem_len 3: --memory none works with 0 only; .* fifo or compressive$"):
        require_works("none", Context(mem_len=3))
    require_works("compressive", EvalConfig())


def test_evaluations_in_training_read_one_stream_where_it_matters_where_the_reading_began() -> None:
    here = Ranks(0, 1, torch.device("cpu"))
    streams = {name: evaluation_of(TrainConfig(), ModelConfig(n_token=5, memory=name), here) for name in MEMORIES}
    assert {name for name, config in streams.items() if config.batch_size == 1} == {"compressive"}


def tables(page: str) -> list[list[str]]:
    """The rows of the tables about memories."""
    found = re.findall(r"^\| `--memory` \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    return [rows.splitlines() for rows in found]


@pytest.mark.parametrize("name", sorted(set(MEMORIES) - {"none"}))
def test_no_other_file_names_it(name: str) -> None:
    """The registry and the default of the flag do."""
    naming = set()
    for path in (ROOT / "txl").rglob("*.py"):
        constants = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        if name in constants:
            naming.add(str(path.relative_to(ROOT)))
    allowed = {"txl/config.py", "txl/convert/kimiyoung_names.py"} if name == ModelConfig.memory else set()
    assert naming <= {"txl/memory/__init__.py", *allowed}
