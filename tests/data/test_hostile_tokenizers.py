"""A tokenizer.json may hold patterns that take for ever and rules that multiply text: it is bounded, in one line."""

import json
from pathlib import Path

import pytest

from tests.forks import LIMIT_S
from txl.data_utils import processes, subwords
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.pretrained import Pretrained
from txl.data_utils.raw_text import DataError
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


def multiplying(times: int) -> dict[str, object]:
    one = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 64}
    return {"type": "Sequence", "normalizers": [one] * times}


def test_a_rule_that_multiplies_the_text_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the memory is full: at so many tokens a byte, or where the process may not grow."""
    monkeypatch.setattr(processes, "MEMORY", 1 << 28)
    monkeypatch.setattr(subwords, "_SECONDS", 10**6)  # however slow the machine is, memory ends it
    for times in (2, 8):
        config = written(tmp_path, "a" * 100 + "\n", normalizer=multiplying(times))
        with pytest.raises(
            DataError, match=r"^tokenizer\.json: (makes \d+ tokens of|takes more than 256 MiB)"
        ):
            Corpus(config).split("train")


def test_a_pattern_that_explodes_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subwords, "_SECONDS", 1)
    pattern = {
        "type": "Split",
        "pattern": {"Regex": "(a|aa)+[^a\\n]"},
        "behavior": "Isolated",
        "invert": False,
    }
    config = written(tmp_path, "a" * 5000 + "\n", pre_tokenizer=pattern)
    with pytest.raises(
        DataError, match=r"^tokenizer\.json: .*; give another, or another text$"
    ) as refused:
        Corpus(config).split("train")
    assert "\n" not in str(refused.value)


def test_each_process_asks_a_process_of_its_own_and_it_ends_with_its_owner() -> None:
    asked = processes.Apart(lambda: [3, 1, 2], "a list")
    assert asked.call("index", 1, seconds=LIMIT_S) == 1
    first = asked._pid
    asked._owner = 0  # as in a fork of this process
    assert asked.call("count", 3, seconds=LIMIT_S) == 1
    assert asked._pid != first
    with pytest.raises(ValueError, match="is not in list"):
        asked.call("index", 9, seconds=LIMIT_S)


def test_a_file_that_is_too_large_is_refused_by_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything reads it: the library took minutes."""
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(109_000_000)
    monkeypatch.setattr(subwords, "encoder_of", lambda *_, **__: pytest.fail("read"))
    for read in (lambda: Subwords.read(path), lambda: Pretrained.of_folder(tmp_path, 9)):
        with pytest.raises(DataError, match=r"tokenizer\.json: is larger than 64 MiB"):
            read()
    with pytest.raises(ValueError, match="larger than 64 MiB"):
        Subwords(path.read_text())
