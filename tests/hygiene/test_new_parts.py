"""A new position encoding or memory is one new file, with its settings, and a line in the registry."""

import ast
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
from txl.config import UsageError
from txl.convert.kimiyoung import ATTN_TYPES
from txl.evaluation.config import EvalConfig
from txl.memory import MEMORIES, require_works
from txl.positions import POSITION_ENCODINGS
from txl.programs import train
from txl.registry import is_read
from txl.runs.scoring import evaluation_of
from txl.runtime.distributed import Ranks
from txl.settings.flags import read_flags, refuse_idle_flags
from txl.training.config import TrainConfig

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

SESSION = """
from txl.programs import eval, generate, train
tiny = "--dataset text --data . --work_dir run --n_layer 1 --d_model 8 --n_head 2 --d_head 4 --d_inner 8 " \\
    "--batch_size 2 --tgt_len 4 --mem_len 4 --eval_tgt_len 4 --max_step 3 --log_interval 1 --lr 0.1".split()
train.main([*tiny, "--position", "toy", "--toy_reach", "3"])
eval.main(["--work_dir", "run", "--split", "test", "--mem_len", "0", "20", "--json", "run/lengths.json"])
for argv in ([*tiny, "--position", "rotary", "--toy_reach", "3", "--overwrite"], ["--help", "all"]):
    try:
        train.main(argv)
    except (ValueError, SystemExit) as stop:
        print(stop)
tiny[5] = "remembers"
train.main([*tiny, "--memory", "toy", "--memory_parts", "2"])
train.main([*tiny, "--resume", "--max_step", "5", "--max_step_scheduler", "5"])
eval.main(["--work_dir", "remembers", "--split", "test", "--batch_size", "1"])
generate.main(["--work_dir", "remembers", "--prompt", "ba de", "--length", "3"])
"""


def edit(path: Path, before: str, line: str) -> None:
    """Put a line where another one is found, before it."""
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, f"{line}\n{before}"))


@pytest.mark.slow
def test_a_file_and_a_line_in_the_registry_are_all(tmp_path: Path) -> None:
    """In a copy of the repository, with all programs."""
    shutil.copytree(ROOT / "txl", tmp_path / "txl", ignore=shutil.ignore_patterns("__pycache__"))
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("ba de fi go ku de ba\n" * 10)
    toy = (HERE / "toy.py").read_text().replace("max_distance", "toy_reach")
    (tmp_path / "txl/positions/toy.py").write_text(toy)
    edit(
        tmp_path / "txl/registry.py",
        '        "none": "txl.positions.none:NoPosition",',
        '        "toy": "txl.positions.toy:Toy toy_reach",',
    )
    shutil.copy(HERE / "toy_memory.py", tmp_path / "txl/memory/toy.py")
    edit(
        tmp_path / "txl/registry.py",
        '        "none": "txl.memory.none:NoMemory",',
        '        "toy": "txl.memory.toy:ToyMemory",',
    )

    done = subprocess.run(
        [sys.executable, "-c", SESSION], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    saved = json.loads((tmp_path / "run/step_00000003/config.json").read_text())["model"]
    assert (saved["position"], saved["own"]) == ("toy", {"toy_reach": 3})
    near, far = json.loads((tmp_path / "run/lengths.json").read_text())["rows"]
    assert (near["mem_len"], far["mem_len"]) == (0, 20)
    assert near["nats"] != far["nats"]
    assert (
        "--toy_reach 3: has no effect with --position rotary, only with toy; leave it out"
        in done.stdout
    )
    assert "toy: distances from this one on are all the same" in " ".join(done.stdout.split())
    record = (tmp_path / "remembers/metrics.jsonl").read_text()
    assert '"memory": "toy"' in record
    assert '"train/memory_loss"' in record


def test_what_an_encoding_declares_makes_help_and_refusals_name_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POSITION_ENCODINGS, "toy", Toy)
    assert read_flags(["--position", "toy"], ModelConfig, description="") == {"position": "toy"}
    with pytest.raises(SystemExit):
        train.main(["--help", "all"])
    said = " ".join(capsys.readouterr().out.split())
    assert "none,toy}" in said
    assert "t5, shaw, deberta, toy: largest distance" in said
    refuse_idle_flags({"max_distance": 3, "untie_r": True}, ModelConfig(n_token=1, position="toy"))
    with pytest.raises(UsageError, match="only with t5, shaw, deberta or toy; leave it out"):
        refuse_idle_flags({"max_distance": 3}, ModelConfig(n_token=1, position="rotary"))
    read = [
        is_read("max_distance", ModelConfig(n_token=1, position=name)) for name in ("toy", "rotary")
    ]
    assert read == [True, False]
    model = TransformerXL(ModelConfig(n_token=5, n_layer=1, position="rotary"))
    with pytest.raises(UsageError, match=r"--clamp_len 3: .* or toy$"):
        model(torch.zeros(1, 1, dtype=torch.long), None, Context(clamp_len=3))


