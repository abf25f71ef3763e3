"""Text to token files."""

import fcntl
import hashlib
import json
import os
import signal
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.errors import DataError
from txl.data_utils.texts import AnyFiles
from txl.files import written_whole

TEXT = "a b c\n\na b <unk>\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text(TEXT)
    return tmp_path


def open_text(folder: Path, **settings: object) -> Corpus:
    return Corpus(DataConfig(data=str(folder), **{"dataset": "text", **settings}))


def words(corpus: Corpus, split: str) -> str:
    return " ".join(corpus.vocab.decode(corpus.split(split)))


def test_what_is_no_word_of_the_vocabulary_is_noticed_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "valid.txt").write_text("a nowhere <unk> b\n")
    (folder / "test.txt").write_text("a <eos> b\n")
    corpus = open_text(folder)
    for _ in range(3):
        assert words(corpus, "valid") == "a <unk> <unk> b <eos>"
        assert words(corpus, "test") == "a <eos> b <eos>"
    assert caplog.text.count("1 of 5 words are not in the vocabulary") == 1
    assert caplog.text.count("1 of 4 words are <eos> itself and are read as line ends") == 1


def test_ids_are_memory_mapped_read_only_and_narrow_for_small_vocabularies(folder: Path) -> None:
    ids = open_text(folder).split("train")
    assert isinstance(ids, np.memmap)
    assert ids.dtype == np.uint16
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 1
    for split in ("train", "valid"):
        (folder / f"{split}.txt").write_text(" ".join(f"w{i}" for i in range(2**16)))
        ids = open_text(folder).split(split)
        assert ids.dtype == np.uint32
        assert ids[2**16 - 1] == 2**16 + 1


def test_a_vocabulary_from_elsewhere_reads_text_without_train(folder: Path) -> None:
    vocab = open_text(folder).vocab
    (folder / "train.txt").unlink()
    corpus = Corpus(DataConfig(data=str(folder), dataset="text"), vocab)
    assert not corpus.defines_vocabulary
    assert words(corpus, "valid") == "a b c <eos> <eos> a b <unk> <eos>"


# the cache


def stores(folder: Path, split: str = "valid") -> set[Path]:
    return set((folder / "txl-cache").glob(f"text-{split}-*"))


def test_a_store_is_used_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_text(folder).split("valid")
    (store,) = stores(folder)
    os.utime(store / "ids.bin", ns=(1, 1))
    open_text(folder).split("valid")
    assert (store / "ids.bin").stat().st_mtime_ns == 1
    assert caplog.text == ""


