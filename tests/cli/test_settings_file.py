"""Settings in a file are those of flags."""

import hashlib
import json
from pathlib import Path

import pytest

from tests.cli.conftest import BEFORE, Here, config_of, pointed
from tests.cli.test_flags import CLASSES
from txl.settings.flags import read_flags

PAGES = Path(__file__).parents[2] / "docs"
TINY = {
    "dataset": "text",
    "data": "text",
    "d_model": 16,
    "n_layer": 2,
    "n_head": 2,
    "d_head": 8,
    "d_inner": 32,
    "batch_size": 4,
    "tgt_len": 8,
    "mem_len": 8,
    "eval_tgt_len": 8,
    "max_step": 4,
    "eval_interval": 1,
    "log_interval": 2,
    "init_std": 0.2,
    "sample_length": 1,
}
"""What `BEFORE` types."""
NVIDIA = """
common: &common
  dataset: text
  data: text
  cuda: true
  n_layer: 2
  d_model: 16
  n_head: 2
  d_head: 8
  d_inner: 32
  init_std: 0.2
train: &train
  <<: *common
  batch_size: 4
  tgt_len: 8
  mem_len: 8
  eval_tgt_len: 8
  max_step: 4
  eval_interval: 1
  log_interval: 2
  pre_lnorm: false
  optim: jitlamb
  lr: 0.01
  eta_min: 0.001
default:
  train:
    <<: *train
  eval:
    <<: *common
2gpu:
  train:
    <<: *train
    max_step: 2
    fp16: true
"""


@pytest.fixture(autouse=True)
def bare(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BEFORE, "train", ["--work_dir", "new"])


def weights(run: Path = Path("new")) -> str:
    return hashlib.sha256((pointed(run) / "model.safetensors").read_bytes()).hexdigest()


def toml(settings: dict[str, object]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())


def test_a_setting_in_a_file_gives_the_run_of_the_flag(here: Here) -> None:
    Path("tiny.toml").write_text(
        toml({**TINY, "n_layer": 3})
        + "[train]\nn_layer = 2\ncutoffs = [20, 40]\npre_lnorm = true\n"
    )
    Path("tiny.json").write_text(json.dumps({**TINY, "cutoffs": [20, 40], "pre_lnorm": True}))
    flags = " ".join(f"--{key} {value}" for key, value in TINY.items())
    here(f"train {flags} --cutoffs 20 40 --pre_lnorm --overwrite")
    digest, settings = weights(), config_of(Path("new"))
    for name in ("tiny.toml", "tiny.json"):
        here(f"train --config {name} --overwrite")
        assert weights() == digest
        assert config_of(Path("new")) == settings


def test_flags_win_over_a_file_and_a_file_over_a_preset(here: Here) -> None:
    Path("tiny.toml").write_text(toml({**TINY, "preset": "tiny", "optim": "adamw"}))
    here("train --config tiny.toml --max_step 2")
    train = config_of(Path("new"))["train"]
    assert (train["max_step"], train["optim"], train["weight_decay"]) == (2, "adamw", 0.1)


def test_the_record_of_a_run_is_such_a_file(here: Here) -> None:
    record = pointed(Path("run")) / "config.json"
    here(f"train --config {record} --data text")
    assert weights() == weights(Path("run"))


def test_what_follows_from_other_settings_of_a_run_follows_from_typed_flags(here: Here) -> None:
    """Else twice the updates would make the second half of them at a rate of 0."""
    record = pointed(Path("run")) / "config.json"
    asked = "--max_step 8 --tgt_len 6 --d_model 32 --memory compressive"
    here(f"train --config {record} --data text {asked}")
    here(f"train --config {pointed(Path('new')) / 'config.json'} --work_dir next --mem_len 4")
    was, now = config_of(Path("new")), config_of(Path("next"))
    for config in (was, now):
        assert config["train"]["max_step_scheduler"] == 8
        assert config["train"]["eval_tgt_len"] == 6
        assert config["model"]["d_embed"] == 32
    assert [one["context"]["compressed_len"] for one in (was, now)] == [8, 4]


def test_what_was_found_for_a_run_is_found_anew_for_another(here: Here) -> None:
    """The size of a table, the parts of a segment and the streams of all processes."""
    first = pointed(Path("run")) / "config.json"
    asked = "--position learned_relative --memory infini --local_batch_size 2"
    here(f"train --config {first} --data text {asked}")
    record = pointed(Path("new")) / "config.json"
    assert config_of(Path("new"))["train"]["memory_parts"] == 4
    asked = "--memory fifo --mem_len 30 --local_batch_size 3"
    here(f"train --config {record} --work_dir next {asked}")
    now = config_of(Path("next"))
    assert now["model"]["own"]["n_position"] == now["context"]["tgt_len"] + 30
    assert now["train"]["memory_parts"] == 1
    assert now["train"]["batch_size"] == 3
    again = read_flags(
        ["--config", str(record)], *CLASSES["train"], description="", presets="train"
    )
    assert "batch_size" not in again, "of as many processes as there will be"
    asked = "--batch_size 2 --no_adaptive"
    here(f"train --config {record} --work_dir last {asked}")
    assert config_of(Path("last"))["train"]["batch_size"] == 2


