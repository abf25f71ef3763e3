"""WikiText's manner of writing: running text as its words and back, and where its articles begin."""

from pathlib import Path

import pytest

from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.errors import DataError
from txl.data_utils.free_text import decoder
from txl.data_utils.tokens import EOS, Vocab
from txl.data_utils.wikitext import Detokeniser, tokenise

WRITTEN = "The city 's \" two @-@ part \" plan of 1 @,@ 234 @.@ 5 m didn 't <unk> , e.g. in the U.S. = = Title = ="


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The end.", "The end ."),
        ('He said "no" (twice)...', 'He said " no " ( twice ) ...'),
        ("the U.S. and, e.g., os.path", "the U.S. and , e.g. , os.path"),
        ("x = f(a_b)", "x = f ( a_b )"),
        ("<unk> and <eos>", "<unk> and <eos>"),
        ("the <unk>'s 3,<unk> <unk>-based men", "the <unk> 's 3 @,@ <unk> <unk> @-@ based men"),
        (
            "Dr. J. Doe at No. 5, pp. 6 etc. of No. Ten.",
            "Dr. J. Doe at No. 5 , pp. 6 etc. of No . Ten .",
        ),
        (
            "18- and 19-year-olds -- the T2.5, .38 and -3",
            "18- and 19 @-@ year @-@ olds -- the T2.5 , .38 and -3",
        ),
        ("the dogs' 'house' in the 1990's", "the dogs ' ' house ' in the 1990 's"),
        ("== Title ==", "= = Title = ="),
        ("50% of €3", "50 % of € 3"),
        (WRITTEN, WRITTEN),
        ("", ""),
    ],
)
def test_running_text_becomes_words(text: str, words: str) -> None:
    assert tokenise(text) == words.split()


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


def test_ids_become_text_as_their_vocabulary_is_spelled() -> None:
    """A quote that stays open closes with its line."""
    words = ['"', "a", EOS, '"', "b", '"', EOS, EOS, "c"]
    assert "".join(map(Detokeniser(), words)) == '"a\n"b"\n\nc'
    vocab = Vocab([EOS, "a", ",", "@-@"])
    ids = [1, 2, 1, 3, 1, 0, 0, 1]
    assert "".join(map(decoder(vocab, tokenised=True), ids)) == "a, a-a\n\na"
    assert "".join(map(decoder(vocab, tokenised=False), ids)) == "a , a @-@ a\n\na"


def starts_of(text: str, folder: Path) -> list[int]:
    """Where its articles begin, as places among its words and `<eos>`s."""
    for split in ("train", "valid"):
        (folder / f"{split}.txt").write_text(text)
    return Corpus(DataConfig(data=str(folder), dataset="wt103")).document_starts("valid").tolist()


STARTS = {  # the first document begins with the text, whose first lines may be blank
    "headings of level one": (
        "\n = A = \n\n a b\n\n = = B = = \n\n c\n\n = C D = \n\n e\n",
        [0, 20],
    ),
    "formulas in a paragraph": (
        "\n = A = \n\n when = 1\n = 2 and x = \n= y\n\n = 3 x = \n or so\n\n a\n = 4 x = \n\n b\n",
        [0],
    ),
    "no blank lines": ("= A =\na b\n= = B = =\nc\n= C =\n= D =\n", [0, 15, 19]),
    "headings only": ("= A =\n\n= B =\n\n", [0, 5]),
}


@pytest.mark.parametrize(("text", "starts"), STARTS.values(), ids=STARTS)
def test_an_article_begins_with_a_heading_of_level_one(
    tmp_path: Path, text: str, starts: list[int]
) -> None:
    assert starts_of(text, tmp_path) == starts


@pytest.mark.parametrize("text", ["a b\nc\n", "= = B = =\n", "= =\n", "=\n", "a = b\n", "= a\n"])
def test_a_text_without_headings_has_no_documents(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match="--reset document: the text has no line like '= Title ='"):
        starts_of(text, tmp_path)
