"""Where texts end, and what is certain of them before that."""

from typing import Any

import pytest

from txl.config import UsageError
from txl.generation.ending import Ending, GrowingText


def grown(words: str, *, line: str = "x", **ending: Any) -> list[str]:
    """The pieces that become certain of a text of words; `/` is a line end."""
    text, pieces = GrowingText(Ending(**{"length": 99} | ending), line), []
    for word in words.split():
        pieces.append(text.add("\n" if word == "/" else f" {word}"))
        if text.has_ended:
            break
    return pieces


def test_a_text_ends_after_so_many_tokens() -> None:
    assert grown("a b c d", length=3) == [" a", " b", " c"]


@pytest.mark.parametrize(
    ("lines", "line", "expected"),
    [
        (1, "x", ""),
        (1, "", "\n\n a b"),
        (2, "x", "\n\n a b"),
        (2, "", "\n\n a b\n c"),
        (3, "x", "\n\n a b\n c"),
    ],
)
def test_a_text_ends_with_its_last_line(lines: int, line: str, expected: str) -> None:
    assert "".join(grown("/ / a b / c / d /", lines=lines, line=line)) == expected


def test_a_line_ends_within_a_token() -> None:
    """As subwords have it: the line break and the indentation after it."""
    pieces = ["a", "\n  ", "b", "\n\n ", "c", "\n"]
    for ending, expected in [
        ({"lines": 1}, "a"),
        ({"lines": 2}, "a\n  b"),
        ({"length": 2}, "a\n  "),
        ({"length": 2, "finish_line": True}, "a\n  b"),
    ]:
        text = GrowingText(Ending(**{"length": 99} | ending))
        assert "".join(text.add(piece) for piece in pieces if not text.has_ended) == expected


def test_a_text_is_cut_before_a_string_and_what_may_begin_it_is_held() -> None:
    assert grown("a b c d e", stop=["c d"]) == [" a", " b", " ", ""]
    assert grown("a b c e c d", stop=["c d", "e x"]) == [" a", " b", " ", "c ", "e ", ""]
    assert "".join(grown("a bc d", stop=["c", "bc"])) == " a "
    assert grown("a b", stop=["b c"], length=2) == [" a", " b"]  # what is held belongs to the end


def test_an_unfinished_paragraph_is_left_out() -> None:
    words = "a b / / = c = / d / / = e = / f g"
    for length, expected in [
        (2, " a b"),
        (3, " a b"),
        (4, " a b"),
        (5, " a b\n\n = c =\n d"),
        (7, " a b\n\n = c =\n d"),
    ]:
        assert "".join(grown(words, length=length, finish_line=True)) == expected
    assert "".join(grown("a b c", length=1, finish_line=True)) == " a b"
    assert "".join(grown("= / a /", length=1, line="=", finish_line=True)) == " =\n"
    assert "".join(grown("= / a /", length=2, line="=", finish_line=True)) == " =\n a"


def test_an_end_that_cannot_be_reached_is_refused() -> None:
    with pytest.raises(UsageError, match="--length 0: must be at least 1"):
        Ending(length=0)
    with pytest.raises(UsageError, match="--stop: an empty string"):
        Ending(length=1, stop=["a", ""])
