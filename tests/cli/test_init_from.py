"""train.py --init_from: a new training from the weights of a trained model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import txl
from tests.cli.conftest import Trained
from tests.convert.pickled import save_original
from tests.golden.test_model import Golden
from txl.convert import to_kimiyoung

Call = Callable[..., Any]
BARELY = "--lr 1e-12 --max_step 1 --eval_interval 1 --batch_size 4 --sample_length 0".split()
"""One update that changes next to nothing."""


def valid_loss(run: Path) -> float:
    record = json.loads(next(run.glob("step_00000001/config.json")).read_text())
    return record["valid_nats_per_token"]


def test_training_starts_where_the_model_was(call: Call, trained: Trained, write_text: Any, tmp_path: Path) -> None:
    """On another text, in which half of the words are new, with its vocabulary and its lengths."""
    other = write_text(tmp_path / "other", words=["bab", "new"] * 30, seed=3)
    run = tmp_path / "tuned"
    flags = ["--init_from", trained.run, "--data", other, "--dataset", "text", "--work_dir", run, *BARELY]
    assert call("train", *flags).status == 0
    assert (run / "step_00000001/vocab.txt").read_text() == next(trained.run.glob("step_*/vocab.txt")).read_text()
    assert call("eval", "--work_dir", run, "--split", "valid", "--json", tmp_path / "a.json").status == 0
    (other / "train.txt").unlink()  # eval.py takes no text for that of a training which it was not
    found = ["--work_dir", trained.run, "--data", other, "--split", "valid", "--json", tmp_path / "b.json"]
    assert call("eval", *found).status == 0
    tuned, before = (json.loads((tmp_path / name).read_text())["rows"][0] for name in ("a.json", "b.json"))
    assert tuned["nats_per_token"] == pytest.approx(before["nats_per_token"], rel=1e-6)
    assert (tuned["tgt_len"], tuned["mem_len"], tuned["unknown"]) == (8, 8, before["unknown"])
    assert tuned["unknown"] > 40


def test_such_a_run_is_resumed(call: Call, trained: Trained, write_text: Any, tmp_path: Path) -> None:
    """With the vocabulary that it started with, which is not that of its text."""
    other, run = write_text(tmp_path / "other", words=["bab", "new"] * 30), tmp_path / "tuned"
    flags = ["--init_from", trained.run, "--data", other, "--dataset", "text", "--work_dir", run, "--resume"]
    assert call("train", *flags, *BARELY).status == 0
    outcome = call("train", *flags, *BARELY, "--max_step", 2, "--max_step_scheduler", 2)
    assert outcome.status == 0, outcome.err
    assert json.loads((run / "step_00000002/config.json").read_text())["train"]["init_from"] == str(trained.run)


def test_a_model_of_the_2019_code_is_tuned(call: Call, write_text: Any, tmp_path: Path) -> None:
    golden = Golden("adaptive_div2_noprojtie")
    model, _ = golden.model()
    save_original(tmp_path / "model.pt", to_kimiyoung(model), golden.config["model"])
    words = ["<eos>", "<unk>", *(f"w{i}" for i in range(model.config.n_token - 2))]
    flags = ["--init_from", tmp_path / "model.pt", "--data", write_text(tmp_path / "t", words=words[2:30])]
    flags += ["--dataset", "text", "--work_dir", tmp_path / "run", *BARELY]
    lost = call("train", *flags, "--tgt_len", 4)
    assert (lost.status, len(lost.complaints)) == (2, 1)
    assert "model.pt: holds no vocabulary; put vocab.txt" in lost.complaints[0]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    other = call("train", *flags, "--dataset", "lm1b").complaints[0]
    assert "its words are no vocabulary of --dataset lm1b (has no <S>); give the --dataset of its training" in other
    assert call("train", *flags, "--tgt_len", 4).status == 0
    weights = load_file(tmp_path / "run/step_00000001/model.safetensors")
    torch.testing.assert_close(weights["layers.0.attn.q_net.weight"], model.layers[0].attn.q_net.weight.float())
    assert txl.load(tmp_path / "run").tokenizer.words == words
