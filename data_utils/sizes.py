"""What tokens stand for in their text: words, lines, characters, bytes."""

import numpy as np

MEASURES = ("words", "lines", "characters", "bytes")
_SPACES = np.array([i for i in range(0x3001) if chr(i).isspace()])
_IS_SPACE = np.zeros(0x3002, dtype=bool)
_IS_SPACE[_SPACES] = True


def sizes_of(text: str, ends: np.ndarray) -> np.ndarray:
    """Words, lines, characters and bytes of each token of a text, (N, 4). A word or a line end belongs to the token
    that it ends in, and white space to the token after it.

    Args:
        ends: characters up to each token's end, (N,). What is left of the text belongs to the last.
    """
    if not len(ends):
        return np.zeros((0, len(MEASURES)), dtype=np.uint32)
    code_C = codes_of(text)
    ones_C = np.ones(len(code_C), dtype=np.uint32)
    counted_C4 = (_word_ends(code_C), _line_ends(code_C), ones_C, byte_lengths(code_C))
    ends = np.maximum.accumulate(ends)
    ends[-1] = len(text)
    sums = [np.append(0, np.cumsum(each_C, dtype=np.int64))[ends] for each_C in counted_C4]
    return np.stack([np.diff(sum_N, prepend=0) for sum_N in sums], axis=1).astype(np.uint32)


def ends_of_words(text: str) -> np.ndarray:
    """Characters up to the end of each word and of each line end of a text, (N,)."""
    code_C = codes_of(text)
    return np.flatnonzero(_word_ends(code_C) | _line_ends(code_C)) + 1


def codes_of(text: str) -> np.ndarray:
    """The code of each character, (C,)."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def byte_lengths(code_C: np.ndarray) -> np.ndarray:
    """Bytes of each character in UTF-8, (C,)."""
    n_byte_C = 1 + (code_C > 0x7F) + (code_C > 0x7FF) + (code_C > 0xFFFF)
    n_byte_C[(code_C >= 0xDC80) & (code_C <= 0xDCFF)] = 1  # a byte that is no text
    return n_byte_C


def _word_ends(code_C: np.ndarray) -> np.ndarray:
    space_C = _IS_SPACE[np.minimum(code_C, 0x3001)]
    return ~space_C & np.append(space_C[1:], True)


def _line_ends(code_C: np.ndarray) -> np.ndarray:
    """Of \\r\\n the second character."""
    break_C = (code_C == 10) | (code_C == 13)
    break_C[:-1] &= ~((code_C[:-1] == 13) & (code_C[1:] == 10))
    return break_C