def test_a_record_that_was_edited_is_said_to_be_so(here: Here) -> None:
    content = config_of(Path("run"))
    for part, name, value, says in (
        ("context", "mem_len", [8], "mem_len: takes one value"),
        ("model", "n_layer", 2.0, "n_layer: invalid int value"),
        ("model", "memory", "mine", "memory: invalid choice"),
    ):
        edited = {**content, part: {**content[part], name: value}}
        Path("edited.json").write_text(json.dumps(edited))
        assert says in here.refused("train --config edited.json --data text")


def test_programs_that_read_take_the_record_of_a_run(
    here: Here, capfd: pytest.CaptureFixture[str]
) -> None:
    """But what is of the training alone, and for texts that are written what is of the model."""
    record = pointed(Path("run")) / "config.json"
    assert here.rows(f"eval --config {record} --data text")
    here(f"generate --config {record} --length 3")
    assert "no effect" not in capfd.readouterr().err


def test_a_table_is_for_one_program(here: Here) -> None:
    Path("all.toml").write_text('[eval]\nsplit = "test"\n[generate]\nlength = 3\n[train]\nlr = 1\n')
    rows = here.rows("eval --config all.toml")
    assert [row["split"] for row in rows] == ["test"]
    here("generate --config all.toml")


def test_the_file_of_the_page_is_read_by_all_programs(here: Here) -> None:
    page = (PAGES / "training.md").read_text()
    Path("mine.toml").write_text(page.split("```toml\n")[1].split("```")[0])
    assert here.rows("eval --config mine.toml")
    here("generate --config mine.toml --length 3")


def test_configurations_of_nvidia_are_read_by_name(here: Here) -> None:
    Path("wt103.yaml").write_text(NVIDIA)
    assert "--fp16: use --dtype" in here.refused("train --config_file wt103.yaml --config 2gpu")
    here("train --config_file wt103.yaml --config 2gpu --dtype bfloat16")
    train = config_of(Path("new"))["train"]
    assert (train["optim"], train["max_step"], train["eta_min"]) == ("lamb", 2, 0.001)
    for flags in ("--config_file wt103.yaml --config default", "--config wt103.yaml"):
        here(f"train {flags} --overwrite")
        assert config_of(Path("new"))["train"]["max_step"] == 4
    said = here.refused("train --config_file wt103.yaml --config 8gpu")
    assert "wt103.yaml: holds no configuration 8gpu for train.py; there are default, 2gpu" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("n_layr = 2", "n_layr: no such setting; did you mean n_layer?"),
        ("block_size = 64", "block_size: no such setting; here it is tgt_len"),
        ("lr = 'fast'", "lr: invalid float value: 'fast'"),
        ("lr = [1, 2]", "lr: takes one value, and no list"),
        ("n_layer = true", "n_layer: takes a value, and true is none; leave it out"),
        ("lr = 0", "lr: 0.0: must be above 0"),
        ("clip = false", "clip: takes a value, and false is none; leave it out"),
        ("optim = 'sofia'", "optim: invalid choice: 'sofia'"),
        ("plugin = 'mine.py'", "plugin: give it on the command line, as --plugin"),
        ("train = 3", "train: must be a table of settings"),
        ("lr 3", "cannot be read as toml (Expected '='"),
        ("fp16 = true", "--fp16: use --dtype float16"),
    ],
)
def test_what_is_no_setting_is_named_with_its_file(here: Here, content: str, said: str) -> None:
    Path("my settings.toml").write_text(content)
    complaint = here.refused("train --config 'my settings.toml'")
    assert said in complaint
    if not said.startswith("--"):
        assert "my settings.toml: " in complaint


def test_a_setting_of_the_training_is_sent_to_its_table(here: Here) -> None:
    Path("mine.toml").write_text("n_layer = 2")
    said = here.refused("eval --config mine.toml")
    assert "n_layer: no such setting; none of eval.py; one of train.py stands below [train]" in said


