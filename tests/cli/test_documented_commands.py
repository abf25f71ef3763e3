"""Every command and every Python block of README.md and docs/ runs: on a tiny text, with flags that make it small.

A command is a line of a code block without a language, or a span of code in a paragraph, that begins as commands do.
"""

import contextlib
import gzip
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cli.conftest import WORDS, train_here
from tests.cli.test_flags import read
from tests.cli.test_plugins import of_page
from tests.conftest import long_test
from tests.forks import ROOT
from txl import ModelConfig, TransformerXL
from txl.convert import to_kimiyoung
from txl.programs.convert import main as convert_main

pytestmark = pytest.mark.slow

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"([A-Z_]+=\S+ )*(python|torchrun|bash|sbatch|pip|txl|\S*/\w+\.sh) \S|\./\S+")
SIZES = "--n_layer 1 --d_model 16 --n_head 2 --d_head 8 --d_inner 16 --batch_size 2 --sample_length 0".split()
SMALL = {
    "new": [*SIZES, "--max_step", "1", "--eval_interval", "1"],
    "tuned": "--batch_size 2 --sample_length 0 --max_step 1 --eval_interval 1".split(),
    "resumed": ["--max_step", "5", "--max_step_scheduler", "5"],
    "generate": ["--length", "3"],
}
"""Flags that are put behind those of the page."""
TINY_FLAGS = {
    "--cutoffs": "--cutoffs 10 30",
    "--data my_ids": "--tgt_len 8",
    "shards": "--tgt_len 8",
    "articles": "--tgt_len 8",
    "--mem_len 640": "--tgt_len 8 --mem_len 16 --clamp_len 12 --batch_size 2",
    "--tgt_len 64 --mem_len 128 --eval": "--tgt_len 8 --mem_len 8 --eval_tgt_len 8",
}
"""The same, where the page has a flag."""

Call = Callable[..., Any]


def commands(text: str) -> list[str]:
    """The commands of a page."""
    blocks = [
        body.replace("\\\n", " ")
        for language, body in BLOCK.findall(text)
        if language in ("", "bash", "sh")
    ]
    lines = [re.sub(r"\s+# .*", "", line) for body in blocks for line in body.splitlines()]
    return [
        line
        for line in [*lines, *re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))]
        if COMMAND.match(line)
    ]


def python_blocks(text: str) -> list[str]:
    """Without the plug-ins, which tests/cli/test_plugins.py runs."""
    blocks = [body for language, body in BLOCK.findall(text) if language == "python"]
    return [block for block in blocks if "--plugin" not in block]


COMMANDS = {
    f"{page.stem}: {line}": line
    for page in PAGES
    for line in commands(page.read_text(encoding="utf-8"))
}
IN_PROCESS = {
    key: line for key, line in COMMANDS.items() if re.search(r"\b(train|eval|generate)\.py\b", line)
}
CONVERSIONS = {
    key: line for key, line in COMMANDS.items() if line.startswith("python -m txl.convert ")
}
MODULES = {
    key: line
    for key, line in COMMANDS.items()
    if line.startswith("python -m ") and key not in CONVERSIONS and " lab." not in line
}
SCRIPTS = {
    key: line for key, line in COMMANDS.items() if re.search(r"\brun_\w+\.sh|^sbatch ", line)
}
CONSOLE = {key: line for key, line in COMMANDS.items() if line.startswith("txl ")}
INSTALLED = {key: line for key, line in COMMANDS.items() if line.startswith("pip ")}
OTHERS = {
    key: line
    for key, line in COMMANDS.items()
    if line.startswith(("bash lab/benchmarks/", "lab/scripts/get_", "python -m lab."))
}
"""Of the laboratory, whose tests try them."""

EXAMPLES = {key: line for key, line in COMMANDS.items() if line.startswith("python examples/")}


def each(some: dict[str, str]) -> Any:
    return pytest.mark.parametrize("line", some.values(), ids=list(some))


