"""Study files."""

import re
from pathlib import Path

import pytest
import torch

from lab.studies.plan import read_study, tasks, words
from lab.studies.runner import require_flags
from tests.cli.test_flags import read
from tests.forks import ROOT
from txl import ModelConfig, TransformerXL
from txl.config import UsageError, build
from txl.training.config import TrainConfig

GOOD = """
title = "Memory"
seeds = [3, 5]
baseline = "far, lr 0.1"
[train]
n_layer = 2
adaptive = true
[runs.near]
mem_len = 4
[runs.far]
mem_len = 8
n_layer = 3
[grid]
lr = [0.1, 0.2]
[evaluations.test]
split = "test"
mem_len = [0, 8]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", sorted((ROOT / "lab" / "study_files").glob("*.toml")), ids=lambda path: path.stem
)
def test_a_study_of_the_repository_has_flags_and_models_that_there_are(path: Path) -> None:
    study = read_study(path)
    for flags in study.variants.values():
        typed = read("train", *words(flags, Path("runs/one")))
        sizes = {"n_token": 20_001, "tie_projs": (False, True, True)}
        if typed.get("cutoffs") == ("auto",):  # which the text decides
            typed["cutoffs"] = (2000, 10_000)
        with torch.device("meta"):
            TransformerXL(build(ModelConfig, typed, **sizes, n_position=128))
        build(TrainConfig, typed)
    require_flags(study)


def written(folder: Path, text: str) -> Path:
    (folder / "mine.toml").write_text(text)
    return folder / "mine.toml"


def test_the_study_of_the_docs_is_one(tmp_path: Path) -> None:
    page = (ROOT / "lab/docs/studies.md").read_text()
    texts = re.findall("^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    study = read_study(written(tmp_path, "\n".join(texts)))
    assert study.contrasts
    assert study.reruns
    assert study.search
    assert study.best


def test_runs_times_grid_times_seeds(tmp_path: Path) -> None:
    study = read_study(written(tmp_path, GOOD))
    assert list(study.variants) == ["near, lr 0.1", "near, lr 0.2", "far, lr 0.1", "far, lr 0.2"]
    assert study.variants["far, lr 0.2"] == {
        "n_layer": 3,
        "adaptive": True,
        "mem_len": 8,
        "lr": 0.2,
    }
    todo = tasks(study, tmp_path)
    assert [task.seed for task in todo] == [3] * 4 + [5] * 4
    assert len({task.folder for task in todo}) == 8
    assert (
        words(todo[2].flags, tmp_path)
        == "--n_layer 3 --adaptive --mem_len 8 --lr 0.1 --seed 3".split()
    )
    flags = {"split": "test", "mem_len": [0, 8], "same_length": False, "pictures": "{run}/plots"}
    assert words(flags, Path("runs/one")) == (
        "--split test --mem_len 0 8 --no_same_length --pictures runs/one/plots".split()
    )


BAD = {
    "x = ": "not TOML",
    "": "nothing to train",
    "sedes = [1]\n[runs.a]": "sedes: no such part; there are title, seeds",
    "seeds = 3\n[runs.a]": "seeds: must be a list",
    "seeds = [1, 1]\n[runs.a]": "seeds: one is there twice",
    "seeds = ['a']\n[runs.a]": "seeds: give whole numbers",
    "seeds = [1, -1]\n[runs.a]": "seeds: -1: a seed is at least 0 and below 2^32",
    "[runs.a]\nlr = 1\n[search]\nseed = -5": "search.seed: -5: a seed is at least 0",
    "[runs.a]\nhelp = true": "help: asks for a text and trains nothing; leave it out",
    "[runs.a]\n[best]\nx = ['test']": "best: x: ['test']: no such evaluation; there are valid",
    "[runs.a]\nmem_len = 8\nmem-len = 9": "mem_len: is there twice, as mem-len too; leave one out",
    "baseline = 'b'\n[runs.a]": "baseline 'b': no such run; there are a",
    "metric = 'loss'\n[runs.a]": "metric: there are perplexity",
    "[runs]\na = 3": "runs: give tables of flags",
    "[grid]\na = 3": "grid.a: must be a list",
    "[runs.a]\nseed = 3": "seed: the runner sets this",
    "[runs.a]\nwork-dir = 'x'": "work_dir: the runner sets this",
    "[runs.a]\n[evaluations.test]\njson = 'x'": "evaluations: json: the runner sets this",
    "[runs.a]\nevaluations = 3": "runs: a: evaluations: give tables of flags",
    "[runs.a.evaluations.test]": "runs: a: evaluations: 'test': no such evaluation; there are valid",
    "[runs.a.evaluations.valid]\njson = 'x'": "evaluations: json: the runner sets this",
    "[runs.a]\ndata = 2026-11-22": "data: 2026-11-22: give text, a finite number, true or false",
    "[runs.a]\nclip = inf": "clip: inf: give text, a finite number",
    "[runs.'a b']\n[runs.a_b]": "'a b' and 'a_b' have one folder",
    "[runs.'..']": "'..' is no name of a folder",
    "[runs.a]\n[contrasts.x]\nof = [['a', 'valid']]": "contrasts.x: give of =",
    "[runs.a]\n[contrasts.x]\nexploratory = 1": "contrasts.x: exploratory: must be true or false",
    "[runs.a]\n[contrasts.x]\nof = [['a', 'valid']]\nagainst = []": "contrasts.x: give of =",
    "[runs.a]\n[contrasts.x]\nof = [['a', 'valid']]\nagainst = [['b', 'valid']]": "'b': no such run; there are a",
    "[runs.a]\n[contrasts.x]\nof = [['a', 'valid']]\nagainst = [['a', 'valido']]": "'valido': no such column",
    "[runs.a]\n[contrasts.x]\nof = [['a', 'valid']]\nagainst = [['a', 'valid']]": "x: both sides are of the same",
    "[runs.a]\n[runs.b]\n[runs.c]\n[contrasts.x]\n"
    "of = [['a', 'valid'], ['b', 'valid']]\nagainst = [['a', 'valid, y'], ['c', 'valid']]": (
        "contrasts.x: a: as often on both sides, b, c: not"
    ),
    "[runs.a]\nseeds = []": "runs: a: seeds: give whole numbers",
    "[runs.a]\n[search]\nfactor = 1": "search.factor 1: must be above 1",
    "[runs.a]\n[search]\nto = 'lr'": "search.to: no such part; there are of, factor, seed, share, train, like",
    "[runs.a]\nlr = 1\nmax_step = 9\n[search]\nshare = 2.0": "search.share 2: must be above 0 and at most 1",
    "[runs.a]\nlr = 1\nmax_step = 9\n[search]\nshare = 0.5\ntrain = {max_step = 4}": "max_step: beside share 0.5",
    "[runs.a]\nlr = 1\n[search.like]\nb = 'a'": "search.like: 'b': no such run; there are a",
    "[train]\nlr = 1\n[runs.a]\n[runs.b]\n[search.like]\na = 'b'\nb = 'a'": "a: b takes the value of another too",
    "[runs.a]\nlr = 1\n[search]\nshare = 0.5": "runs: a: max_step: give it; share is of it",
    "[runs.a]\n[search]\nseed = 'x'": "search.seed: 'x': must be of type int",
    "[runs.a]\n[search]": "runs: a: lr: give the first value of the search",
    "[runs.a]\nlr = 1\n[search.train]\nseed = 3": "search.train: seed: the runner sets this",
    "[runs.a]\n[reruns]\nb = [1]": "reruns: b: no such run; there are a",
    "[runs.a]\n[reruns]\na = [2]": "reruns: a: 2: none of its seeds",
    "[runs.a]\n[best]\nx = 'test'": "best: x: 'test': no such evaluation; there are valid",
    "[runs.a]\n[best]\nx = 'valid'": "best: x: valid: the best on valid is read on test",
    "[runs.a]\nseeds = [1]\n[runs.b]\nseeds = [2]\n[contrasts.x]\nof = [['a', 'valid']]\nagainst = [['b', 'valid']]": (
        "contrasts.x: a, b: have no seed in common"
    ),
    "[runs.a]\n[evaluations.'a b']\n[evaluations.a_b]": "'a b' and 'a_b' have one folder",
}


def test_a_bad_file_is_one_line(tmp_path: Path) -> None:
    for text, named in BAD.items():
        with pytest.raises(UsageError) as caught:
            read_study(written(tmp_path, text))
        assert named in str(caught.value)
        assert str(tmp_path / "mine.toml") in str(caught.value)
    with pytest.raises(UsageError, match="name the TOML file of a study"):
        read_study(tmp_path / "no.toml")
