"""Parts of a model or a training that a file outside the package defines."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_model

import txl
from tests.cli.conftest import WORDS, Here
from txl import Context, ModelConfig, TransformerXL, plugins
from txl.config import UsageError
from txl.registry import DATA_SETS, GATES, MEMORIES, OPTIMIZERS, SOURCES
from txl.training.config import TrainConfig
from txl.training.estimate import optimizer_bytes, weight_bytes

pytestmark = pytest.mark.usefixtures("forgotten")

MEMORY = """
from dataclasses import dataclass

import torch

from txl.config import option
from txl.memory import MemoryRule, State


class LastState(MemoryRule):
    name = "last_state"

    @dataclass
    class Settings:
        last_n: int = option(1, "states of a segment that stay", minimum=1)

    def __init__(self, config):
        super().__init__()
        self.n = config.own["last_n"]

    @classmethod
    def empty(cls, config, batch_size, *, like):
        return State(like.new_empty(batch_size, 0, config.d_model))

    @classmethod
    def full(cls, config, context, batch_size, *, like):
        return State(like.new_zeros(batch_size, config.own["last_n"], config.d_model))

    def forward(self, layer, h_BTD, state, reading):
        out_BTD = layer.attend(h_BTD, state.hidden_BMD, reading.feats, reading.span)
        return out_BTD, State(h_BTD[:, -self.n :].detach().clone())
"""
OTHERS = """
import torch
from torch import nn

from txl.model.attention import RelativeSoftmax
from txl.positions.base import PositionEncoding, rows_to_pairs
from txl.stacks.gates import Gate


class Slope(PositionEncoding):
    name = "slope"
    by_distance = True

    def prepare(self, span, like):
        return span.distances_S(like.device)[:, None].to(like.dtype)

    def score(self, q_BNTH, k_BNSH, feats, span):
        return -0.1 * rows_to_pairs(feats, span.n_new)


class Half(Gate):
    name = "half"
    matrices = ()

    def joined(self, x_BTD, y_BTD):
        return x_BTD + y_BTD / 2


class Uniform(nn.Module):
    name = "uniform"
    shared_qk = False
    impl, keep_mib = "auto", 0

    @classmethod
    def of_model(cls, config, *, dropatt=0.0):
        return cls()

    def forward(self, q_BNTH, k_BNSH, v_BNSH, *, pos, feats, span):
        mask_TS = span.mask(q_BNTH.device).to(v_BNSH.dtype)
        return mask_TS / mask_TS.sum(-1, keepdim=True) @ v_BNSH
"""
DOCS = Path(__file__).parents[2] / "docs"


def of_page(page: str, name: str = r"my_\w+") -> str:
    """The plug-in of this name that a page shows."""
    text = (DOCS / page).read_text(encoding="utf-8")
    block = rf"^```python\n(# {name}\.py; (?:train|eval)\.py --plugin .*?)^```$"
    (file,) = re.findall(block, text, re.MULTILINE | re.DOTALL)
    return str(file)


OPTIMIZER = of_page("training.md")
SCHEDULE = """
from txl.training.schedules import Schedule


class Linear(Schedule):
    name = "linear"

    def after_warmup(self, update):
        return self.config.lr * (1 - update / self.config.schedule_length)

    def final_rate(self):
        return 0.0
"""
ADAPTATION = """
from txl.evaluation.test_time.dynamic import AdaptationRule


class Sign(AdaptationRule):
    name = "sign"
    default_lr = 1e-3

    def scaled(self, name, gradient, back):
        return gradient.sign(), back * self.decay
