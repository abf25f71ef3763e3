"""The table of presets: flags that go together, over which typed ones win, and that the scripts name."""

import re
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from tests.cli.test_flags import CLASSES, read, refusal
from tests.forks import ROOT
from txl.config import UsageError, build
from txl.runs.resolve import Shape, new_settings
from txl.runtime.distributed import Ranks
from txl.settings.layers import PRESETS, Entry, presets_of, read_preset
from txl.training.schedules import schedule_of

GIVEN = [(name, entry) for entry in get_args(Entry) for name in presets_of(entry)]
ALL = [path.stem for path in PRESETS.glob("*.toml")]


@pytest.mark.parametrize(("name", "entry"), GIVEN)
def test_a_preset_has_flags_that_there_are_and_go_together(name: str, entry: Any) -> None:
    found = read(entry, "--preset", name)
    assert found
    if entry != "train":
        for cls in CLASSES[entry]:
            build(cls, found)
    else:
        settings = new_settings(found, Ranks(0, 1, torch.device("cpu")))
        assert settings.train.max_step == found["max_step"]


OF_2019 = [name for name in ALL if "as in 2019" in read_preset(name)["about"]]


@pytest.mark.parametrize("name", OF_2019)
def test_a_preset_of_2019_is_its_schedule_and_its_text(name: str) -> None:
    found = read("train", "--preset", name)
    settings = new_settings(found, Ranks(0, 1, torch.device("cpu")))
    train = settings.train
    ours = schedule_of(train)
    theirs = schedule_of(replace(train, warmup_convention="original"))
    steps = {0, 1, train.warmup_step, train.max_step // 4, train.max_step // 2}
    assert [ours.rate(step) for step in steps] == [theirs.rate(step) for step in steps]
    dataset = name.partition("-")[0]
    assert settings.data.dataset == dataset
    assert (settings.data.data_convention == "original") == (dataset in ("enwik8", "text8"))
    assert read_preset(name)["eval"]
    page = (ROOT / "docs" / "coming-from-2019.md").read_text()
    script = {"wt103": "run_wt103.sh"}.get(dataset, f"scripts/run_{dataset}.sh")
    size = name.partition("-")[2]
    for command in (f"train {size}`", f"eval {size} --convention original"):
        assert f"{script} {command}" in page


def test_conventions_of_2019_give_way_to_another_text_and_to_a_time() -> None:
    other = read("train", "--preset", "enwik8-base", "--dataset", "characters")
    assert "data_convention" not in other
    assert "data_convention" in read("train", "--preset", "enwik8-base", "--dataset", "enwik8")
    assert "warmup_convention" not in read("train", "--preset", "wt103-large", "--minutes", "5")


def test_typed_flags_win_wherever_they_stand() -> None:
    for line in ("--preset tiny --lr 1 --no_pre_lnorm", "--lr 1 --no_pre_lnorm --preset tiny"):
        found = read("train", *line.split())
        assert (found["lr"], found["pre_lnorm"], found["n_layer"]) == (1, False, 4)


def test_flags_of_a_preset_that_a_typed_one_replaces_are_left_out() -> None:
    assert read("train", "--preset", "tiny")["batch_size"] == 16
    assert "batch_size" not in read("train", "--preset", "tiny", "--local_batch_size", "3")


def test_clusters_of_a_preset_give_way_to_a_softmax_without_any() -> None:
    for preset in ("small", "base", "wt103-large"):
        typed = read("train", "--preset", preset, "--no_adaptive")
        shape = new_settings(typed, Ranks(0, 1, torch.device("cpu"))).shape
        assert isinstance(shape, Shape)
        assert shape.of_words(30_000, "text").cutoffs == ()
    both = read("train", "--cutoffs", "100", "--no_adaptive")
    with pytest.raises(UsageError, match="--no_adaptive and --cutoffs 100: drop one of them"):
        new_settings(both, Ranks(0, 1, torch.device("cpu")))


def test_a_preset_is_refused_by_a_program_that_it_has_no_flags_for() -> None:
    assert refusal("generate", "--preset", "tiny").startswith("--preset: invalid choice: 'tiny'")
    assert refusal("train", "--preset", "tinny").startswith("--preset: invalid choice: 'tinny'")


def test_every_size_of_a_script_is_a_preset() -> None:
    scripts = [ROOT / "run_wt103.sh", *sorted((ROOT / "scripts").glob("run_*.sh"))]
    named = set()
    for script in scripts:
        text = script.read_text()
        (name,) = re.findall(r"^script=\S+ name=(\w+)$", text, flags=re.MULTILINE)
        (sizes,) = re.findall(r"^sizes=\((.*)\)$", text, flags=re.MULTILINE)
        named |= {f"{name}-{size}" for size in sizes.split()}
    assert named == {name for name in ALL if re.match("(wt103|wt2|ptb|enwik8|text8|lm1b)-", name)}
