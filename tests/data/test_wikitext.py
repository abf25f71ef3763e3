"""WikiText's manner of writing."""

from pathlib import Path

import numpy as np
import pytest

from txl.data_utils.files import DataError
from txl.data_utils.vocabulary import EOS, Vocab
from txl.data_utils.wikitext import article_starts, tokenise


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The end.", "The end ."),
        ("a two-part test, once", "a two @-@ part test , once"),
        ("1,234.5 metres", "1 @,@ 234 @.@ 5 metres"),
        ("It didn't move; it's Ann's.", "It didn 't move ; it 's Ann 's ."),
        ('He said "no" (twice)...', 'He said " no " ( twice ) ...'),
        ("the U.S. and, e.g., os.path", "the U.S. and , e.g. , os.path"),
        ("x = f(a_b)", "x = f ( a_b )"),
        ("<unk> and <eos>", "<unk> and <eos>"),
        ("the <unk>'s 3,<unk> <unk>-based men", "the <unk> 's 3 @,@ <unk> <unk> @-@ based men"),
        ("Dr. J. Doe at No. 5, pp. 6 etc. of No. Ten.", "Dr. J. Doe at No. 5 , pp. 6 etc. of No . Ten ."),
        ("18- and 19-year-olds -- the T2.5, .38 and -3", "18- and 19 @-@ year @-@ olds -- the T2.5 , .38 and -3"),
        ("the dogs' 'house' in the 1990's", "the dogs ' ' house ' in the 1990 's"),
        ("== Title ==", "= = Title = ="),
        ("50% of €3", "50 % of € 3"),
        ("", ""),
    ],
)
def test_running_text_becomes_words(text: str, words: str) -> None:
    assert tokenise(text) == words.split()


def test_what_is_already_so_written_stays(tmp_path: Path) -> None:
    text = "The city 's \" two @-@ part \" plan of 1 @,@ 234 @.@ 5 m didn 't <unk> , e.g. in the U.S. = = Title = ="
    assert tokenise(text) == text.split()


def starts_of(text: str) -> list[int]:
    """Where its articles begin, as places among its words and `<eos>`s."""
    words = [word for line in text.splitlines() for word in (*line.split(), EOS)]
    vocab = Vocab(list(dict.fromkeys([EOS, *words])))
    return article_starts(np.array(vocab.encode(words), dtype=np.uint16), vocab).tolist()


def test_an_article_begins_with_a_heading_of_level_one() -> None:
    assert starts_of("\n = A = \n\n a b\n\n = = B = = \n\n c\n\n = C D = \n\n e\n") == [1, 20]


def test_what_lies_between_equals_signs_inside_a_paragraph_is_no_heading() -> None:
    assert starts_of("\n = A = \n\n when = 1\n = 2 and x = \n= y\n\n = 3 x = \n or so\n\n a\n = 4 x = \n\n b\n") == [1]


def test_headings_need_no_blank_lines_where_there_are_none() -> None:
    assert starts_of("= A =\na b\n= = B = =\nc\n= C =\n= D =\n") == [0, 15, 19]


def test_an_article_may_be_a_heading_only() -> None:
    assert starts_of("= A =\n\n= B =\n\n") == [0, 5]


@pytest.mark.parametrize("text", ["a b\nc\n", "= = B = =\n", "= =\n", "=\n", "a = b\n", "= a\n", "\n\n"])
def test_a_text_without_headings_has_no_documents(text: str) -> None:
    with pytest.raises(DataError, match="--reset document: the text has no line like '= Title ='"):
        starts_of(text)
