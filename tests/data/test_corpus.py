"""Text to token files."""

import fcntl
import hashlib
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.files import DataError
from txl.files import written_whole

TEXT = "a b c\n\na b <unk>\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text(TEXT)
    return tmp_path


def open_text(folder: Path, **settings: object) -> Corpus:
    return Corpus(DataConfig(data=str(folder), dataset="text", **settings))


def words(corpus: Corpus, split: str) -> list[str]:
    return corpus.vocab.decode(corpus.split(split))


def test_every_line_ends_with_eos_blank_ones_too(folder: Path) -> None:
    assert words(open_text(folder), "train") == "a b c <eos> <eos> a b <unk> <eos>".split()


def test_lines_end_at_every_kind_of_line_end_and_nowhere_else(folder: Path) -> None:
    (folder / "valid.txt").write_bytes("a\r\nb\rc\u2028a\x0bb\x0cc\n".encode())
    assert words(open_text(folder), "valid") == "a <eos> b <eos> c a b c <eos>".split()


def test_a_last_line_without_line_end_counts(folder: Path) -> None:
    (folder / "valid.txt").write_text("a b")
    assert words(open_text(folder), "valid") == ["a", "b", "<eos>"]


def test_unknown_words_become_unk_with_a_notice(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "valid.txt").write_text("a nowhere <unk> b\n")
    assert words(open_text(folder), "valid") == ["a", "<unk>", "<unk>", "b", "<eos>"]
    assert "1 of 5 words are not in the vocabulary" in caplog.text


def test_token_files_are_narrow_for_small_and_wide_for_large_vocabularies(folder: Path) -> None:
    assert open_text(folder).split("train").dtype == np.uint16
    (folder / "train.txt").write_text(" ".join(f"w{i}" for i in range(2**16)))
    corpus = open_text(folder)
    assert corpus.split("train").dtype == np.uint32
    assert corpus.split("train")[2**16 - 1] == 2**16 + 1


