"""How long ago a word was said, and paths without their folders."""

import numpy as np
import pytest

from txl.report.record import last_said, short_word, without_folders


def test_of_words_it_is_the_distance_to_the_last_one() -> None:
    pieces = ["the", " cat", " the", "\n", "cat", " dog", "\n"]
    ends_N = np.ones(len(pieces), dtype=np.int64)
    assert last_said(pieces, ends_N).tolist() == [0, 0, 2, -1, 3, 0, -1]


def test_parts_of_a_word_have_that_of_the_word() -> None:
    pieces = ["un", "seen", " ", "un", "set", " un", "seen", "!"]
    ends_N = np.array([0, 1, 0, 0, 1, 0, 1, 0])
    assert last_said(pieces, ends_N).tolist() == [0, 0, 0, 0, 0, 5, 5, -1]


@pytest.mark.parametrize(
    ("word", "short"),
    [
        ("/home/me/my project/train.py", "…/train.py"),
        ("--data=/home/me/text", "--data=…/text"),
        ("../../home/me/runs/x", "…/x"),
        ("~/runs/x", "…/x"),
        ("file:///home/me/x", "…/x"),
        ("runs/mine", "runs/mine"),
        ("https://host/a/b", "https://host/a/b"),
        ("0.25", "0.25"),
        ("--lr", "--lr"),
        ("…/train.py", "…/train.py"),
        ("('/home/me/a', '/home/me/b')", "('…/a', '…/b')"),
    ],
)
def test_a_word_tells_no_folder(word: str, short: str) -> None:
    assert short_word(word) == short


def test_a_sentence_tells_no_folder() -> None:
    said = without_folders("left out: /home/me/text/a.txt and 24/7, s3://bucket/key, ~/b/c.txt")
    assert said == "left out: …/a.txt and 24/7, s3://bucket/key, …/c.txt"
