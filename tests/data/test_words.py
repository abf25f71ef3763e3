"""Ids of words, in parts and by several processes, are those of a plain loop."""

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl.data_utils import documents, file_formats
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.raw_text import DataError
from txl.data_utils.tokenizers import words
from txl.data_utils.tokenizers.words import Vocab

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


def plain(text: str) -> list[str]:
    """The words of each line, and `<eos>`."""
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", text)
    return [word for line in lines for word in [*line.split(), "<eos>"]]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (documents, file_formats):
        monkeypatch.setattr(module, "LONGEST", 64)
    monkeypatch.setattr(file_formats, "_BLOCK", 50)
    monkeypatch.setattr(words, "_IN_CACHE", 16)
    monkeypatch.setattr(Vocab, "batch_bytes", 128)


@settings(max_examples=20)
@given(TEXT)
def test_decode_of_encode_gives_the_words_of_any_text(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("text")
    (folder / "train.txt").write_bytes(f"{text}\n".encode())
    text = text.removeprefix("\ufeff")
    if not text.split():
        return
    corpus = Corpus(DataConfig(data=str(folder), dataset="wt103"))
    assert corpus.vocab.decode(corpus.split("train")) == plain(f"{text}\n")
    assert corpus.vocab.decode(corpus.vocab.encode(f"{text}\n").ids) == plain(f"{text}\n")


@pytest.mark.parametrize("n_process", [1, 2])
@pytest.mark.usefixtures("small_parts")
def test_parts_and_processes_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_process: int) -> None:
    monkeypatch.setattr(words, "_N_PROCESS", n_process)
    monkeypatch.setattr(words.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    text = (
        "".join(f"w{i % 13} \u00e4{i % 7} <eos>\r\n" + "long " * (i % 40) + "\n" for i in range(60))
        + "x" * 500
        + " last"
    )
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").write_bytes(text.encode())
    corpus = Corpus(DataConfig(data=str(tmp_path), dataset="text"))
    counts = Counter(word for word in text.split() if word != "<eos>")
    assert corpus.vocab.words == ["<eos>", "<unk>", *(word for word, _ in counts.most_common())]
    assert [corpus.vocab.decode(corpus.split(split)) for split in ("train", "valid")] == [plain(text)] * 2
    assert corpus.sizes("valid")["bytes"].sum() == len(f"{text}\n".encode())


@pytest.mark.usefixtures("small_parts")
def test_what_a_process_cannot_read_is_named_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_N_PROCESS", 2)
    for bad, said in {b"caf\xe9\n": "not UTF-8", b"a\0b\n": "NUL"}.items():
        (tmp_path / "train.txt").write_bytes(b"fine words\n" * 40 + bad + b"fine words\n" * 40)
        (tmp_path / "valid.txt").write_bytes(b"fine words\n")
        with pytest.raises(DataError, match=rf"train\.txt, line 41: .*{said}"):
            Corpus(DataConfig(data=str(tmp_path), dataset="text"))
