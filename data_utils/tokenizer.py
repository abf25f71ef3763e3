"""What every tokenizer gives: ids of text, text of ids, and the files that a checkpoint keeps of
it."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

MEASURES = ("words", "lines", "characters", "bytes")
_SPACES = np.array([i for i in range(0x3001) if chr(i).isspace()])
_IS_SPACE = np.zeros(0x3002, dtype=bool)
_IS_SPACE[_SPACES] = True


def sizes_of(text: str, ends: np.ndarray) -> np.ndarray:
    """Words, lines, characters and bytes of each token of a text, (N, 4). A word or a line end
    belongs to the token that it ends in, and white space to the token after it.

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


EOS = "<eos>"
UNK = "<unk>"


def read_as_text(special: Mapping[str, int]) -> str:
    """The notice of what `Tokenizer.special_in` finds."""
    shown = " ".join([*special][:4])
    if len(special) > 4:
        shown += " ..."
    what = f"names special tokens of the tokenizer ({sum(special.values())} in all: {shown})"
    return f"{what}, which are read as text; take them out, or train with --special_tokens"


class Encoded(NamedTuple):
    """The tokens of a text: ids, and for each the number of characters up to its end, (N,)."""

    ids: np.ndarray
    ends: np.ndarray


class Batch(NamedTuple):
    """A part of a split, in UTF-8 (or any bytes): documents, the last of which may go on in the
    next batch.

    Attributes:
        ends: bytes up to the end of each document that ends here.
        places: of these documents, see `documents.Place`.
        begins_file: the content is the beginning of a file.
        measured: the block needs `sizes`.
    """

    content: bytes
    ends: Sequence[int]
    split: str = ""
    places: Sequence[int] = ()
    begins_file: bool = False
    measured: bool = False


class Block(NamedTuple):
    """The tokens of a batch.

    Attributes:
        ids: (N,).
        ends: tokens up to the end of each document that ends here.
        n_unknown: ids that stand for unknown words.
        n_eos: words that are `<eos>` as written.
        sizes: what each token stands for, see `sizes_of`, (N, 4), if the batch is
            measured.
        special: see `Tokenizer.special_in`.
    """

    ids: np.ndarray
    ends: np.ndarray
    n_unknown: int = 0
    n_eos: int = 0
    sizes: np.ndarray | None = None
    special: Mapping[str, int] = MappingProxyType({})


class UnknownWordError(Exception):
    """Words that the vocabulary lacks, where it has no `<unk>`."""

    def __init__(self, words: set[str]) -> None:
        super().__init__(words)
        self.words = words


