"""WikiText's manner of writing."""

from pathlib import Path

import pytest

from data_utils.wikitext import tokenise


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
        ("50% of €3", "50 % of € 3"),
        ("", ""),
    ],
)
def test_running_text_becomes_words(text: str, words: str) -> None:
    assert tokenise(text) == words.split()


def test_what_is_already_so_written_stays(tmp_path: Path) -> None:
    text = "The city 's \" two @-@ part \" plan of 1 @,@ 234 @.@ 5 m didn 't <unk> , e.g. in the U.S. = = Title = ="
    assert tokenise(text) == text.split()
