"""Training, evaluation and generation on the data sets of the 2019 code."""

import json
import math
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import TINY

SENTENCES = Path(__file__).parents[1] / "golden" / "data" / "text" / "lm1b"
BASE = [*TINY[2:], "--max_step", "2", "--eval_interval", "2"]
BYTES = "".join(f"<page n={i % 7}>\n\u00e4 [[link]] {'and' if i % 3 else 'or'} more\n" for i in range(90)).encode()
LETTERS = b" the small text of letters" * 100

Call = Callable[..., Any]


def row(call: Call, tmp_path: Path, *flags: object) -> dict[str, Any]:
    outcome = call("eval", "--work_dir", tmp_path / "run", "--json", tmp_path / "eval.json", *flags)
    assert outcome.status == 0, outcome.err
    return json.loads((tmp_path / "eval.json").read_text())["rows"][0]


@pytest.mark.parametrize("convention", ["txl", "original"])
@pytest.mark.parametrize(("dataset", "content"), [("enwik8", BYTES), ("text8", LETTERS)])
def test_bytes_of_a_raw_file(call: Call, tmp_path: Path, dataset: str, content: bytes, convention: str) -> None:
    folder, run = tmp_path / "text", tmp_path / "run"
    folder.mkdir()
    with zipfile.ZipFile(folder / f"{dataset}.zip", "w") as archive:
        archive.writestr(dataset, content)
    flags = ["--data", folder, "--dataset", dataset, "--data_convention", convention, "--work_dir", run, *BASE]
    refused = call("train", *flags).err
    assert f"{dataset}.zip: has {len(content):,} bytes, {dataset} has 100,000,000; bring the file again" in refused
    flags.append("--prefix")
    outcome = call("train", *flags)
    assert outcome.status == 0, outcome.err
    n_held = len(content) // 20
    assert f"{len(content):,} bytes, the last {n_held:,} for test" in outcome.out
    assert f"this is not {dataset}, which has 100,000,000" in outcome.out
    test = content[-n_held:]
    if convention == "original":
        test = test.replace(b"\n", b"") if dataset == "enwik8" else test.strip()
    found = row(call, tmp_path, "--split", "test")
    assert found["tokens"] == len(test) - 1
    assert found["bytes"] == found["tokens"]
    assert found["nats"] / found["bytes"] / math.log(2) == pytest.approx(found["bits_per_byte"])
    assert call("train", *flags, "--resume", "--max_step", 2).status == 0
    prompt = "[[link]]" if dataset == "enwik8" else "the small"
    outcome = call("generate", "--work_dir", run, "--prompt", prompt, "--length", 9)
    assert outcome.out.startswith(prompt)
    if convention == "original":  # a checkpoint of the 2019 code comes back
        assert call("convert", run, tmp_path / "model_pt", "--to", "original").status == 0
        back = ["convert", tmp_path / "model_pt", tmp_path / "back", "--data", folder, "--dataset", dataset]
        assert call(*back).status == 0
        lengths = ["--split", "test", "--tgt_len", 8, "--mem_len", 8, "--prefix"]
        again = row(call, tmp_path, *lengths, "--work_dir", tmp_path / "back")
        assert again["nats"] == pytest.approx(row(call, tmp_path, *lengths)["nats"])