def test_every_command_is_run_by_a_test_below() -> None:
    run = [IN_PROCESS, CONVERSIONS, MODULES, SCRIPTS, CONSOLE, INSTALLED, OTHERS, EXAMPLES]
    assert sorted(key for some in run for key in some) == sorted(COMMANDS)
    assert all(some for some in run)


@each(EXAMPLES)
def test_an_example_of_one_file_has_a_test(line: str) -> None:
    _, file, *_ = line.split()
    assert (ROOT / file).is_file()
    assert (ROOT / "tests" / "examples" / f"test_{Path(file).name}").is_file()


def test_commands_are_found_wherever_they_stand() -> None:
    page = "Try `./x.sh demo`, not `txl/a.py` or `txl`.\n```\nA=1 ./x.sh a \\\n  --b\nx.sh  the script\n```\n"
    page += "```python\n./no.sh\n```\n```bash\npython a.py\n```\n"
    assert commands(page) == ["A=1 ./x.sh a    --b", "python a.py", "./x.sh demo"]
    assert python_blocks(page) == ["./no.sh\n"]


def executable(path: Path, *lines: str) -> None:
    path.write_text("\n".join(["#!/usr/bin/env bash", *lines, ""]))
    path.chmod(0o755)


def after_the_demo(folder: Path, python: str) -> tuple[Path, Path]:
    """A clone in which the demo has made .venv, whose Python is this line of a shell, and a Python without PyTorch."""
    clone, bare = folder / "clone", folder / "bare"
    (clone / ".venv" / "bin").mkdir(parents=True)
    for name in ("txl", "data_utils", "examples", "scripts", "lab", "tests"):
        (clone / name).symlink_to(ROOT / name)
    for script in ROOT.glob("*.py"):
        shutil.copy(script, clone)
    executable(clone / ".venv" / "bin" / "python", python)
    venv.create(bare, symlinks=True)
    return clone, bare / "bin" / "python"


def test_a_command_finds_the_environment_of_the_demo(tmp_path: Path) -> None:
    """Whatever `python` is; without that environment one line says what is missing."""
    clone, bare = after_the_demo(tmp_path, 'echo "started: $@"')
    for words in ("generate.py --length 3", "-m lab.studies --help", "-m txl report --help"):
        command = [str(bare), *words.split()]
        started = subprocess.run(command, cwd=clone, capture_output=True, text=True)
        assert (started.returncode, started.stderr, started.stdout) == (
            0,
            "",
            f"started: {words}\n",
        )
    shutil.rmtree(clone / ".venv")
    refused = subprocess.run(command, cwd=clone, capture_output=True, text=True)
    assert refused.returncode == 2
    assert re.fullmatch(r".* has no PyTorch; pip install -r requirements.txt.*\n", refused.stderr)


@long_test
def test_every_command_starts_in_the_environment_of_the_demo(tmp_path: Path) -> None:
    """Entered as the README says, without what only `pip install` brings: `txl` itself, lm-evaluation-harness."""
    assert ". .venv/bin/activate" in PAGES[0].read_text()
    clone, bare = after_the_demo(tmp_path, f'exec {shlex.quote(sys.executable)} "$@"')
    environment = {
        **os.environ,
        "PATH": f"{clone / '.venv' / 'bin'}:{bare.parent}:{os.environ['PATH']}",
    }
    starts = {m[0] for line in COMMANDS.values() if (m := re.match(r"python (-m )?\S+", line))}
    missing = {
        line for line in COMMANDS.values() if line.startswith("txl ") and len(line.split()) > 2
    }
    assert len(starts) > 10
    for start in sorted(starts):
        done = subprocess.run(
            [*start.split(), "--help"], cwd=clone, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            missing.add(f"{start}: {done.stderr}")
    assert {reason for reason in missing if "pip install" not in reason} == set()


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory, write_text: Callable[..., Path]) -> Path:
    """A text with articles and with the words that the pages use, and a run on it."""
    folder = tmp_path_factory.mktemp("stock")
    write_text(folder / "text", words=[*WORDS, *"= the name of file".split()])
    for path in (folder / "text").iterdir():
        path.write_text(f" \n = bab = \n \n{path.read_text()} \n = bad = \n \n bab bad \n")
    train_here(folder)
    return folder


