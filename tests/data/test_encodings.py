"""Texts that are not UTF-8: the encoding that a message names."""

from pathlib import Path

import pytest

from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.errors import DataError, looks_like

CHINESE = (
    "\u6211\u4eec\u6628\u5929\u53bb\u4e86\u57ce\u5916\u7684\u5c71\u4e0a\uff0c\u770b\u89c1"
    "\u8bb8\u591a\u4eba\u5728\u4f11\u606f\u3002"
)
TRADITIONAL = (
    "\u6211\u5011\u6628\u5929\u53bb\u4e86\u57ce\u5916\u7684\u5c71\u4e0a\uff0c\u770b\u898b"
    "\u8a31\u591a\u4eba\u5728\u4f11\u606f\u3002"
)
JAPANESE = (
    "\u660e\u65e5\u96e8\u304c\u964d\u3089\u306a\u3051\u308c\u3070\u3001\u5b50\u4f9b\u305f"
    "\u3061\u306f\u904a\u3073\u307e\u3059\u3002"
    "\u5b78\u6703"  # not in the first rows of the standard
)
KOREAN = (
    "\ub0b4\uc77c \ube44\uac00 \uc624\uc9c0 \uc54a\uc73c\uba74 \uc544\uc774\ub4e4\uc740 "
    "\uacf5\uc6d0\uc5d0 \ub180\ub7ec \uac04\ub2e4."
    " \uc5b4\uc81c\ub294 \ub3c4\uc11c\uad00\uc5d0\uc11c \ucc45\uc744 \uc77d"
    "\uc5c8\ub2e4. \ud559\uad50\ub294 \uc5ec\ub35f \uc2dc\uc5d0 \uc2dc\uc791"
    "\ud55c\ub2e4."
)
RUSSIAN = (
    "\u0415\u0441\u043b\u0438 \u0437\u0430\u0432\u0442\u0440\u0430 \u043d\u0435 \u0431"
    "\u0443\u0434\u0435\u0442 \u0434\u043e\u0436\u0434\u044f, \u0434\u0435\u0442\u0438 "
    "\u043f\u043e\u0439\u0434\u0443\u0442 \u0432 \u043f\u0430\u0440\u043a."
)
GREEK = (
    "\u0391\u03bd \u03b4\u03b5\u03bd \u03b2\u03c1\u03ad\u03be\u03b5\u03b9 \u03b1\u03cd"
    "\u03c1\u03b9\u03bf, \u03c4\u03b1 \u03c0\u03b1\u03b9\u03b4\u03b9\u03ac \u03b8\u03b1 "
    "\u03c0\u03ac\u03bd\u03b5 \u03c3\u03c4\u03bf \u03c0\u03ac\u03c1\u03ba\u03bf."
)
FRENCH = (
    "L'\u00e9t\u00e9 dernier, No\u00ebl semblait d\u00e9j\u00e0 loin, \u00e0 c\u00f4t"
    "\u00e9 du ch\u00e2teau o\u00f9 l'on f\u00eatait."
)
GERMAN = (
    "Gr\u00fc\u00dfe aus M\u00fcnchen, wo die B\u00e4ume bl\u00fchen und V\u00f6gel "
    "\u00fcber die D\u00e4cher h\u00fcpfen."
)
CZECH = (
    "P\u0159\u00edli\u0161 \u017elu\u0165ou\u010dk\u00fd k\u016f\u0148 \u00fap\u011bl "
    "\u010f\u00e1belsk\u00e9 \u00f3dy, a co d\u011bti"
)
WRITTEN = [
    (CHINESE, "gb18030"),
    (TRADITIONAL, "big5"),
    (JAPANESE, "cp932"),
    (JAPANESE, "euc-jp"),
    (KOREAN, "cp949"),
    (RUSSIAN, "windows-1251"),
    (RUSSIAN, "koi8-r"),
    (GREEK, "windows-1253"),
]


@pytest.mark.parametrize(("text", "encoding"), WRITTEN, ids=[name for _, name in WRITTEN])
def test_the_encoding_of_a_text_is_named(tmp_path: Path, text: str, encoding: str) -> None:
    """Also where the first line that is not UTF-8 tells little, and what is looked at ends inside a character."""
    (tmp_path / "a.txt").write_bytes(f"fine\n{text[0]}\n{20 * text}\n".encode(encoding))
    expected = rf"a\.txt, line \d: not UTF-8 .* looks like {encoding.upper()}: .*iconv -f {encoding} -t utf-8, "
    with pytest.raises(DataError, match=expected):
        Corpus(DataConfig(data=str(tmp_path), dataset="characters"))
    assert looks_like((5000 * text).encode(encoding)) == encoding


@pytest.mark.parametrize("n", [1, 500])
@pytest.mark.parametrize(
    ("text", "encoding"),
    [(FRENCH, "windows-1252"), (GERMAN, "windows-1252"), (CZECH, "windows-1250")],
)
def test_letters_among_those_of_ascii_are_no_other_alphabet(
    text: str, encoding: str, n: int
) -> None:
    assert looks_like((n * (text + "\n")).encode(encoding)) == ""


def test_a_few_characters_tell_nothing() -> None:
    assert looks_like(b"") == ""
    assert looks_like(RUSSIAN[:10].encode("koi8-r")) == ""
