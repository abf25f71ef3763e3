"""Positions of words in the text they come from."""

import re
from collections.abc import Iterator, Sequence

_BLACK = re.compile(r"\S")


def places(line: str, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Begin and end of each word in a line, in order.

    A WikiText mark that the line does not contain, such as `@-@`, stands for the character inside it.
    """
    end = 0
    for word in words:
        found = _BLACK.search(line, end)
        assert found is not None, f"{word!r} is not in the line"
        begin = found.start()
        end = begin + (len(word) if line.startswith(word, begin) else 1)
        yield begin, end