def test_another_text_or_vocabulary_has_another_store(folder: Path) -> None:
    open_text(folder).split("valid")
    before, stamp = stores(folder), (folder / "valid.txt").stat()
    (folder / "valid.txt").write_text(TEXT.replace("c", "b"))
    # same size, same time, other text
    os.utime(folder / "valid.txt", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert words(open_text(folder), "valid") == "a b b <eos> <eos> a b <unk> <eos>"
    (folder / "valid.txt").write_text(TEXT)
    assert words(open_text(folder), "valid") == "a b c <eos> <eos> a b <unk> <eos>"
    assert len(stores(folder) - before) == 1
    assert (
        words(open_text(folder, max_size=1), "valid")
        == "a <unk> <unk> <eos> <eos> a <unk> <unk> <eos>"
    )
    (folder / "train.txt").write_text("c c c b b\n")
    assert words(open_text(folder), "valid") == "<unk> b c <eos> <eos> <unk> b <unk> <eos>"
    (folder / "train.txt").write_text("c c c b b a\n")  # as many words as in the first
    assert words(open_text(folder), "valid") == "a b c <eos> <eos> a b <unk> <eos>"


def test_two_folders_share_a_cache(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in ("one", "two", "one"):
        (tmp_path / name).mkdir(exist_ok=True)
        for split in ("train", "valid"):
            (tmp_path / name / f"{split}.txt").write_text(f"{name} {split}\n")
        before = set(cache.rglob("*"))
        assert (
            words(open_text(tmp_path / name, cache_dir=str(cache)), "valid")
            == f"{name} <unk> <eos>"
        )
    assert set(cache.rglob("*")) == before


@pytest.mark.parametrize(
    "file", ["ids.bin", "documents.bin", "sizes.bin", "places.bin", "store.json", "vocabulary"]
)
def test_what_is_damaged_is_made_anew(folder: Path, file: str) -> None:
    corpus = open_text(folder)
    before, sizes = words(corpus, "valid"), corpus.sizes("valid")["bytes"].tolist()
    (store,) = stores(folder, file if file == "vocabulary" else "valid")
    path = store / ("vocab.txt" if file == "vocabulary" else file)
    whole = path.read_bytes()
    flipped = whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:]
    for damage in (whole[:-1], b"", flipped, None):
        path.unlink() if damage is None else path.write_bytes(damage)
        corpus = open_text(folder)
        assert words(corpus, "valid") == before
        assert corpus.sizes("valid")["bytes"].tolist() == sizes
        assert path.read_bytes() == whole


def sign(store: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the record of a store, which keeps its digests."""
    record = json.loads((store / "store.json").read_text())
    record.pop("digest")
    record["sha256"] = {
        name: hashlib.sha256((store / name).read_bytes()).hexdigest() for name in record["sha256"]
    }
    change(record)
    digest = hashlib.sha256(json.dumps(record).encode()).hexdigest()
    (store / "store.json").write_text(json.dumps({**record, "digest": digest}))


NUMBERS = {
    "ids.bin": [np.array([60000, 1], np.uint16).tobytes(), b"123"],
    "documents.bin": [
        np.array([0, 10**12]).tobytes(),
        np.array([5, 2]).tobytes(),
        np.array([-1]).tobytes(),
        b"123",
    ],
    "places.bin": [b"123"],
    "sizes.bin": [bytes(16), b"123"],
}


def test_numbers_that_were_changed_on_purpose_are_not_believed(folder: Path) -> None:
    before = words(open_text(folder), "valid")
    (store,) = stores(folder)
    for name, contents in NUMBERS.items():
        for content in contents:
            (store / name).write_bytes(content)
            sign(store, lambda _: None)
            assert words(open_text(folder), "valid") == before, (name, content)


def test_a_vocabulary_that_was_changed_on_purpose_is_not_believed(folder: Path) -> None:
    before = words(open_text(folder), "valid")
    (store,) = stores(folder, "vocabulary")
    for content in (b"", b"\xff\n", b"a\na\n"):
        (store / "vocab.txt").write_bytes(content)
        sign(store, lambda _: None)
        assert words(open_text(folder), "valid") == before, content
    sign(store, lambda record: record.update(sha256={}))
    (store / "vocab.txt").unlink()
    assert words(open_text(folder), "valid") == before


def test_a_text_is_hashed_once_until_it_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, digest = [], hashlib.file_digest
    monkeypatch.setattr(
        hashlib,
        "file_digest",
        lambda file, name: asked.append(Path(file.name).name) or digest(file, name),
    )
    for split in ("train", "valid"):
        os.utime(folder / f"{split}.txt", (1, 1))  # a file that changed just now is not remembered
        open_text(folder).split(split)
    for path in (folder / "txl-cache").rglob("*"):
        os.utime(path, (1, 1))
    open_text(folder).split("train")
    asked.clear()
    open_text(folder).split("train")
    assert asked == []
    (folder / "train.txt").write_text("c b a\n")
    os.utime(folder / "train.txt", (2, 2))
    assert words(open_text(folder), "train") == "c b a <eos>"
    assert asked.count("train.txt") == 1


def test_what_an_older_version_has_found_in_a_file_is_found_again(folder: Path) -> None:
    """It kept texts where numbers are kept now."""
    (folder / "train.txt").write_bytes(b"a b\r\n")
    os.utime(folder / "train.txt", (1, 1))
    fingerprint = open_text(folder).fingerprint("train")
    path = folder / "txl-cache" / "checked.json"
    found = json.loads(path.read_text())
    older = {name.partition(" ")[2]: [stamp, "False"] for name, (stamp, _) in found.items()}
    assert any(name.startswith("returns ") for name in older)
    path.write_text(json.dumps(older))
    assert open_text(folder).fingerprint("train") == fingerprint


# writes that do not end


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(
    folder: Path,
) -> None:
    killed, others = (folder / "txl-cache" / name for name in (".txl-draft.killed", ".tmp.1.model"))
    for left in (killed, others):
        left.mkdir(parents=True)
        (left / "ids.bin").write_bytes(b"half")
    open_text(folder)
    assert (killed.exists(), others.exists()) == (False, True)
    left, living = folder / ".tmp.1.txl.file", folder / ".tmp.2.txl.file"
    left.write_bytes(b"half")
    with living.open("wb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        with written_whole(folder / "file"):
            assert (left.exists(), living.exists()) == (False, True)


def test_a_write_that_a_signal_ends_or_that_fails_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, status in ((signal.SIGTERM, "143"), (signal.SIGHUP, "129")):
        before = signal.signal(number, signal.SIG_DFL)  # nohup has it ignored
        with pytest.raises(SystemExit, match=status), written_whole(folder / "file"):
            signal.raise_signal(number)
        assert signal.signal(number, before) is signal.SIG_DFL
    assert not list(folder.glob("*file*"))
    corpus = open_text(folder)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = set((folder / "txl-cache").iterdir())
    with pytest.raises(DataError, match=r"No space left.*--cache_dir"):
        corpus.split("valid")
    assert set((folder / "txl-cache").iterdir()) == before


# what is refused


def test_a_text_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (folder / "train.txt").write_text("changed\n")
    monkeypatch.setattr(hashlib, "file_digest", forbidden)
    with pytest.raises(
        DataError, match=r"train\.txt: cannot be read \(Permission denied\); give a text"
    ):
        open_text(folder)


def test_the_users_own_text_is_never_overwritten(folder: Path) -> None:
    (folder / "train.txt").unlink()
    with pytest.raises(DataError, match=r"train.txt: no such file"):
        open_text(folder, dataset="pydoc")
    assert (folder / "valid.txt").read_text() == TEXT


@pytest.mark.slow
def test_ram_does_not_grow_with_the_corpus(folder: Path) -> None:
    """Tokenising holds one line at a time: what is written between two lines is on its way to the file."""
    (folder / "train.txt").write_text("a b c d e f g h\n" * 100_000)
    corpus = open_text(folder)
    tracemalloc.start()
    corpus.split("train")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_500_000


@pytest.mark.parametrize("dataset", ["text", "bpe", "bytes"])
@pytest.mark.parametrize("change", ["grows", "same size", "there and back"])
def test_a_text_that_changes_while_it_is_read_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dataset: str, change: str
) -> None:
    if dataset == "bpe":
        pytest.importorskip("tokenizers")
    train = folder / "train.txt"
    os.utime(train, (0, 0))
    changed = TEXT + "d e f\n" if change == "grows" else TEXT.swapcase()
    documents, changes = AnyFiles.documents, [changed]

    def changing(self: AnyFiles, *args: Any) -> Any:
        for document in documents(self, *args):
            if changes:
                train.write_text(changes.pop())
                if change == "there and back":
                    train.write_text(TEXT)
            yield document

    monkeypatch.setattr(AnyFiles, "documents", changing)
    with pytest.raises(
        DataError, match=r"train\.txt.*: has changed while it was read; start again"
    ):
        open_text(folder, dataset=dataset).split("train")
    assert not list((folder / "txl-cache").glob(f"{dataset}-*"))
    text = TEXT if change == "there and back" else changed
    assert (
        open_text(folder, dataset=dataset).fingerprint("train")
        == hashlib.sha256(text.encode()).hexdigest()
    )