class Tokenizer(ABC):
    """Text to ids and back. `words` names the tokens in the order of their ids, `index` gives the
    id of a name.

    Attributes:
        end_id: the token that ends each document of a corpus, if there is one.
        is_of_words: tokens are words between white space, and line ends; else any text comes back
            as it was.
        unit: what its tokens are, for messages.
        takes_words: made of the list of its tokens alone.
        by_file: each batch is of one file.
        keeps_line_ends: lines of a file end as they end there; else with \\n.
        batch_bytes: bytes of text to encode at a time.
        encodes_in_one: what continues a text is encoded together with it: tokens may span both.
        names_line_ends: the names of its tokens are their text, so that a line break is one.
        stop_ids: the tokens that end a generated text.
        chat_template: Jinja2 that lays out a chat; None: it has none.
        sampling: fields of `txl.generation.rule.Rule` of the model's own, where it has any.
    """

    end_id: int | None = None
    is_of_words: ClassVar[bool] = False
    unit: ClassVar[str] = "tokens"
    takes_words: ClassVar[bool] = False
    by_file: ClassVar[bool] = False
    keeps_line_ends: ClassVar[bool] = False
    batch_bytes: ClassVar[int] = 1 << 20
    encodes_in_one: ClassVar[bool] = False
    names_line_ends: ClassVar[bool] = False

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.index = {word: i for i, word in enumerate(self.words)}
        if len(self.index) != len(self.words):
            raise ValueError("a token is in the vocabulary twice")

    @classmethod
    def from_files(cls, read: Callable[[str], str]) -> Self:
        """Inverse of `files`, whose contents `read` gives by name. Raises `ValueError` if they are
        damaged."""
        return cls.from_text(read("vocab.txt"))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Inverse of the content of vocab.txt. Raises `ValueError` if it is damaged."""
        raise NotImplementedError

    @property
    def has_eos(self) -> bool:
        """True if `eos_id` is there."""
        return True

    @property
    @abstractmethod
    def eos_id(self) -> int:
        """The token after which a text begins: the end of a line, or of a document."""

    @property
    def bos_id(self) -> int:
        """The token before a text where there must be one."""
        return self.eos_id

    @property
    def named(self) -> dict[str, int]:
        """The tokens that begin and end a text, as transformers calls them, where it has them."""
        return {"bos_token": self.bos_id, "eos_token": self.eos_id}

    @property
    def begins(self) -> tuple[int, ...]:
        """The tokens that are read before each text. Where there are none, the first token of a
        text is not predicted."""
        return (self.bos_id,)

    @property
    def stop_ids(self) -> frozenset[int]:
        return frozenset()

    @property
    def chat_template(self) -> str | None:
        return None

    @property
    def sampling(self) -> Mapping[str, float]:
        return {}

    @abstractmethod
    def encode(self, text: str) -> Encoded:
        """The tokens of a text."""

    @abstractmethod
    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        """A block of each batch, in order; on all threads if that is faster. Raises
        `UnicodeDecodeError` if a batch is not UTF-8, `UnknownWordError` at a word that has no
        id."""

    @abstractmethod
    def decoder(self) -> Callable[[int], str]:
        """A function that turns the ids of a text into text, one after the other, each with the
        white space before it."""

    def files(self) -> dict[str, str]:
        """What a checkpoint keeps of it: files of text by name."""
        return {"vocab.txt": self.to_text()}

    def to_text(self) -> str:
        """The tokens in the order of their ids, one per line."""
        return "".join(f"{word}\n" for word in self.words)

    def special_in(self, text: str) -> dict[str, int]:
        """The special tokens whose names stand in a text, and how often. They are read as text."""
        return {}

    def without_special(self, text: str) -> str:
        """The text without the names of special tokens, where these are read as tokens."""
        return text

    def prompt(self, text: str) -> str:
        """What a text to be continued says. Empty: nothing. White space is tokens too, unless they
        are words."""
        return text

    def fingerprint(self) -> str:
        """Hex digest, SHA-256."""
        return hashlib.sha256(self.files()["vocab.txt"].encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self.index

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The names of ids."""
        return list(map(self.words.__getitem__, ids))

    def decoded(self, ids: Iterable[int]) -> str:
        """The text that `decoder` gives in pieces."""
        return "".join(map(self.decoder(), ids))


class Numbering(ABC):
    """Counts the symbols of texts whose vocabulary is not known yet, and numbers them, so that
    texts are read once."""

    @abstractmethod
    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        """As `Tokenizer.encode_batches`, of numbers that `table` translates."""

    @abstractmethod
    def tokenizer(self, splits: Sequence[str], **limits: Any) -> Tokenizer:
        """The tokenizer of the symbols that were counted in these splits."""

    @abstractmethod
    def table(self, split: str, tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
        """The id that a tokenizer of its kind gives each number of a split, (V,), and whether it
        stands for an unknown word, (V,). Raises `UnknownWordError`."""


_LONGEST_CHARACTER = 8
"""Tokens after which what is not yet a character is given up on."""


def escaped(words: Iterable[str]) -> str:
    """One token per line, line ends and backslashes escaped as in JSON."""
    return "".join(
        json.dumps(word, ensure_ascii=False)[1:-1].replace('\\"', '"') + "\n" for word in words
    )


class RunningTokenizer(Tokenizer):
    """Pieces of running text, white space included."""

    @abstractmethod
    def text_of(self, ids: Sequence[int]) -> str:
        """The text of ids; inverse of `encode` where the tokenizer loses nothing."""

    def decoder(self) -> Callable[[int], str]:
        """As `Tokenizer.decoder`; a character in several tokens comes with its last."""
        spelled: list[int] = []
        held: list[int] = []

        def piece(token: int) -> str:
            nonlocal spelled, held
            held = [*held, token]
            text = self.text_of(spelled + held)
            if text.endswith("\ufffd") and len(held) < _LONGEST_CHARACTER:
                return ""
            known = len(self.text_of(spelled))
            spelled = held
            held = []
            return text[known:]

        return piece
