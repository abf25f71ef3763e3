"""The corpus that every Python carries."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import long_test
from txl.data_utils.config import DataConfig
from txl.data_utils.corpus import Corpus
from txl.data_utils.errors import DataError
from txl.data_utils.pydoc import write_pydoc_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Writing it imports nothing."""
    folder, before = tmp_path_factory.mktemp("pydoc"), set(sys.modules)
    write_pydoc_corpus(folder)
    assert not {
        name
        for name in set(sys.modules) - before
        if name.startswith(("pydoc_data", "tkinter", "turtle"))
    }
    return {
        split: (folder / f"{split}.txt").read_text().splitlines()
        for split in ("train", "valid", "test")
    }


def words(lines: list[str]) -> list[str]:
    return [word for line in lines for word in line.split()]


@long_test
def test_it_is_large_enough_to_learn_from_and_most_words_are_known(
    corpus: dict[str, list[str]],
) -> None:
    counts = Counter(words(corpus["train"]))
    assert 200_000 < counts.total() < 500_000
    assert min(counts.values()) >= 3
    for split, lines in corpus.items():
        text = words(lines)
        assert text.count("<unk>") < 0.1 * len(text)
        assert split == "train" or (
            5_000 < len(text) < 60_000 and all(word in counts for word in text)
        )


def test_a_python_without_sources_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds only 0 words of documentation.*--dataset text"):
        write_pydoc_corpus(tmp_path / "out", stdlib=tmp_path)
    assert not (tmp_path / "out").exists()


def test_it_is_not_written_where_another_data_set_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        DataError, match=r"^--data data/wikitext-103: .*; name a folder .* --data data/pydoc$"
    ):
        Corpus(DataConfig(dataset="pydoc"))
    assert list(tmp_path.iterdir()) == []
