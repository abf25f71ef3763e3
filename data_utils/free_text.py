"""A text from anywhere, read as words that a model knows."""

import io
import logging
import sys
from pathlib import Path

from .files import DataError
from .vocabulary import EOS, UNK, Vocab
from .wikitext import tokenise

_LOG = logging.getLogger(__name__)


def read_text(name: str) -> str:
    """The text of a UTF-8 file; `-` is standard input.

    Raises:
        DataError: if it is missing or not UTF-8.
    """
    try:
        return (sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: not UTF-8 ({error.reason} at byte {error.start}); convert the file, for example with: "
            f"iconv -f latin1 -t utf-8"
        ) from None
    except OSError as error:
        raise DataError(f"{name}: {error.strerror}; give a file of text, or - for standard input") from None


def encode_text(text: str, vocab: Vocab, *, name: str, running: bool = False) -> list[int]:
    """The ids of a text: its words, and `<eos>` for each line break, so that a last line without one may go on.

    Words that are not in the vocabulary become `<unk>`, and a notice says which.

    Args:
        name: of the text, for messages.
        running: the text is written as WikiText is first (`data_utils.wikitext.tokenise`); else words are what white
            space separates, as in the splits.
    Raises:
        DataError: if it has no words, or unknown ones and the vocabulary no `<unk>`.
    """
    words = []
    for line in io.StringIO(text, newline=None):
        words += tokenise(line) if running else line.split()
        words += [EOS] * line.endswith("\n")
    if not words:
        raise DataError(f"{name}: is empty; it needs at least one word or line break")
    unknown = [word for word in words if word not in vocab]
    if unknown and UNK not in vocab:
        raise DataError(f"{name}: the word {unknown[0]!r} is not in the vocabulary, which has no {UNK} to stand for it")
    if unknown:
        _LOG.warning("%s: %s", name, _notice_of(unknown, len(words), running=running))
    return vocab.encode(words)


def _notice_of(unknown: list[str], n_token: int, *, running: bool) -> str:
    first = list(dict.fromkeys(unknown))
    shown = " ".join(first[:10]) + (" ..." if len(first) > 10 else "")
    advice = "" if running else "; for running text there is --tokenise"
    return f"{len(unknown)} of {n_token} words are not in the vocabulary and are read as {UNK}: {shown}{advice}"
