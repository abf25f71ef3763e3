"""Any text, encoded with the vocabulary of a model."""

import io
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from txl.files import NoFileError, require_end, typed_content

from .errors import DataError, no_text, text_of
from .tokens import EOS, UNK, Spaced, Tokenizer, Tokens, read_as_text, sizes_of
from .wikitext import Detokeniser, places, tokenise

_LOG = logging.getLogger(__name__)


class FreeText(NamedTuple):
    """The tokens of a text, in order.

    Attributes:
        ids: (N,).
        offsets: number of characters before each token.
        surfaces: each token as written in the text; empty for a line break.
        sizes: words, characters, bytes, ... of each token, see `Corpus.sizes`.
    """

    ids: list[int]
    offsets: list[int]
    surfaces: list[str]
    sizes: dict[str, np.ndarray]

    def from_token(self, first: int) -> "FreeText":
        """The tokens from `first` on."""
        sizes = {name: size_N[first:] for name, size_N in self.sizes.items()}
        return FreeText(self.ids[first:], self.offsets[first:], self.surfaces[first:], sizes)


def read_text(name: str, vocab: Tokenizer | None = None) -> str:
    """The text of a UTF-8 file, without a byte-order mark; `-` is standard input. Raises
    `DataError` if it is missing or not UTF-8, or standard input is closed.

    Args:
        vocab: what it is to be encoded with; unless that keeps line ends, lines end with \\n.
    """
    if name == "-" and sys.stdin is None:
        raise DataError(
            "-: standard input is closed; give a file of text, or send the text to standard input"
        )
    try:
        if name == "-":
            content = _standard_input()
        else:
            content = typed_content(name)
    except OSError as error:
        raise DataError(
            f"{name}: {error.strerror}; give a file of text, or - for standard input"
        ) from None
    is_of_bytes = vocab is not None and vocab.keeps_line_ends
    text = _decoded(content, name, takes_nul=is_of_bytes)
    if vocab is None or is_of_bytes:
        return text
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _standard_input() -> bytes:
    require_end(sys.stdin.buffer)
    return sys.stdin.buffer.read()


def read_turns() -> Iterator[str]:
    """The lines of standard input, each as soon as it is there, without line breaks. Raises
    `DataError` if a line is not UTF-8, or standard input is closed."""
    if sys.stdin is None:
        raise DataError("standard input is closed; --interactive reads from it")
    try:
        require_end(sys.stdin.buffer)
    except NoFileError as error:
        raise DataError(
            f"standard input {error.strerror}; --interactive reads a terminal, a file or a pipe"
        ) from None
    while line := sys.stdin.buffer.readline():
        yield _decoded(line, "standard input").rstrip("\r\n")


def _decoded(content: bytes, name: str, *, takes_nul: bool = False) -> str:
    try:
        if takes_nul:
            text = content.decode()
        else:
            text = text_of(content)
        return text.removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise no_text(name, content, error, at=f" at byte {error.start}") from None


def encode_text(
    text: str,
    vocab: Tokenizer,
    *,
    name: str,
    running: bool = False,
    advice: str = "",
    is_noticed: bool = False,
) -> FreeText:
    """The tokens of a text: its words, and `<eos>` for each line break; or what else the vocabulary
    is of. Unknown words become `<unk>`, with a warning and `advice`.

    Args:
        name: of the text, for messages.
        running: tokenise running text as WikiText is (`wikitext.tokenise`); else words
            are separated by white space, as in the splits.
        is_noticed: what a user should know of the text was said before.
    Raises:
        DataError: if there are no tokens, or unknown words and no `<unk>` in the vocabulary.
    """
    if not vocab.is_of_words:
        return _running(text, vocab.encode(text), vocab, name, is_noticed)
    words: list[str] = []
    spans: list[tuple[int, int]] = []
    n_written_eos = line_begin = 0
    for line in io.StringIO(text, newline=""):
        if running:
            of_line = tokenise(line)
        else:
            of_line = line.split()
        n_written_eos += of_line.count(EOS)
        words += of_line
        spans += [(line_begin + begin, line_begin + end) for begin, end in places(line, of_line)]
        line_begin += len(line)
        if line.endswith(("\n", "\r")):
            words.append(EOS)
            spans.append((line_begin - len(line) + len(line.rstrip("\r\n")), line_begin))
    if not words:
        raise DataError(f"{name}: is empty; it needs at least one word or line break")
    unknown = [word for word in words if word not in vocab]
    if unknown and UNK not in vocab:
        what = f"is not in the vocabulary, which has no {UNK} to stand for it"
        raise DataError(f"{name}: the word {unknown[0]!r} {what}")
    if unknown and not is_noticed:
        first = list(dict.fromkeys(unknown))
        shown = " ".join(first[:10])
        if len(first) > 10:
            shown += " ..."
        notice = "%s: %d of %d words are not in the vocabulary and are read as %s: %s%s"
        _LOG.warning(notice, name, len(unknown), len(words), UNK, shown, advice)
    if n_written_eos and not is_noticed:
        _LOG.warning(
            "%s: %d of its words are %s itself and are read as line ends", name, n_written_eos, EOS
        )
    ids = vocab.ids_of(words)
    offsets = [begin for begin, _ in spans]
    surfaces = [text[begin:end].rstrip("\r\n") for begin, end in spans]
    sizes_N4 = sizes_of(text, np.array([end for _, end in spans]))
    return FreeText(ids, offsets, surfaces, vocab.sizes_by_name(sizes_N4, np.array(ids)))


