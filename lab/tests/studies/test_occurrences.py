"""Two readings of a study by where a token stood last."""

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lab.studies.occurrences import main
from lab.tests.studies.test_runner import write_splits
from txl.config import UsageError
from txl.evaluation.measures.token_losses import TokenLosses, write_losses

STUDY = """
seeds = [1, 2]
[train]
data = "text"
dataset = "text"
[runs.a]
[runs.b]
[evaluations.test]
split = "test"
mem_len = [0, 3]
"""
TRAIN = "a b a c a b d\n" * 4
IDS = np.random.default_rng(0).integers(0, 6, 60)
N = len(IDS)
TGT_LEN = 4


@pytest.fixture
def losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[tuple[str, int, int], np.ndarray]:
    """Of a study whose trainings are done: the nats of each token by row, seed and memory."""
    monkeypatch.chdir(tmp_path)
    write_splits(Path("text"))
    Path("text/train.txt").write_text(TRAIN)
    Path("mine.toml").write_text(STUDY)
    dice, nats = np.random.default_rng(1), {}
    visible = np.array([0, *(1 + i % TGT_LEN for i in range(N - 1))])
    for row in "ab":
        for seed in (1, 2):
            rows = []
            for mem_len in (0, 3):
                context = {
                    "tgt_len": TGT_LEN,
                    "mem_len": mem_len,
                    "ext_len": 0,
                    "same_length": False,
                }
                nats[row, seed, mem_len] = dice.random(N).astype(np.float32)
                rows.append(
                    TokenLosses("test", context, "", IDS, nats[row, seed, mem_len], visible)
                )
            folder = Path(f"runs/studies/mine/runs/{row}/seed_{seed}")
            write_losses(folder / "test.npz", rows)
            (folder / "done.json").write_text(json.dumps({"evaluations": {"test": {}}}))
    return nats


def compared(*flags: str) -> dict[tuple[str, str], list[float]]:
    """The numbers of each group."""
    main(["mine.toml", *flags, "--csv", "groups.csv"])
    _, *lines = csv.reader(Path("groups.csv").read_text().splitlines())
    return {(line[0], line[1]): [float(x) for x in line[2:]] for line in lines}


def test_groups_are_those_of_a_plain_loop(losses: dict[tuple[str, int, int], np.ndarray]) -> None:
    found = compared("--of", "a", "test, mem_len 3", "--against", "b", "test, mem_len 0")
    words = ["<eos>", "<unk>", "a", "b", "c", "d"]  # the order of the vocabulary
    counts = Counter(TRAIN.replace("\n", " <eos> ").split())
    members: dict[tuple[str, str], list[int]] = {}
    for token in range(1, N):
        begin = TGT_LEN * ((token - 1) // TGT_LEN)
        parts = {
            "segment": IDS[begin:token],
            "memory": IDS[max(0, begin - 3) : begin],
            "beyond": IDS[:begin],
        }
        place = next((name for name, ids in parts.items() if IDS[token] in ids), "never")
        count = counts[words[IDS[token]]]
        frequency = "0 to 0" if not count else "1 to 9" if count < 10 else "10 or more"
        for key in ((place, frequency), (place, "all"), ("all", frequency), ("all", "all")):
            members.setdefault(key, []).append(token)
    assert found.keys() == members.keys()
    whole = sum(losses["a", seed, 3][1:].sum() - losses["b", seed, 0][1:].sum() for seed in (1, 2))
    for key, tokens in members.items():
        n_token, of, against, share, *differences = found[key]
        each = [
            losses["a", seed, 3][tokens].mean() - losses["b", seed, 0][tokens].mean()
            for seed in (1, 2)
        ]
        assert n_token == len(tokens)
        assert of == pytest.approx(
            np.mean([losses["a", seed, 3][tokens].mean() for seed in (1, 2)]), rel=1e-5
        )
        assert of - against == pytest.approx(np.mean(each), abs=1e-6)
        assert differences == pytest.approx(each, abs=1e-6)
        assert share == pytest.approx(sum(each) * len(tokens) / whole, abs=1e-4)


def test_what_cannot_be_compared_is_said(losses: dict[tuple[str, int, int], np.ndarray]) -> None:
    good = ["--of", "a", "test, mem_len 3", "--against", "b", "test, mem_len 0"]
    cases = {
        "--of c: no such row; there are a, b": ["--of", "c", "test"],
        "--of: give a row and a column": ["--of", "a"],
        "'valid': no column of an evaluation": ["--of", "a", "valid"],
        "'test, mem_len 9': no such column; there are test, mem_len 0; test": [
            "--of",
            "a",
            "test, mem_len 9",
        ],
        "no seed has the losses of both": ["--folder", "elsewhere"],
    }
    for why, flags in cases.items():
        with pytest.raises(UsageError, match=why):
            compared(*good, *flags)
    context = {"tgt_len": TGT_LEN, "mem_len": 0}
    other = TokenLosses("test", context, "", IDS[::-1], losses["b", 1, 0], np.ones(N, dtype=int))
    for seed in (1, 2):
        write_losses(Path(f"runs/studies/mine/runs/b/seed_{seed}/test.npz"), [other])
    with pytest.raises(UsageError, match="are of other tokens"):
        compared("--of", "a", "test, mem_len 3", "--against", "b", "test")
