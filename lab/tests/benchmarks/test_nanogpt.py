"""Both programs train on the same characters, and each is read whole."""

import json
import math
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.benchmarks import nanogpt
from lab.benchmarks.nanogpt import (
    BLOCK,
    BLOCKS_AT_ONCE,
    DATASET,
    TRAININGS,
    Training,
    first_row,
    nats_in_blocks,
    nats_in_overlapping_blocks,
    our_row,
    split,
    their_row,
    write_for_nanogpt,
    write_for_ours,
)
from lab.benchmarks.peers import PeerError
from tests.conftest import long_test

LINES = "".join(f"line {i} of a text\n" for i in range(100))
TRAIN = """
import pickle, sys
from pathlib import Path
import torch
asked = dict(word.removeprefix("--").split("=") for word in sys.argv[2:])
vocab_size = pickle.loads(Path("data/shakespeare_char/meta.pkl").read_bytes())["vocab_size"]
Path("out-shakespeare-char").mkdir()
checkpoint = {"model_args": {"vocab_size": vocab_size}, "model": {"logits": torch.zeros(vocab_size)}}
assert asked["device"] == "cpu" and asked["max_iters"] == asked["eval_interval"]
torch.save(checkpoint, "out-shakespeare-char/ckpt.pt")
"""
MODEL = """
from dataclasses import dataclass
import torch

@dataclass
class GPTConfig:
    vocab_size: int

class GPT(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        print("number of parameters")
        self.logits = torch.nn.Parameter(torch.ones(config.vocab_size))

    def forward(self, x, y):
        logits = self.logits.expand(*y.shape, -1)
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
"""
"""A stand-in for nanoGPT that finds every character equally likely."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    (folder / "config").mkdir(parents=True)
    (folder / "config" / f"train_{DATASET}.py").touch()
    (folder / "train.py").write_text(TRAIN)
    (folder / "model.py").write_text(MODEL)
    return folder


def test_the_last_tenth_is_held_out_from_the_beginning_of_a_line() -> None:
    text = split(LINES)
    assert text.train + text.valid == LINES
    assert text.train.endswith("\n")
    assert len(text.valid) == pytest.approx(len(LINES) / 10, abs=len("line 90 of a text\n"))
    assert split("a" * 100) == ("a" * 90, "a" * 10 + "\n")


def test_both_programs_get_the_same_characters(tmp_path: Path) -> None:
    text = split(LINES)
    write_for_nanogpt(tmp_path / "theirs", text)
    write_for_ours(tmp_path / "ours", text)
    meta = pickle.loads((tmp_path / "theirs" / "meta.pkl").read_bytes())
    assert meta["vocab_size"] == len(set(LINES))
    for theirs, ours in (("train.bin", "train.txt"), ("val.bin", "valid.txt")):
        ids = np.fromfile(tmp_path / "theirs" / theirs, dtype=np.uint16)
        characters = [meta["itos"][i] for i in ids]
        assert "".join(characters) == (tmp_path / "ours" / ours).read_text()


class Reader(torch.nn.Module):
    """One whose loss is how far the target is from the input; it remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, x_BT: torch.Tensor, y_BT: torch.Tensor) -> tuple[None, torch.Tensor]:
        self.shapes.append(tuple(x_BT.shape))
        return None, (y_BT - x_BT).double().mean()


@pytest.mark.parametrize("n_over", [1, 2, BLOCK])
def test_every_character_but_the_first_is_scored_once(n_over: int) -> None:
    n_whole = BLOCKS_AT_ONCE + 1
    ids = np.arange(n_whole * BLOCK + n_over, dtype=np.uint16) ** 2 % 1000
    reader = Reader()
    found = nats_in_blocks(reader, ids)
    assert found == pytest.approx(np.diff(ids.astype(np.int64)).mean(), abs=1e-9)
    assert sum(math.prod(shape) for shape in reader.shapes) == len(ids) - 1
    assert {shape[1] for shape in reader.shapes} <= {BLOCK, n_over - 1}


class Counter(torch.nn.Module):
    """One that finds a character as likely as its place in the block says."""

    def forward(self, x_BT: torch.Tensor, y_BT: torch.Tensor) -> tuple[torch.Tensor, None]:
        place_T1 = torch.arange(float(BLOCK))[:, None]
        likely_TV = torch.cat([-place_T1, place_T1 * 0], dim=1)
        return likely_TV.expand(*x_BT.shape, 2), None