def test_words_of_penn_treebank_are_in_lower_case(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text(f" The small {split} of A BANK \n of a bank \n" * 30)
    run = tmp_path / "run"
    assert call("train", "--data", folder, "--dataset", "ptb", "--work_dir", run, *BASE).status == 0
    assert "the\n" in next(run.glob("step_*/vocab.txt")).read_text()
    assert row(call, tmp_path, "--split", "test")["words"] == 30 * 9 - 1
    assert call("generate", "--work_dir", run, "--prompt", "The BANK", "--length", 3).status == 0


def test_sentences_of_one_billion_word(call: Call, tmp_path: Path) -> None:
    folder, run, parts = shutil.copytree(SENTENCES, tmp_path / "text"), tmp_path / "run", tmp_path / "parts"
    flags = ["--data", folder, "--dataset", "lm1b", "--reset", "document", *BASE[:-4], "--eval_interval", 90]
    flags += ["--cutoffs", 30, 90, "--div_val", 2, "--dropout", 0.1, "--max_step_scheduler", 90]  # two epochs
    assert call("train", *flags, "--work_dir", run, "--max_step", 90).status == 0
    assert call("train", *flags, "--work_dir", parts, "--max_step", 53).status == 0
    assert call("train", *flags, "--work_dir", parts, "--max_step", 90, "--resume").status == 0
    last = [json.loads((one / "metrics.jsonl").read_text().splitlines()[-1]) for one in (run, parts)]
    assert last[0]["valid/nll_nats"] == last[1]["valid/nll_nats"]
    lines = (folder / "test.txt").read_text().splitlines()
    found = row(call, tmp_path, "--split", "test", "--reset", "never")
    assert (found["words"], found["lines"]) == (sum(len(line.split()) for line in lines), len(lines))
    by_sentence = row(call, tmp_path, "--split", "test")
    assert by_sentence["tokens"] == found["tokens"]
    assert by_sentence["nats"] != pytest.approx(found["nats"], rel=1e-4)
    config = json.loads(next(run.glob("step_*/config.json")).read_text())["model"]
    assert config["tie_projs"] == [False, False, False]
    outcome = call("generate", "--work_dir", run, "--prompt", "zofe viru", "--length", 30, "--finish_line")
    assert outcome.status == 0
    assert "<S>" not in outcome.out
    (folder / "1b_word_vocab.txt").unlink()  # valid.txt and test.txt are enough for an evaluation
    assert row(call, tmp_path, "--split", "valid")["lines"] == 40


def test_what_a_data_set_does_not_have_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    folder = shutil.copytree(SENTENCES, tmp_path / "text")
    lm1b = ["--data", folder, "--dataset", "lm1b", "--work_dir", tmp_path / "run", *BASE]
    assert "--varlen: the sentences of lm1b are shuffled already" in refused("train", *lm1b, "--varlen")
    assert "--batch_size 400: the text of " in refused("train", *lm1b, "--batch_size", 400)
    vocabulary = folder / "1b_word_vocab.txt"
    words = vocabulary.read_text()
    vocabulary.write_text(words.replace("</S> 155\n", "\n"))
    assert f"{vocabulary}, line 2: is blank" in refused("train", *lm1b)
    vocabulary.write_text(words.replace("<UNK>", "<UNKNOWN>"))
    assert f"{vocabulary}: has no <UNK>" in refused("train", *lm1b)
    vocabulary.unlink()
    assert "load it with: python -m data_utils.download lm1b" in refused("train", *lm1b)

    raw = tmp_path / "raw"
    raw.write_bytes(BYTES)
    enwik8 = ["--dataset", "enwik8", "--prefix", "--work_dir", tmp_path / "run", *BASE, "--data"]
    assert "enwik8 is one text without documents" in refused("train", *enwik8, raw, "--reset", "document")
    assert "enwik8: no such file; put enwik8 or enwik8.zip there" in refused("train", *enwik8, tmp_path)
    raw.write_bytes(b"short")
    assert "too short for a valid split" in refused("train", *enwik8, raw)
    with zipfile.ZipFile(tmp_path / "enwik8.zip", "w") as archive:
        archive.writestr("enwik8", BYTES)
        archive.writestr("other", b"x")
    assert "enwik8.zip: holds 2 files" in refused("train", *enwik8, tmp_path)
    whole = (tmp_path / "enwik8.zip").read_bytes()
    (tmp_path / "enwik8.zip").write_bytes(whole[: len(whole) // 2])
    assert "enwik8.zip: damaged (File is not a zip file)" in refused("train", *enwik8, tmp_path)
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("32 97 300 \n 32")
    assert "has something else than numbers of bytes" in refused("train", *enwik8, folder)
    assert "--data_convention original: has no effect" in refused("train", *lm1b, "--data_convention", "original")
