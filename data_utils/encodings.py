"""In which encoding a text was written that is not UTF-8, as far as charset-normalizer can tell."""

_LOOKED_AT = 1 << 16
"""Bytes."""
_FEWEST = 12
"""Bytes that are no ASCII, of fewer nothing is told."""
_NAMED = {
    "gb18030": "gb18030",
    "big5": "big5",
    "big5hkscs": "big5-hkscs",
    "cp932": "cp932",
    "euc_jp": "euc-jp",
    "euc_jis_2004": "euc-jp",
    "cp949": "cp949",
    "euc_kr": "euc-kr",
    "cp1251": "windows-1251",
    "koi8_r": "koi8-r",
    "koi8_u": "koi8-u",
    "mac_cyrillic": "maccyrillic",
    "cp1253": "windows-1253",
    "iso8859_7": "iso-8859-7",
    "cp1255": "windows-1255",
    "cp1256": "windows-1256",
    "cp874": "windows-874",
}
"""Names for iconv of what Python knows by another. Those of Latin letters are not among them: a
short text does not tell one of them from another.
"""


def looks_like(content: bytes) -> str:
    """The name of the encoding for iconv, of those of East Asia, of Cyrillic, Greek, Hebrew, Arabic
    and Thai; empty if the text does not tell.

    Args:
        content: from the beginning of a character on.
    """
    from charset_normalizer import from_bytes  # few texts need it

    begin = content[:_LOOKED_AT]
    if len(begin) < len(content):  # half a character at the end misleads
        begin = begin[: 1 + max(begin.rfind(b" "), begin.rfind(b"\n"))] or begin
    if sum(byte >= 0x80 for byte in begin) < _FEWEST:
        return ""
    best = from_bytes(begin).best()
    if best is None or best.percent_coherence == 0:  # decodes, but into no language that it knows
        return ""
    return _NAMED.get(best.encoding, "")
