"""Positions and sizes of tokens in the text they come from."""

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from .vocabulary import EOS, UNK, Vocab

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


def pieces(line: str, words: Sequence[str]) -> Iterator[str]:
    """The line cut into one piece per word, white space before it included, and the rest of the line."""
    last = 0
    for _, end in places(line, words):
        yield line[last:end]
        last = end
    yield line[last:]


def sizes_of(written: Iterable[str], ids: np.ndarray, vocab: Vocab) -> dict[str, np.ndarray]:
    """Words, lines, characters, bytes and `<unk>` that each token counts for, (N,) each, of tokens with these `ids`
    (N,). `written` are the pieces of the text, one a token, white space included."""
    lengths_N2 = np.array([(len(piece), len(piece.encode())) for piece in written], dtype=np.int64).reshape(-1, 2)
    assert len(lengths_N2) == len(ids), f"{len(lengths_N2)} pieces of text for {len(ids)} tokens"
    is_line_end_N = np.asarray(ids) == vocab.index[EOS]
    return {
        "words": ~is_line_end_N,
        "lines": is_line_end_N,
        "characters": lengths_N2[:, 0],
        "bytes": lengths_N2[:, 1],
        "unknown": np.asarray(ids) == vocab.index.get(UNK, -1),
    }
