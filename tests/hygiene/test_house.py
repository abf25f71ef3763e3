"""The house stays in order: short functions, help for every flag, scripts that parse."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from txl.attention_rules import ATTENTION_RULES
from txl.config import ModelConfig
from txl.positions import POSITION_ENCODINGS

ROOT = Path(__file__).parents[2]
LAB = [
    path
    for path in (ROOT / "lab").rglob("*.py")
    if not {"tests", "benchmarks"} & set(path.relative_to(ROOT).parts)
]
SOURCES = sorted(
    [*(ROOT / "txl").rglob("*.py"), *ROOT.glob("data_utils/*.py"), *ROOT.glob("*.py"), *LAB]
)
FUNCTION_LINES = 60


def n_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Of what a function does, without its arguments and its docstring."""
    first = function.body[ast.get_docstring(function) is not None :] or function.body
    return (function.end_lineno or 0) - first[0].lineno + 1


def too_long(path: Path) -> list[str]:
    """The functions of a file that do not fit on a screen."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [f"{path.relative_to(ROOT)}: {f.name}" for f in functions if n_line(f) > FUNCTION_LINES]


def printed(code: str) -> str:
    """What a new Python prints that runs this."""
    words = [sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True).stdout


def test_functions_fit_on_a_screen() -> None:
    assert {name for path in SOURCES for name in too_long(path)} == set()


def test_what_depends_on_the_kind_of_text_is_asked_of_the_tokenizer_or_the_table() -> None:
    asks = re.compile(r"dataset *(==|!=|in )|isinstance\([a-z._]*(vocab|tokenizer)")
    lines = [
        line
        for path in SOURCES
        for line in path.read_text(encoding="utf-8").splitlines()
        if asks.search(line)
    ]
    assert len(lines) <= 3, lines


@pytest.mark.slow
def test_what_is_public_has_a_docstring() -> None:
    bare = []
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        public = [
            n
            for n in tree.body
            if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")
        ]
        named = [(path.name, tree), *((n.name, n) for n in public if n.name != "main")]
        bare += [
            f"{path.relative_to(ROOT)}: {name}" for name, n in named if not ast.get_docstring(n)
        ]
    assert bare == []


@pytest.mark.slow
def test_a_start_loads_no_library_before_it_is_needed() -> None:
    """Nor is a device asked for. PyTorch's compiler takes a second, and is imported by many operations on tensors
    without values, of which a checkpoint's sizes are checked."""
    code = (
        "import sys, einops, torch, txl.runs.training, txl.runs.evaluation, txl.runs.generation\n"
        "import txl.ops.rel_attention.fused\n"
        "from txl.model.sizes import model_without_values\n"
        "late = 'matplotlib tensorboard torchdiffeq tokenizers pyarrow triton backports.zstd'.split()\n"
        "late.append('torch._dynamo')\n"
        "einops.rearrange(torch.ones(2), 'a -> a')\n"
        "if 'torch._dynamo' in sys.modules: late = [m for m in late if m not in sys.modules]  # by an old einops\n"
        "config = txl.ModelConfig(n_token=50, cutoffs=(20,), div_val=2)\n"
        "model_without_values(config)\n"
        "model = txl.TransformerXL(config)\n"
        "model.nll(torch.ones(1, 3).long(), torch.ones(1, 3).long(), None, txl.Context())[0].sum().backward()\n"
        "print(torch.cuda.is_initialized(), *(m in sys.modules for m in late))"
    )
    out = printed(code)
    assert set(out.split()) == {"False"}


@pytest.mark.parametrize(
    "program", ["train", "try", "eval", "score", "report", "read", "generate", "convert"]
)
def test_help_and_what_is_refused_need_no_pytorch(program: str) -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from txl.programs.launch import PROGRAMS\n"
        "from importlib import import_module\n"
        f"main = import_module(PROGRAMS[{program!r}].module).main\n"
        "for words in (['--no_such_flag'], ['a', 'b', '--no_such_flag'], ['--help']): \n"
        "    try: main(words)\n"
        "    except (ValueError, SystemExit) as end: print(end)\n"
    )
    out = printed(code)
    assert "--no_such_flag: no such flag" in out
    assert "more settings" in out or "options" in out


