"""The LSTM beside a study reads what train.py reads, and is scored as eval.py scores."""

import json
import sys
from pathlib import Path

import pytest
import torch

from lab.benchmarks import anchor_lstm
from lab.benchmarks.anchor_lstm import arguments, nats_of, new_model, segments_of, train
from txl.data_utils.segments import SegmentStream, as_tensor
from txl.training.config import TrainConfig

N_WORD = 40
TINY = "--max_size 12 --cutoffs 4 8 --d_model 16 --d_hidden 8 --batch_size 2 --tgt_len 5"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Words from a to m: counting up, so that they can be learnt."""
    for split, n_line in (("train", 60), ("valid", 6), ("test", 8)):
        lines = [" ".join(chr(97 + (i + j) % 13) for j in range(9)) for i in range(n_line)]
        (tmp_path / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def run(text: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> dict:
    file = text / "found.json"
    argv = ["anchor_lstm", "--data", str(text), *TINY.split(), "--json", str(file), *flags]
    monkeypatch.setattr(sys, "argv", argv)
    anchor_lstm.main()
    return json.loads(file.read_text())


def test_a_row_for_each_seed_with_the_best_rate(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = "--max_step 90 --lrs 0.0001 0.03 0.1 --search_step 30 --seeds 1 2".split()
    found = run(text, monkeypatch, *flags)
    tried = [row["valid"]["nats_per_token"] for row in found["search"]]
    assert tried == sorted(tried)
    assert len(tried) == 3
    assert [row["seed"] for row in found["rows"]] == [1, 2]
    for row in found["rows"]:
        assert row["lr"] == found["search"][0]["lr"] > 0.0001
        assert row["test"]["tokens"] == 8 * 10 - 1  # an <eos> a line; all but the first token
        assert row["test"]["perplexity"] < 8  # 13 words, each as frequent as the others
    assert found["rows"][0]["test"] != found["rows"][1]["test"]
    assert found["parameters"] > found["parameters_in_layers"] > 0
    assert found["machine"]["command"]


def test_segments_are_those_of_train_py_epoch_after_epoch() -> None:
    ids = torch.arange(2 * 12).numpy()
    stream = SegmentStream(ids, batch_size=2, tgt_len=5)
    found = [*segments_of(stream, 7)]
    assert [begins for *_, begins in found] == [True, False, False] * 2 + [True]
    again = [*stream.epoch(1), *stream.epoch(2), *stream.epoch(3)]
    for (input_BT, target_BT, _), theirs in zip(found, again, strict=False):
        assert torch.equal(input_BT, theirs.input_BT)
        assert torch.equal(target_BT, theirs.target_BT)


def test_a_split_is_read_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments().parse_args(["--data", "none", *TINY.split()])
    model = new_model(args, N_WORD, seed=1).double()
    ids = torch.randint(N_WORD, (50,)).numpy()
    model.eval()
    token_1S = as_tensor(ids)[None]
    with torch.no_grad():
        expected = model.nll(token_1S[:, :-1], token_1S[:, 1:], None)[0].mean()
    for at_once in (1024, 7, 1):
        monkeypatch.setattr(anchor_lstm, "AT_ONCE", at_once)
        found = nats_of(model, ids)
        assert found["tokens"] == 49
        assert found["nats_per_token"] == pytest.approx(float(expected), abs=1e-12)
    several = nats_of(model, ids, 3)  # of one token each, of which one is warmed up with
    assert several["tokens"] == 49
    assert several["nats_per_token"] == pytest.approx(float(expected), abs=0.01)


def test_the_state_goes_on_in_an_epoch_and_the_gradient_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args = arguments().parse_args(["--data", "none", *TINY.split()])
    model = new_model(args, N_WORD, seed=1)
    seen = []
    plain = model.nll

    def noted(input_BT: torch.Tensor, target_BT: torch.Tensor, state: anchor_lstm.State):
        nll_BT, after = plain(input_BT, target_BT, state)
        seen.append((state, after))
        return nll_BT, after

    monkeypatch.setattr(model, "nll", noted)
    stream = SegmentStream(torch.randint(N_WORD, (24,)).numpy(), batch_size=2, tgt_len=5)
    read = train(model, stream, args, lr=0.001, max_step=5)
    assert read["tokens"] == 2 * (5 + 5 + 1 + 5 + 5)
    assert [state is None for state, _ in seen] == [True, False, False, True, False]
    for i in (1, 2, 4):
        for before, after in zip(seen[i][0], seen[i - 1][1], strict=True):
            assert torch.equal(before, after)
            assert not before.requires_grad


def test_defaults_are_those_of_the_study() -> None:
    args = arguments().parse_args(["--data", "none"])
    n_all, n_layers = new_model(args, 20002, seed=1).n_weights()
    assert abs(n_all - 5_924_860) < 50_000  # 4 layers of 256, 8 heads, 683 hidden units
    assert abs(n_layers - 3_419_992) < 50_000
    assert args.clip == TrainConfig().clip
