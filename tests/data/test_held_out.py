"""Text held out by its end: whole last documents, ends of long ones, whole files of many; by bytes."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.documents import Document, Extent, HeldOut, place_to_cut
from txl.data_utils.errors import DataError
from txl.language.texts import data_settings

SPLITS = ("train", "valid", "test")
PARAGRAPHS = [
    f"paragraph {i} has {'some words and ' * (i % 9)}an end\nin lines\n\n" for i in range(300)
]


def opened(folder: Path, **given: object) -> Corpus:
    return Corpus(DataConfig(data=str(folder), **{"dataset": "characters", **given}))


def text_of(corpus: Corpus, split: str) -> str:
    return b"".join(corpus.documents(split)).decode()


def test_the_end_of_a_file_is_held_out_in_order_in_whole_paragraphs(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("".join(PARAGRAPHS))
    corpus = opened(tmp_path, held_out=0.1)
    parts = [text_of(corpus, split) for split in SPLITS]
    assert "".join(parts) == "".join(PARAGRAPHS)
    assert [part.startswith("paragraph") for part in parts] == [True] * 3
    shares = [len(part) / len("".join(PARAGRAPHS)) for part in parts]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.01)
    assert (
        "valid and test: the end of the text, 10 % each, so that memory sees what stands before"
        in corpus.note
    )


def test_of_many_files_that_are_one_large_and_small_ones_each_gives_its_end() -> None:
    extents = [Extent(1_000_000, (0,)), *(Extent(10, (0,)) for _ in range(30))]
    assert not HeldOut(["valid", "test"], 0.02, extents, has_rows=False).are_whole_files


def test_of_few_small_files_the_last_are_held_out(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(f"{name}, a short file\n")
    corpus = opened(tmp_path)
    assert [text_of(corpus, split) for split in SPLITS] == [
        "a, a short file\nb, a short file\n",
        "c, a short file\n",
        "d, a short file\n",
    ]


def test_a_text_of_one_short_document_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("short\n")
    with pytest.raises(DataError, match=r"1 document\(s\).*too few for valid and test"):
        opened(tmp_path, documents="file")


@pytest.mark.parametrize("line_end", ["", "\n"])
def test_a_text_of_one_line_is_cut_before_spaces(tmp_path: Path, line_end: str) -> None:
    """Its only line end lies nearer than a cut looks for one, and ends the text."""
    line = " ".join(f"word{i}" for i in range(1000)) + line_end
    (tmp_path / "my.txt").write_text(line)
    corpus = opened(tmp_path, held_out=0.1)
    parts = [text_of(corpus, split) for split in SPLITS]
    assert [word for part in parts for word in part.split()] == line.split()
    shares = [len(part) / len(line) for part in parts]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.01)


def test_a_record_without_the_flag_means_the_hash(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("".join(PARAGRAPHS))
    record = {"data": {"data": str(tmp_path), "dataset": "characters"}}
    assert data_settings(record, Path("run"), ())["held_out_by"] == "document"
    record["data"]["held_out_by"] = "end"
    assert data_settings(record, Path("run"), ())["held_out_by"] == "end"
    assert DataConfig(data=str(tmp_path)).held_out_by == "end"


def test_a_long_line_without_spaces_is_cut_between_characters() -> None:
    content = "\u6771\u4eac".encode() * 500
    for wanted in range(1000, 1012):
        at = place_to_cut(content, wanted, begins=True)
        assert 0 <= at - wanted < 3
        assert content[:at].decode() + content[at:].decode()
    assert place_to_cut(b"some words", 3, begins=True) == 4
    assert place_to_cut(b"some words", 0, begins=True) == 0
    assert place_to_cut(b"one\ntwo\n", 2, begins=True) == 4
    assert place_to_cut(b"one\ntwo\n", 4, begins=True) == 4


@st.composite
def files(draw: st.DrawFn) -> list[list[list[bytes]]]:
    """Files of documents of pieces."""
    size = st.sampled_from([3, 30, 400, 3000])
    piece = st.tuples(size, st.sampled_from([b"\n", b" ", b"x"])).map(
        lambda one: b"w" * one[0] + one[1]
    )
    document = st.lists(piece, min_size=1, max_size=3)
    return draw(st.lists(st.lists(document, max_size=12), min_size=1, max_size=25))


def documents_of(documents: list[list[bytes]]) -> list[Document]:
    return [
        Document(content, ends=i == len(one))
        for one in documents
        for i, content in enumerate(one, 1)
    ]


@settings(max_examples=150, deadline=None)
@given(files(), st.sampled_from([0.001, 0.02, 0.2, 0.4]), st.booleans())
def test_dealing_loses_nothing_and_keeps_the_order(
    texts: list[list[list[bytes]]], share: float, has_rows: bool
) -> None:
    extents = [Extent.of(documents_of(documents)) for documents in texts]
    held_out = HeldOut(["valid", "test"], share, extents, has_rows=has_rows)
    for number, documents in enumerate(texts):
        dealt = list(held_out.deal(number, documents_of(documents)))
        found = b"".join(one.text for one in dealt)
        expected = b"".join(content for one in documents for content in one)
        assert found.replace(b"\n", b"") == expected.replace(b"\n", b"")
        assert [SPLITS.index(one.split) for one in dealt] == sorted(
            SPLITS.index(one.split) for one in dealt
        )
        for one, following in pairwise(dealt):
            assert one.ends or one.split == following.split
        assert not dealt or dealt[-1].ends


@pytest.mark.parametrize("n_file", [1, 3, 19, 200])
@pytest.mark.parametrize("size", [20, 300, 4000])
def test_shares_are_right_by_bytes_whatever_the_sizes(n_file: int, size: int) -> None:
    rng = np.random.default_rng(n_file * size)
    texts = [
        [[b"w" * int(n) + b"\n"] for n in rng.integers(1, size, rng.integers(200, 400))]
        for _ in range(n_file)
    ]
    extents = [Extent.of(documents_of(documents)) for documents in texts]
    dealing = HeldOut(["valid", "test"], 0.05, extents, has_rows=True)
    sizes = dict.fromkeys(SPLITS, 0)
    for number, documents in enumerate(texts):
        for one in dealing.deal(number, documents_of(documents)):
            sizes[one.split] += len(one.text)
    n_byte = sum(sizes.values())
    for split in ("valid", "test"):
        assert sizes[split] / n_byte == pytest.approx(0.05, abs=0.005)


def test_files_that_are_too_short_for_their_shares_make_up_for_each_other() -> None:
    documents = [[b"w" * 80 + b"\n"] for _ in range(12)]
    extents = [Extent.of(documents_of(documents)) for _ in range(600)]
    dealing = HeldOut(["valid", "test"], 0.02, extents, has_rows=True)
    dealt = [one.split for i in range(600) for one in dealing.deal(i, documents_of(documents))]
    for split in ("valid", "test"):
        assert dealt.count(split) / len(dealt) == pytest.approx(0.02, abs=0.002)
