"""A tokenizer.json may hold patterns that take for ever and rules that multiply text: it is bounded, in one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import ROOT
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.errors import DataError
from txl.data_utils.pretrained import Pretrained
from txl.data_utils.subwords import Subwords

tokenizers = pytest.importorskip("tokenizers")


def written(folder: Path, text: str, **parts: object) -> DataConfig:
    """A text, and a byte-level BPE with these parts of its tokenizer.json in place of its own."""
    plain = tokenizers.Tokenizer(tokenizers.models.BPE())
    plain.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    plain.train_from_iterator(
        [text], tokenizers.trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False)
    )
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(plain.to_str()) | parts))
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text(text)
    return DataConfig(data=str(folder), dataset="bpe", tokenizer=str(folder / "tokenizer.json"))


def split(regex: str) -> dict[str, object]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def multiplying(times: int) -> dict[str, object]:
    one = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 64}
    return {"type": "Sequence", "normalizers": [one] * times}


HOSTILE: dict[str, tuple[str, dict[str, object], str]] = {
    "rules that multiply a text": (
        "a" * 100 + "\n",
        {"normalizer": multiplying(2)},
        r"makes \d+ tokens of \d+ bytes",
    ),
    "a pattern that explodes": (
        "a" * 5000 + "\n",
        {"pre_tokenizer": split("(a|aa)+[^a\\n]")},
        ".*retry-limit-in-match over",
    ),
    "ids without end": (
        "x\n",
        {"model": {"type": "BPE", "vocab": {"x": 2**32 - 1}, "merges": []}, "added_tokens": []},
        "its 1 tokens have ids up to 4294967295",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_tokenizer_asks_for_is_bounded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    text, parts, why = HOSTILE[name]
    config = written(tmp_path, text, **parts)
    capfd.readouterr()
    with pytest.raises(DataError, match=rf"tokenizer\.json: {why}; give a") as refused:
        Corpus(config).split("train")
    assert "\n" not in str(refused.value)
    assert capfd.readouterr().err == ""


def test_a_tokenizer_whose_text_does_not_end_is_refused(tmp_path: Path) -> None:
    one = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 1000}
    config = written(tmp_path, "e\n", decoder={"type": "Sequence", "decoders": [one, one]})
    tokenizer = Subwords.read(Path(config.tokenizer or ""))
    with pytest.raises(DataError, match=r"tokenizer\.json: makes 1000000 characters of 1 tokens"):
        tokenizer.text_of([tokenizer.index["e"]])


def test_a_file_that_is_too_large_is_refused_by_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything reads it: the library took minutes."""
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(109_000_000)
    monkeypatch.setattr(Subwords, "_names", lambda _: pytest.fail("read"))
    for read in (lambda: Subwords.read(path), lambda: Pretrained.of_folder(tmp_path, 9)):
        with pytest.raises(DataError, match=r"tokenizer\.json: is larger than 64 MiB"):
            read()
    with pytest.raises(ValueError, match="larger than 64 MiB"):
        Subwords(path.read_text())


def test_subwords_are_made_where_standard_error_is_closed() -> None:
    """As in a service: what the library prints is dropped there too."""
    code = "from txl.data_utils.subwords import Subwords; Subwords.trained([b'a text'], 257)"
    command = ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, code]
    subprocess.run(command, cwd=ROOT, check=True)