@pytest.mark.parametrize("n_scored", [BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 5])
def test_overlapping_blocks_score_each_character_with_half_a_block_before_it(n_scored: int) -> None:
    """The last block ends where the text ends."""
    half = BLOCK // 2
    places = [*range(n_scored)]
    for start in [*range(half, n_scored - BLOCK, half), n_scored - BLOCK]:
        for place in range(half, BLOCK):
            places[start + place] = place
    expected = np.log1p(np.exp(np.array(places, dtype=float))).mean()
    found = nats_in_overlapping_blocks(Counter(), np.zeros(n_scored + 1, dtype=np.uint16))
    assert min(places[half:]) >= half
    assert found == pytest.approx(expected, rel=1e-6)


def test_nanogpt_is_trained_in_its_folder_and_read(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_for_nanogpt(checkout / "data" / DATASET, split(LINES))
    row = their_row(checkout, tiny=False)
    assert row["nats_per_character"] == pytest.approx(math.log(len(set(LINES))))
    assert (row["updates"], capsys.readouterr().out) == (2000, "")
    assert row["nats_in_overlapping_blocks"] == pytest.approx(row["nats_per_character"])
    assert row["train_s"] > 0
    (checkout / "train.py").write_text("raise ValueError('no such thing')")
    with pytest.raises(PeerError, match=r"train\.py: ValueError: no such thing"):
        their_row(checkout, tiny=True)


def test_a_training_of_ours_that_fails_says_why(tmp_path: Path) -> None:
    write_for_ours(tmp_path / "text", split(LINES))
    wrong = Training("wrong", 2, 0, "--lr -1")
    with pytest.raises(PeerError, match=r"train\.py: .*--lr"):
        our_row(wrong, tmp_path / "text", tmp_path / "run", tiny=True)


@long_test
def test_the_command_has_a_row_for_each_training(
    checkout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = tmp_path / "input.txt"
    text.write_text(LINES * 5)
    found = tmp_path / "found.json"
    before = sorted(checkout.rglob("*"))
    flags = [str(checkout), str(text), "--tiny", "--json", str(found)]
    monkeypatch.setattr(sys, "argv", ["nanogpt", *flags])
    nanogpt.main()
    results = json.loads(found.read_text())
    rows = results["rows"]
    assert [row["program"] for row in rows] == ["nanoGPT", *(one.name for one in TRAININGS)]
    assert all(0 < row["nats_per_character"] < math.log(100) for row in rows)
    assert rows[0]["share_of_its_time"] == 1
    assert "cpu" in results["machine"]
    assert len(capsys.readouterr().out.splitlines()) == 3 + len(rows)
    assert sorted(checkout.rglob("*")) == before


def test_a_row_of_nanogpt_is_taken_from_an_earlier_call(tmp_path: Path) -> None:
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps({"rows": [{"program": "nanoGPT", "train_s": 7.0}]}))
    assert first_row(earlier)["train_s"] == 7
    earlier.write_text(json.dumps({"rows": []}))
    for path in (earlier, tmp_path / "nowhere"):
        with pytest.raises(PeerError, match=f"--theirs {path}: .*; name a file of --json"):
            first_row(path)


def test_bad_arguments_are_one_line(
    checkout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = tmp_path / "input.txt"
    text.write_text(LINES)
    short = tmp_path / "short.txt"
    short.write_text("a line\n")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for arguments, message in (
        ((tmp_path, text), f"{tmp_path}: has no train.py; name a checkout of karpathy/nanoGPT"),
        (
            (tmp_path / "nowhere", text),
            f"{tmp_path}/nowhere: No such folder; name a checkout of karpathy/nanoGPT",
        ),
        (
            (checkout, tmp_path / "none.txt"),
            f"{tmp_path}/none.txt: No such file or directory; name a file of UTF-8 text",
        ),
        ((checkout, binary), f"{binary}: is no UTF-8; name a file of UTF-8 text"),
        ((checkout, short), f"{short}: its last tenth has no more than {BLOCK + 1} characters"),
    ):
        monkeypatch.setattr(sys, "argv", ["nanogpt", *map(str, arguments)])
        with pytest.raises(SystemExit, match="2"):
            nanogpt.main()
        assert capsys.readouterr().err.splitlines()[-1] == f"nanogpt: error: {message}"
