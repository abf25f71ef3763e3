"""WikiText's words as running text, and back."""

import pytest

from txl.data_utils.detokenise import Detokeniser, decoder
from txl.data_utils.tokenizers.base import EOS
from txl.data_utils.tokenizers.words import Vocab
from txl.data_utils.wikitext import tokenise

LINES = [
    ("a two @-@ part test , once", "a two-part test, once"),
    ("1 @,@ 234 @.@ 5 metres", "1,234.5 metres"),
    ("It didn 't move ; it 's Ann 's .", "It didn't move; it's Ann's."),
    ('He said " no " ( twice ) ... and " yes "', 'He said "no" (twice)... and "yes"'),
    ("the dogs ' house ; ' so ' he said", "the dogs' house; 'so' he said"),
    ("the U.S. and No. 5 of J. Doe", "the U.S. and No. 5 of J. Doe"),
    ("= = Early life = =", "== Early life =="),
    ("x = y", "x = y"),
    ("5 – 6 , at 10 : 30 , and / or – well — so", "5–6, at 10:30, and/or – well—so"),  # noqa: RUF001
    ("$ 5 million [ 50 % ] # 3", "$5 million [50%] #3"),
    ("the <unk> @-@ based 3 @,@ <unk>", "the <unk>-based 3,<unk>"),
]


@pytest.mark.parametrize(("words", "text"), LINES, ids=[text for _, text in LINES])
def test_words_become_running_text_and_running_text_these_words(words: str, text: str) -> None:
    assert "".join(map(Detokeniser(), words.split())) == text
    assert tokenise(text) == words.split()


def test_a_quote_that_stays_open_closes_with_its_line() -> None:
    words = ['"', "a", EOS, '"', "b", '"', EOS, EOS, "c"]
    assert "".join(map(Detokeniser(), words)) == '"a\n"b"\n\nc'


def test_ids_become_text_as_their_vocabulary_is_spelled() -> None:
    vocab = Vocab([EOS, "a", ",", "@-@"])
    ids = [1, 2, 1, 3, 1, 0, 0, 1]
    assert "".join(map(decoder(vocab, tokenised=True), ids)) == "a, a-a\n\na"
    assert "".join(map(decoder(vocab, tokenised=False), ids)) == "a , a @-@ a\n\na"