def test_the_table_of_memories_refuses_and_lets_pass_what_is_not_given() -> None:
    require_works("compressive", EvalConfig())
    with pytest.raises(
        UsageError, match=r"^--mem_len 3: --memory none works with 0 only; .* --memory fifo or "
    ):
        require_works("none", Context(mem_len=3))
    for said, shape in {
        "--reversible: --memory compressive does not work with it; leave it out": {
            **{"memory": "compressive", "reversible": True, "pre_lnorm": True}
        },
        "--memory paper: no such memory; there are fifo, .*none": {"memory": "paper"},
        "--position sundial: no such encoding; there are rel_sinusoid, .*, none": {
            "position": "sundial"
        },
    }.items():
        with pytest.raises(UsageError, match=f"^{said}"):
            TransformerXL(ModelConfig(n_token=5, **shape))


def test_evaluations_in_training_read_one_stream_where_it_matters_where_the_reading_began() -> None:
    here = Ranks(0, 1, torch.device("cpu"))
    streams = {
        name: evaluation_of(TrainConfig(), ModelConfig(n_token=5, memory=name), here)
        for name in MEMORIES
    }
    assert {name for name, config in streams.items() if config.batch_size == 1} == set(MEMORIES) - {
        "fifo",
        "none",
    }


# no other file names it

DECODERS = {
    "txl/convert/decoder.py",
    "txl/convert/gpt_neox.py",
    "txl/convert/llama.py",
}


def strings(path: Path) -> str:
    """The strings of a file that are no docstrings, those inside f-strings included, a line each."""
    tree = ast.parse(path.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [
        node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in prose
    ]
    return "\n".join(node.value for node in constants if isinstance(node.value, str))


def naming(names: set[str], root: Path) -> dict[str, set[str]]:
    """For each name the files of ours in which a string holds it as a word."""
    found: dict[str, set[str]] = {name: set() for name in names}
    for path in [
        *(root / "txl").rglob("*.py"),
        *root.glob("*.py"),
    ]:
        for name in names & set(re.findall(r"\w+", strings(path))):
            found[name].add(str(path.relative_to(root)))
    return found


@pytest.mark.slow
def test_no_other_file_names_an_encoding_or_a_memory() -> None:
    """Not in a help text nor in a message either. Those of the 2019 code are also named where it is spoken of, the
    defaults where flags are; "none" means other things elsewhere."""
    of_2019 = {
        "txl/convert/kimiyoung.py",
    }
    for room, registry in (("positions", POSITION_ENCODINGS), ("memory", MEMORIES)):
        for name, files in naming(set(registry) - {"none"}, ROOT).items():
            allowed = {"txl/registry.py", f"txl/{room}/{name}.py"}
            allowed |= of_2019 if name in (*ATTN_TYPES, ModelConfig.memory) else set()
            allowed |= (
                {"txl/config.py"} if name in (ModelConfig.position, ModelConfig.memory) else set()
            )
            # of other programs' models
            allowed |= DECODERS if name in ("rotary", "sinks") else set()
            # to which the flags of the store that is gone point
            allowed |= {"txl/settings/legacy.toml"} if name == "knn" else set()
            assert files <= allowed, name


def test_a_name_inside_a_help_text_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "txl").mkdir()
    (tmp_path / "txl" / "config.py").write_text('n = option(1, f"{x} t5, shaw: near")\n')
    (tmp_path / "eval.py").write_text(
        '"""As t5 does."""\ndef f():\n    "t5"\n    return "at5 t5_like"\n'
    )
    assert naming({"t5", "shaw"}, tmp_path) == {"t5": {"txl/config.py"}, "shaw": {"txl/config.py"}}
