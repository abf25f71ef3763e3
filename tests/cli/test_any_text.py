"""Training, evaluation and generation with any text and tokens that are not words."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import txl
from tests.cli.conftest import TINY
from txl.data_utils.corpus import Corpus, DataConfig

LINES = [f"the small text {i} has lines of words, {i % 5} and more \u00e4\n" for i in range(120)]
BASE = [*TINY[2:], "--max_step", "2", "--eval_interval", "2"]

Call = Callable[..., Any]


def write_shards(folder: Path) -> Path:
    folder.mkdir()
    for i in range(3):
        documents = ["".join(LINES[j : j + 4]) for j in range(40 * i, 40 * i + 40, 4)]
        (folder / f"{i}.txt.gz").write_bytes(gzip.compress("\n".join(documents).encode()))
    return folder


def row(call: Call, tmp_path: Path, *flags: object) -> dict[str, Any]:
    outcome = call("eval", "--work_dir", tmp_path / "run", "--json", tmp_path / "eval.json", *flags)
    assert outcome.status == 0, outcome.err
    return {**json.loads((tmp_path / "eval.json").read_text())["rows"][0], "out": outcome.out}


@pytest.mark.parametrize("dataset", ["text", "characters", "bytes", "bpe"])
def test_a_folder_of_shards_is_trained_on_evaluated_and_continued(call: Call, tmp_path: Path, dataset: str) -> None:
    flags = ["--dataset", dataset, "--held_out", "0.1", "--split_seed", "3", "--documents", "blank"]
    if dataset == "bpe":
        pytest.importorskip("tokenizers")
        flags += ["--vocab_size", "280"]
    shards = write_shards(tmp_path / "shards")
    outcome = call("train", "--data", shards, "--work_dir", tmp_path / "run", *BASE, *flags, "--reset", "document")
    assert outcome.status == 0, outcome.err
    assert "| documents by blank (as asked): " in outcome.out
    assert "valid and test: 0.1 each, seed 3" in outcome.out
    found = row(call, tmp_path, "--split", "valid", "--reset", "document")
    assert "| documents by blank (as asked): " in found["out"]
    settings = {"documents": "blank", "held_out": 0.1, "split_seed": 3}
    text = b"".join(Corpus(DataConfig(data=str(shards), dataset="bytes", **settings)).documents("valid")).decode()
    n_first = found["characters"] - len(text)  # the first token is not predicted
    assert -12 < n_first < 0
    assert found["words"] + found["lines"] in {len(text.split()) + text.count("\n") - i for i in (0, 1)}
    outcome = call("generate", "--work_dir", tmp_path / "run", "--prompt", "the small", "--length", 9)
    assert outcome.out.startswith("the small")
    lm = txl.load(tmp_path / "run")
    if dataset == "text":
        return
    score = lm.score("the small \u00e4\n")
    text_row = row(call, tmp_path, "--text", write(tmp_path / "my.txt", "the small \u00e4\n"))
    assert score.total_nats == pytest.approx(text_row["nats"])
    assert (text_row["characters"], text_row["bytes"], text_row["words"]) == (12, 13, 3)
    expected = "the\n" + lm.generate("the\n", length=20, seed=1) + "\n"
    flags_of_text = ["--work_dir", tmp_path / "run", "--length", 20, "--seed", 1]
    assert call("generate", "--prompt", "the\n", *flags_of_text).out == expected
    assert call("generate", "--prompt_file", write(tmp_path / "p.txt", "the\n\n"), *flags_of_text).out == expected
    assert lm.loglikelihood("\n\n", "the") == pytest.approx(-lm.score("the", "\n\n").total_nats)
    assert lm.loglikelihood("\n\n", "the") != pytest.approx(lm.loglikelihood("", "the"))
    call("train", "--data", shards, "--work_dir", tmp_path / "run", *BASE, *flags, "--resume", "--max_step", 2)
    assert call("generate", "--work_dir", tmp_path / "run", "--finish_line", "--length", 5).status == 0


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_files_fields_and_a_tokenizer_are_chosen_by_flags(call: Call, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    for i in range(2):
        rows = [json.dumps({"body": line}) for line in LINES[60 * i : 60 * i + 60]]
        write(tmp_path / f"{i}.jsonl", "\n".join(rows))
    theirs = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "the": 1, "text": 2}, unk_token="[UNK]"))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    theirs.save(str(tmp_path / "tokenizer.json"))
    where = ["--data", tmp_path / "0.jsonl", tmp_path / "1.jsonl", "--work_dir", tmp_path / "run"]
    flags = ["--dataset", "bpe", "--text_field", "body", "--tokenizer", tmp_path / "tokenizer.json"]
    outcome = call("train", *where, *BASE, *flags)
    assert outcome.status == 0, outcome.err
    (tmp_path / "tokenizer.json").rename(tmp_path / "elsewhere.json")
    assert call("generate", "--work_dir", tmp_path / "run", "--length", 3).status == 0


def test_streams_of_ids_are_trained_on_and_continued(call: Call, tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        np.save(tmp_path / f"{split}.npy", np.arange(300) % 7)
        np.save(tmp_path / f"{split}.documents.npy", np.arange(0, 300, 50))
    flags = ["--data", tmp_path, "--work_dir", tmp_path / "run", "--dataset", "ids", "--reset", "document"]
    outcome = call("train", *BASE, *flags)
    assert outcome.status == 0, outcome.err
    found = row(call, tmp_path, "--split", "test")
    assert found["word_perplexity"] == pytest.approx(found["perplexity"])
    assert found["bits_per_byte"] is None
    out = call("generate", "--work_dir", tmp_path / "run", "--prompt", "1 2 3 ", "--length", 4).out
    assert len([int(word) for word in out.split()]) == 7
    assert "'x': no number from 0 to 6" in call("generate", "--work_dir", tmp_path / "run", "--prompt", "x").err


def test_cutoffs_are_chosen_and_said(call: Call, tmp_path: Path) -> None:
    for split in ("train", "valid"):
        words = [f"w{i % (1 + i // 3)}" for i in range(3000)]
        write(tmp_path / f"{split}.txt", " ".join(words) + "\n")
    flags = ["--data", tmp_path, "--work_dir", tmp_path / "run", "--dataset", "text", "--cutoffs", "auto"]
    outcome = call("train", *BASE, *flags)
    assert outcome.status == 0, outcome.err
    assert "| --cutoffs auto: " in outcome.out
    record = next((tmp_path / "run").glob("step_*")) / "config.json"
    assert json.loads(record.read_text())["model"]["adaptive"]
    assert call("train", *BASE, *flags, "--resume").status == 0
    assert "give ranks, or auto alone" in call("train", *BASE, *flags, "7", "--overwrite").err


def test_another_vocabulary_is_refused(call: Call, tmp_path: Path, run_folder: Path, text: Path) -> None:
    assert "--dataset bytes: the model's vocabulary is another" in (
        call("eval", "--work_dir", run_folder, "--data", text, "--dataset", "bytes").err
    )