def encode_after(
    context: str, text: str, vocab: Tokenizer, *, name: str, of_context: str = "text", **how: Any
) -> tuple[list[int], FreeText]:
    """The ids of a context, and the tokens of the text that continues it; a token of both is the
    text's. Raises `DataError` as `encode_text`.

    Args:
        of_context: its name, for messages.
        how: see `encode_text`.
    """
    if not vocab.encodes_in_one:
        before = []
        if context:
            before = encode_text(context, vocab, name=of_context, **how).ids
        return before, encode_text(text, vocab, name=name, **how)
    both = vocab.encode(context + text)
    n_before = int((both.ends <= len(context)).sum())
    tokens = Tokens(both.ids[n_before:], both.ends[n_before:] - len(context))
    is_noticed = how.get("is_noticed", False)
    return both.ids[:n_before].tolist(), _running(text, tokens, vocab, name, is_noticed)


def has_tokens(text: str, vocab: Tokenizer) -> bool:
    """True if `encode_text` finds any; among words a line break is a token, other white space is
    none."""
    if vocab.is_of_words:
        return bool(text.strip()) or "\n" in text or "\r" in text
    return len(vocab.encode(text).ids) > 0


def _running(text: str, tokens: Tokens, vocab: Tokenizer, name: str, is_noticed: bool) -> FreeText:
    if not len(tokens.ids):
        raise DataError(f"{name}: is empty; it needs at least one token")
    sizes = vocab.sizes_by_name(sizes_of(text, tokens.ends), tokens.ids)
    if (n_unknown := int(sizes["unknown"].sum())) and not is_noticed:
        notice = "%s: %d of %d %s are not in the vocabulary and are read as %s"
        _LOG.warning(notice, name, n_unknown, len(tokens.ids), vocab.unit, UNK)
    if not is_noticed and (special := vocab.special_in(text)):
        _LOG.warning("%s: %s", name, read_as_text(special))
    ends = tokens.ends.tolist()
    offsets = [0, *ends[:-1]]
    surfaces = [text[begin:end] for begin, end in zip(offsets, ends, strict=True)]
    return FreeText(tokens.ids.tolist(), offsets, surfaces, sizes)


def decoded(ids: Iterable[int], vocab: Tokenizer, *, tokenised: bool) -> str:
    """The text of ids; see `decoder`."""
    if tokenised and not vocab.is_of_words:
        return vocab.decoded(ids)
    return "".join(map(decoder(vocab, tokenised=tokenised), ids))


def decoder(vocab: Tokenizer, *, tokenised: bool) -> Callable[[int], str]:
    """A function that turns the ids of a text into text, one after the other, each with the white
    space before it. This is the only place where ids become text.

    Args:
        tokenised: the words are tokenised as WikiText's are, and become running text; else they, or
            the names of other tokens, are separated by spaces. `<eos>` is a line break.
    """
    if tokenised and not vocab.is_of_words:
        return vocab.decoder()
    spelled = Spaced()
    if tokenised:
        spelled = Detokeniser()
    return lambda token: spelled(vocab.decode([token])[0])