def test_a_file_that_is_none_is_refused(here: Here) -> None:
    Path("a.ini").write_text("lr = 3")
    Path("list.json").write_text("[1]")
    Path("bad.yaml").write_text("a: [")
    assert "a.ini: must end in one of .toml, .json, .yaml, .yml" in here.refused(
        "train --config a.ini"
    )
    assert "list.json: must hold settings by name" in here.refused("train --config list.json")
    assert "bad.yaml: cannot be read as yaml" in here.refused("train --config bad.yaml")
    assert "nowhere.toml: No such file" in here.refused("train --config nowhere.toml")


@pytest.mark.parametrize("kind", ["json", "toml", "yaml"])
def test_no_value_of_a_file_becomes_a_flag(here: Here, kind: str) -> None:
    """Whatever the key: a stranger's file removes no run."""
    values = {"data": '["text", "--overwrite"]', "work_dir": '"--overwrite"'}
    for key, value in values.items():
        texts = {"json": f'{{"{key}": {value}}}', "toml": f"{key} = {value}"}
        Path(f"theirs.{kind}").write_text(texts.get(kind, f"{key}: {value}"))
        typed = read_flags(
            ["--config", f"theirs.{kind}"], *CLASSES["train"], description="", presets="train"
        )
        assert set(typed) == {key, "config"}
    for items in (["20", "--overwrite"], ["-h"], ["--resume=3"]):
        Path(f"theirs.{kind}").write_text(
            {"yaml": f"cutoffs: {json.dumps(items)}", "toml": f"cutoffs = {json.dumps(items)}"}.get(
                kind, json.dumps({"cutoffs": items})
            )
        )
        said = here.refused(f"train --config theirs.{kind}")
        assert f"cutoffs: invalid int_or_auto value: '{items[-1]}'" in said


def test_the_record_of_a_run_removes_no_run(here: Here) -> None:
    record = {**config_of(Path("run")), "data": {"data": ["text", "--overwrite"]}}
    Path("theirs.json").write_text(json.dumps(record))
    before = pointed(Path("run"))
    assert "already holds the checkpoints" in here.refused(
        "train --config theirs.json --work_dir run"
    )
    assert pointed(Path("run")) == before


_DEEP = "[" * 5000 + "]" * 5000
_ANCHORS = "".join(f", &a{i} [" + ",".join([f"*a{i - 1}"] * 10) + "]" for i in range(1, 10))
_MERGED = "".join(
    f"a{i}: &a{i}\n  <<: [" + ",".join([f"*a{i - 1}"] * 10) + "]\n" for i in range(1, 10)
)
DAMAGED = {
    "hex.toml": "lr = 0x" + "f" * 5000,
    "hex.yaml": "lr: 0x" + "f" * 5000,
    "sixty.yaml": "lr: 1" + ":1" * 30000,
    "digits.json": '{"lr": ' + "9" * 5000 + "}",
    "int.yaml": 'lr: !!int ""',
    "float.yaml": 'lr: !!float ""',
    "bool.yaml": "adaptive: !!bool maybe",
    "timestamp.yaml": 'data: !!timestamp "x"',
    "binary.yaml": "data: !!binary aGVsbG8=",
    "deep.json": f'{{"lr": {_DEEP}}}',
    "deep.toml": f"lr = {_DEEP}",
    "deep.yaml": f"lr: {_DEEP}",
    "dotted.toml": "a" + ".a" * 100_000 + " = 1",
    "nul.json": '{"data": "a\\u0000b"}',
    "control.yaml": "lr: \x01",
    "surrogate.json": '{"data": "\\ud800"}',
    "run.json": '{"data": {}, "model": {"own": 3}, "context": {}, "train": {}}',
    "anchors.yaml": f"lr: [&a0 [1,1,1,1,1,1,1,1,1,1]{_ANCHORS}]",
    "merged.yaml": f"a0: &a0 {{x: 1}}\n{_MERGED}",
    "cycle.yaml": "lr: &a [*a]",
    "date.toml": "lr = 2020-01-01",
    "twice.json": '{"lr": 1, "lr": 2}',
    "table.json": '{"data": {"a": 1}}',
    "nested.json": '{"data": [["a"]]}',
    "key.yaml": "1: 2",
    "large.toml": "# " + "x" * 2**20,
    "many.json": json.dumps({"data": ["x"] * 20_000}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_one_line_and_takes_little(here: Here, name: str) -> None:
    Path(name).write_text(DAMAGED[name])
    assert f"{name}: " in here.refused(f"train --config {name}")


def test_a_retired_setting_is_answered_wherever_it_stands(here: Here) -> None:
    for text in (
        "loss_by_position = true\nmem_len = 4\n",
        "mem_len = 4\nloss_by_position = true\n",
    ):
        Path("mine.toml").write_text(text)
        assert "type python -m lab.loss_by_position" in here.refused("eval --config mine.toml")