def new_runs(stock: Path) -> None:
    shutil.rmtree("runs", ignore_errors=True)
    names = (
        "recurrence__rel_sinusoid",
        "no_recurrence__rel_sinusoid",
        "recurrence__6M",
        "no_recurrence__6M",
    )
    names += ("no_recurrence__segments_of_256__6M",)
    for run in (
        "mine",
        "other",
        "wt2",
        "shakespeare",
        *(f"wikipedia-8m/{name}/seed_1/run" for name in names),
    ):
        shutil.copytree(stock / "run", f"runs/{run}")


@pytest.fixture
def workplace(stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with all that the pages name, entered."""
    monkeypatch.chdir(tmp_path)
    new_runs(stock)
    for text in ("my_folder", "data/wikitext-2"):
        shutil.copytree(stock / "text", tmp_path / text)
    theirs = Path(
        shutil.copytree(ROOT / "tests" / "golden" / "hf" / "hf_div2", tmp_path / "their_folder")
    )
    words = ["<eos>", "<unk>", *WORDS, *(f"w{i}" for i in range(198 - len(WORDS)))]
    (theirs / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    for folder in ("their_text", "data/wikitext-103"):
        shutil.copytree(stock / "text", tmp_path / folder)
        (tmp_path / folder / "train.txt").unlink()  # it would have another vocabulary
    torch.save({"idx2sym": words}, tmp_path / "their_text" / "cache.pt")
    training = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    (settings,) = (body for language, body in BLOCK.findall(training) if language == "toml")
    (tmp_path / "mine.toml").write_text(settings)
    (tmp_path / "my_memory.py").write_text(of_page("extending.md", "my_memory"))
    (tmp_path / "my.txt").write_text("bab bad\n")
    (tmp_path / "input.txt").write_text("\n\n".join(f"ROMEO:\nbab bad {i}" for i in range(200)))
    rows = [{"text": f"row {i}"} for i in range(20)]
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "0.jsonl.gz").write_bytes(
        gzip.compress("\n".join(map(json.dumps, rows)).encode())
    )
    with contextlib.suppress(ImportError):
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "articles.parquet")
    for name in ("enwik8", "text8"):
        (tmp_path / f"{name}.prefix").write_bytes(b"some letters and\nmore " * 500)
    (tmp_path / "my_ids").mkdir()
    for split in ("train", "valid", "test"):
        np.save(tmp_path / "my_ids" / f"{split}.npy", np.arange(300) % 512)


def complete(line: str) -> tuple[str, list[str]]:
    """The program of a command and its flags: those of the page, then those that make it small."""
    (program,) = re.findall(r"\b(train|eval|generate)\.py", line)
    how, flags = line.split(f"{program}.py")
    assert re.fullmatch(r"python |torchrun --nproc_per_node=\d+ ", how)
    page = shlex.split(flags)
    if page[:1] == ["..."]:
        page[:1] = (
            ["--data", "my_folder", "--dataset", "text"]
            if program == "train"
            else ["--work_dir", "runs/mine"]
        )
    kind = program
    if program == "train":
        kind = "resumed" if "--resume" in page else "tuned" if "--init_from" in page else "new"
    small = [word for flag, words in TINY_FLAGS.items() if flag in flags for word in words.split()]
    return program, [*page, *SMALL.get(kind, []), *small]


@pytest.mark.parametrize("page", sorted({key.partition(":")[0] for key in IN_PROCESS}))
@pytest.mark.usefixtures("workplace", "undrawn", "forgotten")
def test_programs_run_as_the_page_says(call: Call, stock: Path, page: str) -> None:
    others = {line for key, line in IN_PROCESS.items() if key.partition(":")[0] < page}
    for line in sorted(
        {line for key, line in IN_PROCESS.items() if key.partition(":")[0] == page} - others
    ):
        program, flags = complete(line)
        libraries = {"articles.parquet": "pyarrow", "bpe": "tokenizers"}
        if any(flag in flags and find_spec(library) is None for flag, library in libraries.items()):
            continue
        if any(word.startswith("models/") for word in flags):  # which a script downloads
            read(program, *flags)
            continue
        new_runs(stock)
        if program == "train" and not {"--resume", "--init_from"} & set(flags):
            shutil.rmtree("runs")
        outcome = call(program, *flags)
        assert (outcome.status, outcome.complaints) == (0, []), (line, outcome)
        if "--per_token" in flags:
            assert Path(flags[flags.index("--per_token") + 1]).is_file()


def recorded(folder: Path, words: list[str], **environment: str) -> list[list[str]]:
    """What a script runs: the words of each call of a stand-in for Python, or for the commands of Slurm."""
    stand_ins = {
        "python": '[[ $2 != *count* ]] || echo 0\n[[ $1 != -c ]] || exit 0\nprintf "%s\\n" "$@" "" >>"$CALLS"',
        "scontrol": '[[ $1 != show ]] || echo "host-a host-b" | tr " " "\\n"',
        "srun": 'SLURM_NODEID=1 exec "${@:2}"',
        "sbatch": "while [[ $1 == --* ]]; do shift; done; "
        "SLURM_JOB_ID=7 SLURM_NNODES=4 SLURM_JOB_NODELIST=host-[a-b] SLURM_SUBMIT_DIR=$PWD "
        'exec bash "$@"',
    }
    for name, body in stand_ins.items():
        executable(folder / name, body)
    known = {
        k: v
        for k, v in os.environ.items()
        if not re.match(r"SLURM|NNODES|NPROC|NODE_RANK|MASTER|RUN_ID", k)
    }
    own = {
        "PYTHON": str(folder / "python"),
        "CALLS": str(folder / "calls"),
        "PATH": f"{folder}:{known['PATH']}",
    }
    done = subprocess.run(
        words, cwd=ROOT, env=known | own | environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [
        call.split("\n")
        for call in (folder / "calls").read_text().removesuffix("\n\n").split("\n\n")
    ]


@each(SCRIPTS)
def test_a_script_starts_programs_with_flags_that_they_have(tmp_path: Path, line: str) -> None:
    words = shlex.split(line)
    environment = dict(word.split("=") for word in words if re.match(r"[A-Z_]+=", word))
    words = words[len(environment) :]
    if "run_tests.sh" in line:
        (call,) = recorded(tmp_path, words)
        assert (call[:2], call[len(call) - len(words[1:]) :]) == (["-m", "pytest"], words[1:])
        return
    asked = words[3:] if re.search(r"run_\w+\.sh", words[0]) else []
    calls = recorded(tmp_path, [*words, *["base"] * (words[-1] == "train")], **environment)
    if "data" in words:
        assert [call[:2] for call in calls] == [["-m", "data_utils.download"]]
        return
    if "try" in words:
        assert calls == [["-m", "txl", *words[1:]]]
        return
    programs = (
        ["train", "generate", "report"]
        if "demo" in words
        else ["train" if "sbatch" in words else words[1]]
    )
    assert len(calls) == len(programs)
    for program, call in zip(programs, calls, strict=True):
        (at,) = (i for i, word in enumerate(call) if word in (f"{ROOT}/{program}.py", "report"))
        read(program, *call[at + 1 :])
        implied = ["--resume"] if ":" in environment.get("NNODES", "") else []
        assert call[len(call) - len(asked + implied) :] == asked + implied
        if "NNODES" in environment or "sbatch" in words:
            agent = " ".join(call[:at])
            assert f"--nnodes {environment.get('NNODES', 4)} " in agent
            assert "--rdzv_endpoint=host-a:" in agent


@each(CONVERSIONS)
@pytest.mark.usefixtures("workplace")
def test_a_checkpoint_of_another_program_is_converted(call: Call, line: str) -> None:
    source, *others = shlex.split(line)[3:]
    if not Path(source).exists():  # a run that another command of the page trains
        shutil.copytree("runs/mine", source)
    assert call("convert", source, *others).status == 0


@each(MODULES)
def test_a_module_has_its_flags(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, name, *flags = shlex.split(line)
    if name == "txl.lm_eval":
        pytest.importorskip(
            "lm_eval", reason="lm_eval is not installed; run scripts/test_with_transformers.sh"
        )
    monkeypatch.setattr(sys, "argv", [name, *flags, "--help"])
    module = import_module(name)
    module = import_module(f"{name}.__main__") if hasattr(module, "__path__") else module
    with pytest.raises(SystemExit) as stop:
        module.main(sys.argv[1:]) if "argv" in signature(module.main).parameters else module.main()
    out = capsys.readouterr().out
    assert stop.value.code in (None, 0)
    for flag in (flag for flag in flags if flag.startswith("--")):
        assert flag in out, flag


def test_txl_knows_its_programs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in set(CONSOLE.values()):
        program, command, *flags = shlex.split(line)
        monkeypatch.setattr(sys, "argv", [program, command, *flags, "--help"])
        # which another test may have imported
        monkeypatch.delitem(sys.modules, "txl.__main__", raising=False)
        with pytest.raises(SystemExit) as stop:
            runpy.run_module("txl", run_name="__main__")
        assert not stop.value.code
        out = capsys.readouterr().out
        assert out.startswith(f"usage: {program} {command} ")
        assert [flag for flag in flags if flag.startswith("--") and flag not in out] == []


def test_what_is_installed_is_of_this_project_and_scripts_are_there() -> None:
    """What the scripts of the benchmarks run is tested with them, in lab/tests/benchmarks/test_gpu_script.py, and what
    downloads a model in lab/tests/test_get_smollm2.py."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        re.split(r"[<>=;\[]", one)[0]
        for some in project["optional-dependencies"].values()
        for one in some
    ]
    assert {line.removeprefix("pip install ") for line in INSTALLED.values()} <= {
        ".",
        "-e .",
        *extras,
    }
    for line in OTHERS.values():
        words = shlex.split(line.removeprefix("bash "))
        subprocess.run(["bash", "-n", *words], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if python_blocks(page.read_text())], ids=lambda page: page.stem
)
@pytest.mark.usefixtures("workplace")
def test_the_python_of_a_page_runs(page: Path) -> None:
    """One block after another, with the names that the page takes as given."""
    sizes = {"n_layer": 1, "n_head": 2, "d_head": 4, "d_model": 8, "d_inner": 8}
    torch.save(to_kimiyoung(TransformerXL(ModelConfig(n_token=9, **sizes))), "state_dict.pt")
    text_BT = torch.randint(0, 9, (2, 4))
    names: dict[str, Any] = {"input_BT": text_BT[:, :-1], "target_BT": text_BT[:, 1:]}
    for block in python_blocks(page.read_text(encoding="utf-8")):
        if "import txl.hf" in block:
            if find_spec("transformers") is None:
                continue  # scripts/test_with_transformers.sh runs it
            convert_main(["runs/mine", "exported", "--to", "huggingface"])
        if "import gymnasium" in block and find_spec("gymnasium") is None:
            continue
        exec(compile(block, page.name, "exec"), names)
    known = ("nats", "logprob_NV", "nll_BT", "hidden_BTD", "hidden_ND")
    results = [names[name] for name in known if name in names]
    assert results
    assert all(value.isfinite().all() for value in results)
