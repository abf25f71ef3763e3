"""Text that is elsewhere is copied once, and read as if it had been here."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from txl.config import UsageError
from txl.data_utils import remote
from txl.data_utils.config import DataConfig
from txl.data_utils.corpus import Corpus
from txl.data_utils.errors import DataError
from txl.language.texts import data_settings

TEXT = {
    "corpus/train/a.txt": "one two\n",
    "corpus/train/b.jsonl": '{"text": "three"}\n',
    "corpus/valid.txt": "two\n",
    "corpus/test.txt": "one\n",
    "corpus/readme.pdf": "no text",
}


@pytest.fixture
def elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[fsspec.AbstractFileSystem]:
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
    copied = {
        str(path.relative_to("data/memory"))
        for path in Path("data/memory").rglob("*.*")
        if path.is_file()
    }
    assert {name for name in copied if "txl-" not in name} == set(TEXT) - {"corpus/readme.pdf"}


def test_what_is_here_is_not_asked_for_again(elsewhere: fsspec.AbstractFileSystem) -> None:
    config = DataConfig(
        data=("memory://corpus/valid.txt", "memory://corpus/train/*.txt"), dataset="text"
    )
    here = remote.with_copies(config)
    assert here.data == ("data/memory/corpus/valid.txt", "data/memory/corpus/train/*.txt")
    assert sorted(p.name for p in Path("data").rglob("*.txt")) == ["a.txt", "valid.txt"]
    elsewhere.pipe("/corpus/valid.txt", b"another")
    remote.with_copies(config)
    assert Path("data/memory/corpus/valid.txt").read_text() == "two\n"


def test_a_run_finds_its_text_again_where_it_has_no_copy(
    elsewhere: fsspec.AbstractFileSystem,
) -> None:
    record = {"data": {"data": "memory://corpus", "dataset": "text", "documents": "row"}}
    config = DataConfig(**data_settings(record, Path("run"), ()))
    assert len(Corpus(config, needed=("test",)).split("test")) == 2
    with pytest.raises(UsageError, match=r"^corpus: the text of the training is not there"):
        data_settings({"data": {"data": "corpus", "dataset": "text"}}, Path("run"), ())


@pytest.mark.parametrize(
    "name", ["memory://corpus", "memory://corpus/valid.txt", "memory://corpus/*/*.txt"]
)
def test_what_was_copied_whole_needs_no_network(
    elsewhere: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise OSError("no network")

    config = DataConfig(data=name, dataset="text")
    here, kind = remote.with_copies(config), type(elsewhere)
    with monkeypatch.context() as patched:
        for asks in ("find", "glob", "get_file", "info"):
            patched.setattr(kind, asks, no_network)
        assert remote.with_copies(config) == here
        gone, *others = sorted(Path("data").rglob("*.txt"))
        gone.unlink()
        for other in others:
            other.write_text("mine\n")
        with pytest.raises(DataError, match=r"cannot be copied \(no network\)"):
            remote.with_copies(config)
    assert remote.with_copies(config) == here
    assert gone.is_file()
    assert {other.read_text() for other in others} <= {"mine\n"}


PLACES = {
    "https://h/b/a.jsonl": "data/https/h/b/a.jsonl",
    "https://h/a.jsonl?download=true": "data/https/h/a_download_true.jsonl",
    "https://h/a.txt.gz?raw=1#top": "data/https/h/a_raw_1.txt.gz",
    "https://h/get?file=a.jsonl": "data/https/h/get_file_a_d2d59a1b.jsonl",
    "https://h/get.php?file=a.jsonl.gz": "data/https/h/get.php_file_a_89f57385.jsonl.gz",
    "https://h/a.txt?x=../b&y=1": "data/https/h/a_x_.._b_y_1_25f6f1b2.txt",
    "https://h/a.txt?x=../b/y=1": "data/https/h/a_x_.._b_y_1_a0da9441.txt",
    "http://[::1]:80/a::b.jsonl": "data/http/[::1]:80/a::b.jsonl",
    "ftp://[::1]/a.jsonl": "data/ftp/[::1]/a.jsonl",
    "tar://b/a.jsonl::x.tar": "data/tar/x.tar/b/a.jsonl",
    "zip://a[1].txt::ftp://[::1]/x[1].zip": "data/zip/ftp_1_x_1_.zip_763d464b/a[1].txt",
}


def test_copies_of_earlier_versions_stay_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the folder of an archive; a wildcard below it finds them there too."""
    monkeypatch.chdir(tmp_path)
    Path("data/tar/text::x.tar").mkdir(parents=True)
    assert remote.place_of("tar://text::x.tar") == Path("data/tar/text::x.tar")
    assert remote.place_of("tar://text/*/a.txt::x.tar") == Path("data/tar/text::x.tar/*/a.txt")
    assert remote.place_of("tar://other::x.tar") == Path("data/tar/x.tar/other")


def test_the_copy_of_an_address_with_a_query_keeps_the_kind_of_its_file() -> None:
    assert {name: str(remote.place_of(name)) for name in PLACES} == PLACES


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