def test_the_settings_of_a_model_import_only_the_parts_that_they_name() -> None:
    code = (
        "import sys\n"
        "from txl.config import ModelConfig, build\n"
        "from txl.training.config import TrainConfig\n"
        "TrainConfig(), ModelConfig(n_token=5), build(ModelConfig, {'lr': 1.0, 'n_token': 5})\n"
        "rooms = ('txl.memory.', 'txl.positions.', 'txl.attention_rules.', 'torch')\n"
        "print(*(name for name in sys.modules if name.startswith(rooms)))\n"
        "ModelConfig(n_token=5, memory='sinks', n_sink=8)\n"
        "print(*(name for name in sys.modules if name.startswith('txl.memory.')))"
    )
    out = printed(code)
    assert out.splitlines() == ["", "txl.memory.sinks"]


def test_requirements_are_within_the_ranges_of_the_project() -> None:
    pinned = dict(
        re.findall(r"^(\w+)==([\d.]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    )
    found = re.findall(r'"(\w+)>=([\d.]+)(?:,<([\d.]+))?', (ROOT / "pyproject.toml").read_text())
    ranges = {name: (lowest, beyond or "9999") for name, lowest, beyond in found}
    assert pinned.keys() <= ranges.keys()
    assert ranges["torch"][1] != "9999"
    for name, version in pinned.items():
        lowest, own, beyond = (
            [*map(int, v.split("."))] for v in (ranges[name][0], version, ranges[name][1])
        )
        assert lowest <= own < beyond


def test_the_default_of_each_kind_of_part_is_registered() -> None:
    assert ModelConfig.position in POSITION_ENCODINGS
    assert ModelConfig.attention in ATTENTION_RULES


def test_nothing_says_to_install_the_package_of_another_project() -> None:
    """On the package index the name txl is taken; a clone is what one installs."""
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    pages = [
        ROOT / name for name in tracked if name.endswith((".py", ".md", ".sh", ".toml", ".txt"))
    ]
    wrong = re.compile(r"pip install (-\S+ )*[\"'`]?txl\b")
    assert [page.name for page in pages if wrong.search(page.read_text(encoding="utf-8"))] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] != "txl"
    assert project["urls"]


def test_scripts_are_valid_bash() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    scripts = [name for name in tracked if name.endswith((".sh", ".sbatch"))]
    assert len(scripts) > 10
    for name in [*scripts, ".ci/run"]:
        subprocess.run(["bash", "-n", str(ROOT / name)], check=True)


def test_golden_files_stay_small() -> None:
    files = [
        path
        for path in (ROOT / "tests" / "golden").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    ]
    total = sum(path.stat().st_size for path in files)
    assert total <= 6_000_000


def test_links_of_the_pages_lead_to_files() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "lab" / "docs").glob("*.md")]
    for page in (ROOT / "README.md", ROOT / "lab" / "README.md", *pages):
        links = re.findall(r"\]\(([^)#:]+)[^):]*\)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == [], page.name


def test_files_of_results_are_cited_by_a_page() -> None:
    folder = ROOT / "lab" / "benchmarks" / "results"
    pages = [*(ROOT / "docs").glob("*.md*"), *folder.glob("*.md"), *(ROOT / "tests").rglob("*.py")]
    pages += (ROOT / "lab" / "docs").glob("*.md*")
    cited = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    assert [file.name for file in folder.iterdir() if file.name not in cited] == []


def test_the_style_before_a_commit_is_that_of_the_tests() -> None:
    wanted = re.search(r"^ruff(==\S+)$", (ROOT / "requirements-dev.txt").read_text(), re.M)
    assert wanted is not None
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r'"ruff(\S+?)"', hooks) == [wanted[1]] * 2