"""
TINY = {"n_token": 9, "n_layer": 2, "n_head": 2, "d_head": 4, "d_model": 8, "d_inner": 8}


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    path = tmp_path / "my_memory.py"
    path.write_text(MEMORY)
    return path


def test_a_memory_of_a_file_is_trained_resumed_evaluated_and_written_with(
    here: Here, memory: Path
) -> None:
    path = shlex.quote(str(memory))
    with_it = f"--plugin {path}"
    train = f"train {with_it} --memory last_state --max_step 2"
    here(f"{train} --last_n 3 --work_dir run --overwrite")
    saved = json.loads(next(Path("run").glob("step_*/config.json")).read_text())["model"]
    assert (saved["memory"], saved["own"]) == ("last_state", {"last_n": 3})
    here(f"train {with_it} --work_dir run --resume --max_step 4 --max_step_scheduler 4")
    assert (
        "had"
        not in here(
            f"eval {with_it.replace(' ', '=', 1)} --work_dir run --split test --mem_len 0"
        ).out
    )
    here(f"generate {with_it} --work_dir run --prompt ba --length 3")
    other = here.refused(
        f"train {with_it} --work_dir run --resume --max_step 4 --max_step_scheduler 4 --last_n 2"
    )
    assert (
        "--last_n 2: the run in run was started with 3; drop the flag, or start a new run" in other
    )
    plugins._loaded.clear()
    MEMORIES._added.clear()
    missing = here.refused("eval --work_dir run --split test")
    assert "config.json: memory last_state: no such memory; there are fifo, " in missing
    assert missing.endswith("the file that defines one of your own is named with --plugin")


def test_a_flag_of_a_part_that_is_not_chosen_is_refused(here: Here, memory: Path) -> None:
    with_it = f"--plugin {shlex.quote(str(memory))}"
    idle = here.refused(f"train {with_it} --last_n 2 --work_dir new")
    assert idle.endswith(
        "--last_n 2: has no effect with --memory fifo, only with last_state; leave it out"
    )
    assert "must be at least 1" in here.refused(
        f"train {with_it} --memory last_state --last_n 0 --work_dir new"
    )
    _, is_titled, own = here(f"train {with_it} --help all").out.partition("\nof your own:\n")
    assert is_titled
    assert own.strip().startswith("--last_n int")


def test_encodings_gates_and_rules_come_from_files_too(tmp_path: Path) -> None:
    path = tmp_path / "others.py"
    path.write_text(OTHERS)
    txl.plugin(path)
    ids = torch.randint(0, 9, (2, 5))
    for chosen in (
        {"position": "slope"},
        {"gate": "half", "pre_lnorm": True},
        {"attention": "uniform"},
    ):
        model = TransformerXL(ModelConfig(**TINY, **chosen)).double()
        first, memory = model(ids[:, :3], None, Context(tgt_len=5, mem_len=5))
        second, _ = model(ids[:, 3:], memory, Context(tgt_len=5, mem_len=5))
        whole, _ = model(ids, None, Context(tgt_len=5, mem_len=5))
        torch.testing.assert_close(torch.cat([first, second], dim=1), whole)


@pytest.mark.parametrize("part", ["my_rule", "my_encoding", "my_memory"])
def test_the_file_that_a_page_shows_is_used_by_the_command_line_in_it(
    here: Here, part: str
) -> None:
    text = of_page("extending.md", part)
    name, _, line = text.splitlines()[0].removeprefix("# ").partition("; train.py ")
    Path(name).write_text(text)
    here(f"train --work_dir run --overwrite {line} --eval_tgt_len 8 --max_step 2")
    (config,) = Path("run").glob("step_*/config.json")
    chosen = json.loads(config.read_text())["model"][line.split()[2].removeprefix("--")]
    assert chosen == line.split()[3]
    row = here.row(f"eval --plugin {name} --work_dir run --split test")
    assert row["nats"] > 0
    here(f"generate --plugin {name} --work_dir run --prompt ba --length 3")


@pytest.mark.parametrize("part", ["my_rule", "my_encoding"])
def test_two_segments_equal_one_pass_with_the_part_of_a_page(tmp_path: Path, part: str) -> None:
    text = of_page("extending.md", part)
    name, flag, chosen = re.findall(r"^# (\S+); .*--(\w+) (\w+)$", text, re.MULTILINE)[0]
    (tmp_path / name).write_text(text)
    txl.plugin(tmp_path / name)
    model = TransformerXL(ModelConfig(**TINY, **{flag: chosen})).double()
    ids = torch.randint(0, 9, (2, 5))
    context = Context(tgt_len=5, mem_len=5)
    first, memory = model(ids[:, :3], None, context)
    second, _ = model(ids[:, 3:], memory, context)
    whole, _ = model(ids, None, context)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)


def test_the_memory_of_its_page_keeps_every_other_state_and_says_what_it_lacks(
    here: Here,
) -> None:
    Path("my_memory.py").write_text(of_page("extending.md", "my_memory"))
    txl.plugin("my_memory.py")
    model = TransformerXL(ModelConfig(**TINY, memory="every_other"))
    ids = torch.randint(0, 9, (2, 6))
    for mem_len, n_kept in ((4, 3), (2, 2), (0, 0)):
        _, memory = model(ids, None, Context(tgt_len=6, mem_len=mem_len))
        assert memory.layers[0].shape[1] == n_kept
    line = "train --plugin my_memory.py --memory every_other --work_dir other"
    assert "documents" in here.refused(f"{line} --reset document")
    assert "--ext_len" in here.refused(f"{line} --ext_len 2")


@pytest.fixture
def optimizer(tmp_path: Path) -> Path:
    path = tmp_path / "my_optimizer.py"
    path.write_text(OPTIMIZER)
    return path


def test_an_optimizer_of_a_file_trains_resumes_and_is_estimated(
    here: Here, optimizer: Path
) -> None:
    with_it = f"--plugin {shlex.quote(str(optimizer))}"
    train = f"train {with_it} --scheduler constant --lr 0.01"
    asked = f"{train} --optim rmsprop --square_decay 0.5"
    here(f"{asked} --work_dir whole --max_step 4")
    here(f"{asked} --work_dir run --overwrite --max_step 2")
    saved = json.loads(next(Path("run").glob("step_*/config.json")).read_text())["train"]
    assert (saved["optim"], saved["square_decay"], saved["beta1"]) == ("rmsprop", 0.5, 0.9)
    other = here.refused(f"{train} --work_dir run --resume --max_step 4 --square_decay 0.6")
    assert "--square_decay 0.6: the run in run was started with 0.5; drop the flag" in other
    here(f"{train} --work_dir run --resume --max_step 4")
    ends = [f"{folder}/step_00000004/optimizer.safetensors" for folder in ("run", "whole")]
    resumed, whole = map(load_file, ends)
    torch.testing.assert_close(resumed, whole, rtol=0, atol=0)

    model = TransformerXL(ModelConfig(**TINY))
    assert optimizer_bytes(model, TrainConfig(optim="rmsprop")) == weight_bytes(model)
    assert optimizer_bytes(model, TrainConfig(optim="adam")) == 2 * weight_bytes(model)

    plugins._loaded.clear()
    OPTIMIZERS._added.clear()
    here("eval --work_dir run --split test")
    missing = here.refused("train --work_dir run --resume --max_step 5")
    assert "config.json: optim rmsprop: no such optimizer; there are adam, " in missing
    assert missing.endswith("the file that defines one of your own is named with --plugin")


def test_a_schedule_of_a_file_is_followed(here: Here, tmp_path: Path) -> None:
    path = tmp_path / "my_schedule.py"
    path.write_text(SCHEDULE)
    train = f"train --plugin {shlex.quote(str(path))} --work_dir run"
    here(f"{train} --overwrite --scheduler linear --lr 0.01 --max_step 4 --log_interval 1")
    records = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    rates = [record["train/lr"] for record in records if record["kind"] == "train"]
    assert rates == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    beyond = here.refused(f"{train} --resume --max_step 8")
    assert "the linear schedule of the run ends after step 4, at a learning rate of 0;" in beyond


def test_a_rule_of_dynamic_evaluation_of_a_file_adapts(here: Here, tmp_path: Path) -> None:
    path = tmp_path / "my_rule.py"
    path.write_text(ADAPTATION)
    with_it = f"--plugin {shlex.quote(str(path))}"
    plain, adapted = here.rows(f"eval {with_it} --split valid --dynamic sign")
    assert adapted["added"] == "dynamic sign"
    assert adapted["nats"] != pytest.approx(plain["nats"], rel=1e-4)
    idle = here.refused(f"eval {with_it} --dynamic sign --dynamic_epsilon 1")
    assert idle.endswith("has no effect with --dynamic sign, only with rms; leave it out")


def test_a_data_set_of_the_page_is_read_trained_on_and_evaluated(here: Here) -> None:
    text = of_page("data.md")
    Path("my_text.py").write_text(text)
    Path("text/train.txt").write_text(Path("text/train.txt").read_text().upper())
    with_it = "--plugin my_text.py --data text"
    here(f"train {with_it} --dataset small_letters --work_dir new --max_step 2")
    corpus = txl.load("new").corpus()
    assert "b" in corpus.vocab.words
    assert "B" not in corpus.vocab.words
    assert here.row("eval --plugin my_text.py --work_dir new --split test")["nats"] > 0
    DATA_SETS._added.clear()
    assert "no such data set" in here.refused("eval --work_dir new --split test")


def test_a_checkpoint_of_the_page_is_read_by_all_programs(here: Here) -> None:
    Path("my_source.py").write_text(of_page("importing.md"))
    shape = TINY | {"n_token": 66}
    model = TransformerXL(ModelConfig(**shape))
    theirs = Path("theirs")
    theirs.mkdir()
    save_model(model, str(theirs / "mine.safetensors"))
    words = ["<eos>", "<unk>", *WORDS]
    (theirs / "mine.json").write_text(json.dumps({"shape": shape, "words": words}))
    Path("text/train.txt").unlink()  # its vocabulary has another order
    with_it = "--plugin my_source.py --work_dir theirs"
    assert here.row(f"eval {with_it} --data text --dataset text --split test")["nats"] > 0
    here(f"generate {with_it} --length 2")
    assert txl.load("theirs", dataset="text").origin.kind == "my program"
    SOURCES._added.clear()
    assert "theirs: holds no checkpoint" in here.refused("generate --work_dir theirs --length 2")


def test_a_flag_of_an_optimizer_that_is_not_chosen_is_refused(here: Here, optimizer: Path) -> None:
    with_it = f"--plugin {shlex.quote(str(optimizer))}"
    idle = here.refused(f"train {with_it} --square_decay 0.5 --work_dir new")
    assert idle.endswith("has no effect with --optim adam, only with rmsprop; leave it out")
    of_adam = here.refused(f"train {with_it} --optim rmsprop --beta1 0.5 --work_dir new")
    assert "--optim rmsprop, only with adam, adamw, lamb or muon; leave it out" in of_adam
    above = here.refused(f"train {with_it} --optim rmsprop --square_decay 1 --work_dir new")
    assert "--square_decay 1.0: must be at least 0 and below 1" in above


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("class A:\n    name = 'a'\n", "A: no part of a model, a training or an evaluation; "),
        ("x = 1\n", "defines no part; give a class a name"),
        ("x = 1\n1 / 0\n", "ZeroDivisionError in line 2: division by zero"),
        ("def f(:\n", "SyntaxError: "),
        (MEMORY.replace('"last_state"', '"fifo"'), "--memory fifo: the name is taken"),
        (MEMORY.replace("    @dataclass\n", ""), "LastState.Settings: make it a dataclass"),
        (
            MEMORY.replace('option(1, "states of a segment that stay", minimum=1)', "1"),
            "LastState.Settings.last_n: a flag needs a help; make it with txl.config.option",
        ),
        (
            MEMORY.replace("last_n", "d_model"),
            "LastState.Settings.d_model: --d_model is there already; give the setting another name",
        ),
        (
            OTHERS.replace("def score(", "def scores("),
            "scores: nobody calls it; did you mean score?",
        ),
    ],
)
def test_what_is_no_plugin_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        txl.plugin(path)
    assert says in str(refused.value)


def test_a_setting_with_the_name_of_a_flag_of_the_program_is_refused(
    here: Here, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MEMORY.replace("last_n", "lr").replace("last_state", "with_a_rate"))
    said = here.refused(f"train --plugin {shlex.quote(str(path))} --memory with_a_rate")
    assert "LastState.Settings.lr: --lr is there already; give the setting another name" in said


TWO_GATES = """
from txl.stacks.gates import Gate


class First(Gate):
    name = "first_of_two"


class Second(First):
    name = "gru"
"""


def test_of_a_file_with_a_part_that_does_not_fit_none_is_taken(tmp_path: Path) -> None:
    """So that the mended file is read, as in a notebook."""
    path = tmp_path / "two.py"
    for name in ("gru", "first_of_two"):
        path.write_text(TWO_GATES.replace('"gru"', f'"{name}"'))
        with pytest.raises(UsageError, match=f"--gate {name}: the name is taken"):
            txl.plugin(path)
    path.write_text(TWO_GATES.replace('"gru"', '"second_of_two"'))
    txl.plugin(path)
    assert {"first_of_two", "second_of_two"} <= set(GATES)


def test_a_file_that_is_not_there_is_named(here: Here) -> None:
    assert "nowhere.py" in here.refused("train --plugin nowhere.py")
    assert here.refused("train --plugin").endswith("--plugin: name a Python file")
