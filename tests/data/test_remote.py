"""Text that is elsewhere is copied once, and read as if it had been here."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from txl.config import UsageError
from txl.data_utils import remote
from txl.data_utils.config import DataConfig
from txl.data_utils.corpus import Corpus
from txl.data_utils.raw_text import DataError
from txl.language.texts import data_settings

TEXT = {
    "corpus/train/a.txt": "one two\n",
    "corpus/train/b.jsonl": '{"text": "three"}\n',
    "corpus/valid.txt": "two\n",
    "corpus/test.txt": "one\n",
    "corpus/readme.pdf": "no text",
}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[fsspec.AbstractFileSystem]:
    """fsspec's file system in the memory, with a text."""
    monkeypatch.chdir(tmp_path)
    system = fsspec.filesystem("memory")
    for name, content in TEXT.items():
        system.pipe(f"/{name}", content.encode())
    yield system
    system.rm("/corpus", recursive=True)


def test_a_folder_is_read_as_its_copy_would_be(elsewhere: fsspec.AbstractFileSystem) -> None:
    corpus = Corpus(DataConfig(data="memory://corpus", dataset="text", documents="row"))
    assert corpus.vocab.decode(corpus.split("train")) == ["one", "two", "<eos>", "three", "<eos>"]
    assert corpus.vocab.decode(corpus.split("test")) == ["one", "<eos>"]
    assert corpus.config.data == "memory://corpus"  # what a checkpoint says
    copied = {str(path.relative_to("data/memory")) for path in Path("data/memory").rglob("*.*") if path.is_file()}
    assert {name for name in copied if "txl-cache" not in name} == set(TEXT) - {"corpus/readme.pdf"}


def test_what_is_here_is_not_asked_for_again(elsewhere: fsspec.AbstractFileSystem) -> None:
    config = DataConfig(data=("memory://corpus/valid.txt", "memory://corpus/train/*.txt"), dataset="text")
    here = remote.with_copies(config)
    assert here.data == ("data/memory/corpus/valid.txt", "data/memory/corpus/train/*.txt")
    assert sorted(p.name for p in Path("data").rglob("*.*")) == ["a.txt", "valid.txt"]
    elsewhere.pipe("/corpus/valid.txt", b"another")
    remote.with_copies(config)
    assert Path("data/memory/corpus/valid.txt").read_text() == "two\n"


def test_a_run_finds_its_text_again_where_it_has_no_copy(elsewhere: fsspec.AbstractFileSystem) -> None:
    record = {"data": {"data": "memory://corpus", "dataset": "text", "documents": "row"}}
    config = DataConfig(**data_settings(record, Path("run"), ()))
    assert len(Corpus(config, needed=("test",)).split("test")) == 2
    with pytest.raises(UsageError, match=r"^corpus: the text of the training is not there"):
        data_settings({"data": {"data": "corpus", "dataset": "text"}}, Path("run"), ())


CANNOT = {
    "memory://nowhere": "no files of text there",
    "memory://corpus/../x": "goes up",
    "memory://corpus/valid.txt": "no answer",
    "strange://a/b.txt": "Protocol not known: strange",
    "http://127.0.0.1:9/a.txt": "cannot be loaded",
}


def test_what_cannot_be_copied_leaves_nothing(
    elsewhere: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(self: object, source: str, target: str, **_: object) -> None:
        Path(target).write_bytes(b"on")
        raise TimeoutError("no answer")

    monkeypatch.setattr(type(elsewhere), "get_file", cut)
    for name, why in CANNOT.items():
        with pytest.raises(DataError, match=why) as refused:
            Corpus(DataConfig(data=name, dataset="text"))
        assert "\n" not in str(refused.value)
        assert [path for path in Path("data").rglob("*") if path.is_file()] == []
