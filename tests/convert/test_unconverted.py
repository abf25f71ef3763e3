"""What the programs make of a checkpoint of another program is what they make of the run that it is converted into."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txl
from tests.convert.pickled import save_nvidia, save_original
from tests.golden.test_model import Golden
from txl.convert import to_kimiyoung

Call = Callable[..., Any]
HF = Path(__file__).parents[1] / "golden" / "hf" / "hf_div2"
WORDS = ["<eos>", "<unk>", *(f"w{i}" for i in range(198))]
OF_EACH = {"original": "original", "nvidia": "nvidia", "nvidia in 16 bits": "txl", "hf": "huggingface"}
"""A convention to evaluate each source with."""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for split in ("valid", "test"):
        (folder / f"{split}.txt").write_text(" w3 w4 w5 \n w6 <unk> w8 \n" * 20)
    return folder


@pytest.fixture
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint of this kind, and its words."""
    golden, folder = Golden("adaptive_div2"), tmp_path / "source"
    model, settings = golden.model()[0], golden.config["model"]
    if request.param == "hf":
        shutil.copytree(HF, folder)
    else:
        folder.mkdir()
    if request.param == "original":
        save_original(folder / "model.pt", to_kimiyoung(model), settings)
    elif request.param != "hf":
        model = model.half() if "16" in request.param else model.float()
        save_nvidia(folder / "checkpoint_best.pt", model, settings, WORDS)
        return folder / "checkpoint_best.pt"
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    return folder


@pytest.mark.parametrize(("source", "convention"), OF_EACH.items(), ids=[*OF_EACH], indirect=["source"])
def test_figures_and_texts_are_those_after_converting(
    source: Path, convention: str, text: Path, tmp_path: Path, call: Call
) -> None:
    assert call("convert", source, tmp_path / "run", "--data", text, "--dataset", "text").status == 0
    how = ["--data", text, "--dataset", "text", "--convention", convention, "--batch_size", 2, "--mem_len", 3, 8]
    before = {path: path.stat().st_mtime_ns for path in source.parent.rglob("*")}
    rows, said = [], []
    for folder in (tmp_path / "run", source):
        outcome = call("eval", "--work_dir", folder, *how, "--json", tmp_path / "result.json")
        assert (outcome.status, outcome.complaints) == (0, [])
        rows.append([row["nats"] for row in json.loads((tmp_path / "result.json").read_text())["rows"]])
        known = ["--dataset", "text"] if folder == source else []
        outcome = call("generate", "--work_dir", folder, *known, "--length", 20, "--prompt", "w3 w4", "--raw")
        assert (outcome.status, outcome.complaints) == (0, [])
        said.append(outcome.out)
    assert len(rows[0]) == 4
    assert rows[0] == rows[1]
    assert said[0] == said[1]
    assert all(path.stat().st_mtime_ns == was for path, was in before.items() if source in (path, path.parent))
    assert txl.load(source, dataset="text").score("w3 w4").nats == txl.load(tmp_path / "run").score("w3 w4").nats


@pytest.mark.parametrize("source", ["hf"], indirect=True)
def test_the_words_may_lie_elsewhere_and_a_training_may_start_there(
    source: Path, text: Path, tmp_path: Path, call: Call
) -> None:
    words = shutil.move(source / "vocab.txt", tmp_path / "words.txt")
    shutil.copy(text / "valid.txt", text / "train.txt")
    (tmp_path / "my.txt").write_text("w3 w4\n")
    asked = ["eval", "--work_dir", source, "--text", tmp_path / "my.txt"]
    assert "holds no vocabulary; put vocab.txt" in call(*asked).complaints[0]
    assert call(*asked, "--vocabulary", words).status == 0
    flags = ["--data", text, "--dataset", "text", "--work_dir", tmp_path / "run", "--max_step", 1, "--batch_size", 2]
    flags += ["--tgt_len", 4, "--sample_length", 0, "--vocabulary", words]
    assert "--vocabulary has no effect without --init_from" in call("train", *flags).complaints[0]
    assert call("train", *flags, "--init_from", source).status == 0
    assert txl.load(tmp_path / "run").tokenizer.words == WORDS


@pytest.mark.parametrize("source", ["hf"], indirect=True)
def test_context_lengths_of_a_source_and_of_its_run_are_the_same(
    source: Path, text: Path, tmp_path: Path, call: Call
) -> None:
    assert call("convert", source, tmp_path / "run", "--data", text, "--dataset", "text").status == 0
    how = "--recl_step 10 --recl_longest 20 --recl_every 5 --split test --dataset text".split()
    flags = [*how, "--data", text, "--json", tmp_path / "recl.json"]
    assert call("eval", "--recl", source, tmp_path / "run", *flags).status == 0
    one, other = json.loads((tmp_path / "recl.json").read_text())["recl"]["models"]
    assert one["perplexity"] == other["perplexity"]