def test_ids_are_memory_mapped_and_read_only(folder: Path) -> None:
    ids = open_text(folder).split("train")
    assert isinstance(ids, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 1


def stores(folder: Path, split: str = "valid") -> set[Path]:
    return set((folder / "txl-cache").glob(f"text-{split}-*"))


def test_a_store_is_used_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_text(folder).split("valid")
    (store,) = stores(folder)
    os.utime(store / "ids.bin", ns=(1, 1))
    open_text(folder).split("valid")
    assert (store / "ids.bin").stat().st_mtime_ns == 1
    assert caplog.text == ""


def test_another_text_has_another_store(folder: Path) -> None:
    open_text(folder).split("valid")
    before, stamp = stores(folder), (folder / "valid.txt").stat()
    (folder / "valid.txt").write_text(TEXT.replace("c", "b"))
    os.utime(folder / "valid.txt", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # same size, same time, other text
    assert words(open_text(folder), "valid") == "a b b <eos> <eos> a b <unk> <eos>".split()
    (folder / "valid.txt").write_text(TEXT)
    assert words(open_text(folder), "valid") == "a b c <eos> <eos> a b <unk> <eos>".split()
    assert len(stores(folder) - before) == 1


def test_another_vocabulary_has_another_store(folder: Path) -> None:
    open_text(folder).split("valid")
    (folder / "train.txt").write_text("c c c b b\n")
    corpus = open_text(folder)
    assert words(corpus, "valid") == "<unk> b c <eos> <eos> <unk> b <unk> <eos>".split()


def test_two_folders_share_a_cache(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in ("one", "two", "one"):
        for split in ("train", "valid"):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{split}.txt").write_text(f"{name} {split}\n")
        before = set(cache.rglob("*"))
        corpus = open_text(tmp_path / name, cache_dir=str(cache))
        assert words(corpus, "valid") == [name, "<unk>", "<eos>"]
    assert set(cache.rglob("*")) == before


@pytest.mark.parametrize("file", ["ids.bin", "documents.bin", "sizes.bin", "places.bin", "store.json", "vocabulary"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "missing"])
def test_what_is_damaged_is_made_anew(folder: Path, file: str, damage: str) -> None:
    corpus = open_text(folder)
    before, sizes = words(corpus, "valid"), corpus.sizes("valid")["bytes"].tolist()
    (store,) = stores(folder, file if file == "vocabulary" else "valid")
    path = store / ("vocab.txt" if file == "vocabulary" else file)
    whole = path.read_bytes()
    flipped = whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:]
    path.write_bytes({"truncated": whole[:-1], "flipped": flipped}.get(damage, b""))
    if damage == "missing":
        path.unlink()
    corpus = open_text(folder)
    assert words(corpus, "valid") == before
    assert corpus.sizes("valid")["bytes"].tolist() == sizes
    assert path.read_bytes() == whole


def test_a_text_is_hashed_once_until_it_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    digest = hashlib.file_digest
    monkeypatch.setattr(
        hashlib, "file_digest", lambda file, name: asked.append(Path(file.name).name) or digest(file, name)
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
    assert words(open_text(folder), "train") == "c b a <eos>".split()
    assert asked.count("train.txt") == 1


def test_a_store_that_was_looked_at_is_looked_at_again_when_it_changes(folder: Path) -> None:
    before = words(open_text(folder), "valid")
    (store,) = stores(folder)
    os.utime(store / "ids.bin", (1, 1))
    open_text(folder).split("valid")
    whole = (store / "ids.bin").read_bytes()
    (store / "ids.bin").write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
    os.utime(store / "ids.bin", (1, 1))  # same size, same time
    assert words(open_text(folder), "valid") == before


def test_what_a_killed_process_left_in_the_cache_is_removed(folder: Path) -> None:
    left = folder / "txl-cache" / ".tmp.killed" / "train"
    left.mkdir(parents=True)
    (left / "ids.bin").write_bytes(b"half")
    open_text(folder)
    assert not left.parent.exists()


def test_the_notice_of_unknown_words_comes_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "valid.txt").write_text("a nowhere\n")
    corpus = open_text(folder)
    for _ in range(3):
        corpus.split("valid")
    assert caplog.text.count("not in the vocabulary") == 1


def test_the_word_eos_in_a_text_gets_a_notice(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "valid.txt").write_text("a <eos> b\n")
    assert words(open_text(folder), "valid") == "a <eos> b <eos>".split()
    assert "1 of 4 words are <eos> itself and are read as line ends" in caplog.text


def test_a_byte_order_mark_is_no_part_of_the_first_word(folder: Path) -> None:
    for split in ("train", "valid"):
        (folder / f"{split}.txt").write_text("\ufeff" + TEXT)
    assert words(open_text(folder), "valid")[0] == "a"


def test_a_text_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(hashlib, "file_digest", forbidden)
    with pytest.raises(DataError, match=r"train\.txt: cannot be read \(Permission denied\); give a text"):
        open_text(folder)


def test_sigterm_leaves_nothing_half_written(folder: Path) -> None:
    path = folder / "file"
    with pytest.raises(SystemExit, match="143"), written_whole(path):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert not list(folder.glob("*file*"))


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(folder: Path) -> None:
    left, living = folder / ".tmp.1.file", folder / ".tmp.2.file"
    left.write_bytes(b"half")
    with living.open("wb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        with written_whole(folder / "file"):
            assert (left.exists(), living.exists()) == (False, True)


def test_a_write_that_fails_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = open_text(folder)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = set((folder / "txl-cache").iterdir())
    with pytest.raises(DataError, match=r"No space left.*--cache_dir"):
        corpus.split("valid")
    assert set((folder / "txl-cache").iterdir()) == before


def test_bytes_that_are_not_utf8_are_named_by_file_and_line(folder: Path) -> None:
    (folder / "valid.txt").write_bytes(b"a b\nb c\na \xe9\n")
    with pytest.raises(DataError, match=r"valid.txt, line 3: not UTF-8.*iconv"):
        open_text(folder).split("valid")
    assert not stores(folder)


def test_the_users_own_text_is_never_overwritten(folder: Path) -> None:
    (folder / "train.txt").unlink()
    with pytest.raises(DataError, match=r"train.txt: no such file"):
        Corpus(DataConfig(data=str(folder), dataset="pydoc"))
    assert (folder / "valid.txt").read_text() == TEXT


def test_a_missing_split_is_named(folder: Path) -> None:
    (folder / "valid.txt").unlink()
    with pytest.raises(DataError, match=r"valid.txt: no such file"):
        Corpus(DataConfig(data=str(folder), dataset="wt103")).split("valid")


def test_a_vocabulary_from_elsewhere_reads_text_without_train(folder: Path) -> None:
    vocab = open_text(folder).vocab
    (folder / "train.txt").unlink()
    corpus = Corpus(DataConfig(data=str(folder), dataset="text"), vocab)
    assert not corpus.defines_vocabulary
    assert words(corpus, "valid") == "a b c <eos> <eos> a b <unk> <eos>".split()


def test_wikitext_2_counts_the_words_of_all_splits(folder: Path) -> None:
    (folder / "test.txt").write_text("only here\n")
    assert "here" in Corpus(DataConfig(data=str(folder), dataset="wt2")).vocab
    assert "here" not in Corpus(DataConfig(data=str(folder), dataset="wt103")).vocab


@pytest.mark.slow
def test_ram_does_not_grow_with_the_corpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenising holds one line at a time: what is written between two lines is on its way to the file."""
    import tracemalloc

    (folder / "train.txt").write_text("a b c d e f g h\n" * 200_000)
    corpus = open_text(folder)
    tracemalloc.start()
    corpus.split("train")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_500_000
