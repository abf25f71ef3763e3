"""A new position encoding is one new file and a line in the registry; a new setting is a field more."""

import ast
import functools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.hygiene.toy import Toy
from txl import Context, ModelConfig, TransformerXL
from txl.cli import read_flags, refuse_idle_flags
from txl.commands import train
from txl.config import UsageError
from txl.convert.kimiyoung_names import ATTN_TYPES
from txl.positions import POSITION_ENCODINGS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POSITION_ENCODINGS, "toy", Toy)


@pytest.mark.usefixtures("registered")
def test_a_line_in_the_registry_makes_it_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert read_flags(["--position", "toy"], ModelConfig, description="") == {"position": "toy"}
    with pytest.raises(SystemExit):
        train.main(["--help"])
    assert "none,toy}" in capsys.readouterr().out


@pytest.mark.usefixtures("registered")
def test_what_it_declares_makes_help_and_refusals_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train.main(["--help"])
    assert "t5, shaw, deberta, toy: largest distance" in " ".join(capsys.readouterr().out.split())
    refuse_idle_flags({"max_distance": 3, "untie_r": True}, ModelConfig(n_token=1, position="toy"))
    with pytest.raises(UsageError, match="only with t5, shaw, deberta or toy; leave it out"):
        refuse_idle_flags({"max_distance": 3}, ModelConfig(n_token=1, position="rotary"))
    model = TransformerXL(ModelConfig(n_token=5, n_layer=1, position="rotary"))
    with pytest.raises(UsageError, match=r"--clamp_len 3: .* or toy$"):
        model(torch.zeros(1, 1, dtype=torch.long), None, Context(clamp_len=3))


TINY = (
    "--dataset text --data . --work_dir run --n_layer 1 --d_model 8 --n_head 2 --d_head 4 --d_inner 8 --batch_size 2 "
    "--tgt_len 4 --mem_len 4 --eval_tgt_len 4 --max_step 3 --log_interval 1 --lr 0.1"
).split()
SESSION = f"""
from txl.commands import eval, train
tiny = {TINY}
train.main([*tiny, "--position", "toy", "--toy_reach", "3"])
eval.main(["--work_dir", "run", "--split", "test", "--mem_len", "0", "20", "--json", "run/lengths.json"])
for argv in ([*tiny, "--position", "rotary", "--toy_reach", "3", "--overwrite"], ["--help"]):
    try:
        train.main(argv)
    except (ValueError, SystemExit) as stop:
        print(stop)
"""


def edit(path: Path, before: str, line: str) -> None:
    """Put a line where another one is found, before it."""
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, f"{line}\n{before}"))


@pytest.mark.slow
def test_a_file_a_line_in_the_registry_and_a_field_are_all(tmp_path: Path) -> None:
    """In a copy of the repository, where a setting of its own is the field."""
    for name in ("txl", "data_utils"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("train.py", "eval.py"):
        shutil.copy(ROOT / name, tmp_path)
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("ba de fi go ku de ba\n" * 10)
    toy = Path(__file__).with_name("toy.py").read_text().replace("max_distance", "toy_reach")
    (tmp_path / "txl" / "positions" / "toy.py").write_text(toy)
    registry = tmp_path / "txl" / "positions" / "__init__.py"
    edit(registry, '    "none": "NoPosition",', '    "toy": "Toy",')
    field = '    toy_reach: int | None = option(None, "distances from this one on are all the same")'
    edit(tmp_path / "txl" / "config.py", "    n_bucket: int", field)

    done = subprocess.run([sys.executable, "-c", SESSION], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    saved = json.loads((tmp_path / "run" / "step_00000003" / "config.json").read_text())["model"]
    assert (saved["position"], saved["toy_reach"]) == ("toy", 3)
    near, far = json.loads((tmp_path / "run" / "lengths.json").read_text())["rows"]
    assert (near["mem_len"], far["mem_len"]) == (0, 20)
    assert near["nats"] != far["nats"]
    assert "--toy_reach 3: has no effect with --position rotary, only with toy; leave it out" in done.stdout
    assert "toy: distances from this one on are all the same" in " ".join(done.stdout.split())


@functools.cache
def strings(path: Path) -> list[str]:
    """The strings of a file that are no docstrings, those inside f-strings included."""
    tree = ast.parse(path.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in prose]
    return [node.value for node in constants if isinstance(node.value, str)]


def naming(name: str, root: Path) -> list[str]:
    """Files of ours in which a string holds the name as a word."""
    files = [*(root / "txl").rglob("*.py"), *(root / "data_utils").rglob("*.py"), *root.glob("*.py")]
    word = re.compile(rf"(?<!\w){name}(?!\w)")
    return [str(path.relative_to(root)) for path in files if any(map(word.search, strings(path)))]


@pytest.mark.parametrize("name", sorted(set(POSITION_ENCODINGS) - {*ATTN_TYPES, "none"}))
def test_no_other_file_names_an_encoding(name: str) -> None:
    """Not in a help text nor in a message either.

    Those of the 2019 code are also in `txl.convert` and `txl.legacy_flags`, which know their old names, and the default
    is in `txl.config`. "none" means other things elsewhere.
    """
    assert (ROOT / "txl" / "positions" / f"{name}.py").is_file()
    assert set(naming(name, ROOT)) - {f"txl/positions/{name}.py"} == {"txl/positions/__init__.py"}


@pytest.mark.parametrize("name", ATTN_TYPES)
def test_those_of_2019_are_named_where_2019_is_spoken_of(name: str) -> None:
    allowed = {"txl/positions/__init__.py", f"txl/positions/{name}.py", "txl/legacy_flags.py"}
    allowed |= {"txl/convert/kimiyoung.py", "txl/convert/kimiyoung_names.py"}
    allowed |= {"txl/config.py"} if name == ModelConfig.position else set()
    assert set(naming(name, ROOT)) <= allowed


def test_a_name_inside_a_help_text_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "txl").mkdir()
    (tmp_path / "txl" / "config.py").write_text('n = option(1, f"{x} t5, shaw: near")\n')
    (tmp_path / "eval.py").write_text('"""As t5 does."""\ndef f():\n    "t5"\n    return "at5 t5_like"\n')
    assert naming("t5", tmp_path) == naming("shaw", tmp_path) == ["txl/config.py"]


def test_an_encoding_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"--position sundial: no such encoding; there are rel_sinusoid, .*, none"):
        TransformerXL(ModelConfig(n_token=5, position="sundial"))
