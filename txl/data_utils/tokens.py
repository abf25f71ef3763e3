"""Text to ids and back: what every tokenizer gives, and those of words, characters and bytes."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from .documents import Document
from .errors import DataError, text_of

MEASURES = ("words", "lines", "characters", "bytes")
EOS = "<eos>"
UNK = "<unk>"
_SPACES = np.array([i for i in range(0x3001) if chr(i).isspace()])
_IS_SPACE = np.zeros(0x3002, dtype=bool)
_IS_SPACE[_SPACES] = True


class Tokens(NamedTuple):
    """The tokens of a text.

    Attributes:
        ids: (N,).
        ends: characters of the text up to the end of each, (N,); empty if they are not asked for.
        n_unknown: ids that stand for what is not in the vocabulary.
    """

    ids: np.ndarray
    ends: np.ndarray = np.zeros(0, dtype=np.int64)
    n_unknown: int = 0


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


def read_as_text(special: Mapping[str, int]) -> str:
    """The notice of what `Tokenizer.special_in` finds."""
    shown = " ".join([*special][:4])
    if len(special) > 4:
        shown += " ..."
    what = f"names special tokens of the tokenizer ({sum(special.values())} in all: {shown})"
    return f"{what}, which are read as text; take them out, or train with --special_tokens"


class UnknownWordError(Exception):
    """Words that the vocabulary lacks, where it has no `<unk>`."""

    def __init__(self, words: set[str]) -> None:
        super().__init__(words)
        self.words = words


class Encoder(ABC):
    """Documents to numbers, in batches.

    Attributes:
        batch_bytes: bytes of text to encode at a time.
        is_of_words: tokens are words between white space, and line ends; else any text comes back
            as it was.
    """

    batch_bytes: ClassVar[int] = 1 << 20
    is_of_words: ClassVar[bool] = False

    def encode_documents(
        self, documents: Iterable[Document]
    ) -> Iterator[tuple[list[Document], list[Tokens]]]:
        """The documents of several splits in batches of one split each, in order, with the tokens
        of each part. Raises `UnicodeDecodeError` at what is not UTF-8, `UnknownWordError` at a word
        that has no id."""
        if self.is_of_words:
            documents = _with_whole_words(documents)
        held: dict[str, list[Document]] = {}
        sizes: Counter[str] = Counter()
        for document in documents:
            split = document.split
            held.setdefault(split, []).append(document)
            sizes[split] += len(document.text)
            if sizes[split] >= self.batch_bytes:
                yield held[split], self.encode_batch(held[split])
                del held[split], sizes[split]
        for batch in held.values():
            yield batch, self.encode_batch(batch)

    @abstractmethod
    def encode_batch(self, documents: Sequence[Document]) -> list[Tokens]:
        """The tokens of each of these parts of documents of a split; without ends if that is train,
        whose tokens are not measured."""

    def named_in(self, text: bytes) -> Mapping[str, int]:
        """Names of tokens that stand in a text as words of it, and how often."""
        return {}


def is_measured(documents: Sequence[Document]) -> bool:
    """False for train."""
    return documents[0].split != "train"


def _with_whole_words(documents: Iterable[Document]) -> Iterator[Document]:
    """Parts of documents, joined where one ends within a word."""
    held: Document | None = None
    for document in documents:
        if held is not None and document.text[:1].isspace():
            yield held
        elif held is not None:
            document = document._replace(
                text=held.text + document.text, begins_file=held.begins_file
            )
        held = None
        if document.ends or document.text[-1:].isspace():
            yield document
        else:
            held = document


class Tokenizer(Encoder):
    """`words` names the tokens in the order of their ids, `index` gives the id of a name.

    Attributes:
        end_id: the token that ends each document of a corpus, if there is one.
        unit: what its tokens are, for messages.
        takes_words: made of the list of its tokens alone.
        keeps_line_ends: lines of a file end as they end there; else with \\n.
        encodes_in_one: what continues a text is encoded together with it: tokens may span both.
        names_line_ends: the names of its tokens are their text, so that a line break is one.
        stop_ids: the tokens that end a generated text.
        chat_template: Jinja2 that lays out a chat; None: it has none.
        sampling: fields of `txl.generation.rule.Rule` of the model's own, where it has any.
    """

    end_id: int | None = None
    unit: ClassVar[str] = "tokens"
    takes_words: ClassVar[bool] = False
    keeps_line_ends: ClassVar[bool] = False
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
        return cls(text.removesuffix("\n").split("\n"))

    def sizes_by_name(self, sizes_N4: np.ndarray, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of `sizes_of`, (N,) each, and which ids stand for unknown words."""
        unknown_N = np.asarray(ids) == self.index.get(UNK, -1)
        return {**dict(zip(MEASURES, sizes_N4.T, strict=True)), "unknown": unknown_N}

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
    def encode(self, text: str) -> Tokens:
        """The tokens of a text, with their ends."""

    def encode_batch(self, documents: Sequence[Document]) -> list[Tokens]:
        return [self.encode(text_of(document.text)) for document in documents]

    def ids_of(self, words: Iterable[str]) -> list[int]:
        """Ids of words; unknown words become `<unk>`. Raises `UnknownWordError` if there is no
        `<unk>`."""
        return self._looked_up(words)[0]

    def _looked_up(self, words: Iterable[str]) -> tuple[list[int], int]:
        """The ids of words, and how many of the words are unknown."""
        words = list(words)
        ids = list(map(self.index.get, words))
        n_unknown = ids.count(None)
        if not n_unknown:
            return ids, 0  # type: ignore[return-value]
        unk = self.index.get(UNK)
        if unk is None:
            raise UnknownWordError({word for word, i in zip(words, ids, strict=True) if i is None})
        return [unk if i is None else i for i in ids], n_unknown

    @abstractmethod
    def decoder(self) -> Callable[[int], str]:
        """A function that turns the ids of a text into text, one after the other, each with the
        white space before it."""

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The names of ids."""
        return list(map(self.words.__getitem__, ids))

    def decoded(self, ids: Iterable[int]) -> str:
        """The text that `decoder` gives in pieces."""
        return "".join(map(self.decoder(), ids))

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


class Numbers(Encoder):
    """Numbers the symbols of texts whose vocabulary is not known yet in the order in which each
    split first has them, so that texts are read once.

    Args:
        kind: the tokenizer that is made of them.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._orders: defaultdict[str, _Order] = defaultdict(_Order)

    def names(self, split: str) -> list[str]:
        """The symbol of each number of a split."""
        return list(self._orders[split])


class Counted(Tokenizer):
    """A tokenizer whose vocabulary is what a text has."""

    numbers: ClassVar[type[Numbers]]

    @classmethod
    @abstractmethod
    def build(
        cls,
        counts: Counter[str],
        special: Sequence[str] = (),
        min_freq: int = 0,
        max_size: int | None = None,
    ) -> Self:
        """The tokenizer of counted symbols, in the order in which they first occur.

        Args:
            special: words that come first.
            min_freq: of the others.
            max_size: so many others at most.
        """


class _Order(dict[str, int]):
    """The number of each symbol in the order of first occurrence."""

    def __missing__(self, symbol: str) -> int:
        number = self[symbol] = len(self)
        return number


def words_of(text: str) -> list[str]:
    """The words of a text, separated by white space in Python's sense, and `<eos>` for each line
    end."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("\n", f" {EOS} ").split()


def _named_eos(text: bytes) -> dict[str, int]:
    if EOS.encode() not in text:
        return {}
    return {EOS: text.decode().split().count(EOS)}


class WordNumbers(Numbers):
    """Of words."""

    is_of_words = True

    def encode_batch(self, documents: Sequence[Document]) -> list[Tokens]:
        number_of = self._orders[documents[0].split].__getitem__
        found = []
        for document in documents:
            text = text_of(document.text)
            numbers = np.fromiter(map(number_of, words_of(text)), dtype=np.uint32)
            one = Tokens(numbers)
            if is_measured(documents):
                one = one._replace(ends=ends_of_words(text))
            found.append(one)
        return found

    def named_in(self, text: bytes) -> Mapping[str, int]:
        return _named_eos(text)


class Vocab(Counted):
    """An ordered list of words; the id of a word is its index.

    Special words come first, then words by descending count, ties by first occurrence, as in
    kimiyoung/transformer-xl. The clusters of adaptive softmax are ranges of ids and rely on this
    order."""

    is_of_words = takes_words = True
    unit = "words"
    numbers = WordNumbers

    @classmethod
    def build(
        cls,
        counts: Counter[str],
        special: Sequence[str] = (EOS,),
        min_freq: int = 0,
        max_size: int | None = None,
    ) -> Self:
        """The special words, then at most `max_size` others, none rarer than `min_freq`."""
        frequent = [word for word, n in counts.most_common(max_size) if n >= min_freq]
        return cls(list(dict.fromkeys([*special, *frequent])))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Inverse of `to_text`. Raises `ValueError` if a line is blank or there twice."""
        vocab = super().from_text(text)
        if "" in vocab:
            raise ValueError(f"line {vocab.index[''] + 1} is blank")
        return vocab

    @property
    def eos_id(self) -> int:
        return self.index[EOS]

    @property
    def has_eos(self) -> bool:
        return EOS in self.index

    def prompt(self, text: str) -> str:
        if not text.strip():
            return ""
        return text.rstrip(" \t")

    def encode(self, text: str) -> Tokens:
        """The tokens of a text; a last line without a line end has no `<eos>`."""
        return self._without_ends(text)._replace(ends=ends_of_words(text))

    def _without_ends(self, text: str) -> Tokens:
        ids, n_unknown = self._looked_up(words_of(text))
        return Tokens(np.array(ids, dtype=np.int64), n_unknown=n_unknown)

    def encode_batch(self, documents: Sequence[Document]) -> list[Tokens]:
        encode = self._without_ends
        if is_measured(documents):
            encode = self.encode
        return [encode(text_of(document.text)) for document in documents]

    def named_in(self, text: bytes) -> Mapping[str, int]:
        return _named_eos(text)

    def decoder(self) -> Callable[[int], str]:
        spaced = Spaced()
        return lambda token: spaced(self.decode([token])[0])


class Spaced:
    """Words with one space between them, and line breaks for `<eos>`."""

    def __init__(self) -> None:
        self._begins_line = True

    def __call__(self, word: str) -> str:
        begins_line = self._begins_line
        self._begins_line = word == EOS
        if word == EOS:
            return "\n"
        if begins_line:
            return word
        return f" {word}"


class LowerVocab(Vocab):
    """Words in lower case, as in the 2019 code's Penn Treebank."""

    @classmethod
    def build(cls, counts: Counter[str], *limits: Any, **more: Any) -> Self:
        lower: Counter[str] = Counter()
        for word, n in counts.items():
            lower[word.lower()] += n
        return super().build(lower, *limits, **more)

    def __contains__(self, word: str) -> bool:
        return word.lower() in self.index

    def _looked_up(self, words: Iterable[str]) -> tuple[list[int], int]:
        return super()._looked_up(map(str.lower, words))


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


class CodeNumbers(Numbers):
    """Of characters or bytes."""

    def __init__(self, kind: Any) -> None:
        super().__init__(kind)
        self._tables: defaultdict[str, np.ndarray] = defaultdict(
            lambda: np.full(kind.n_code, -1, dtype=np.int32)
        )

    def encode_batch(self, documents: Sequence[Document]) -> list[Tokens]:
        split = documents[0].split
        order = self._orders[split]
        table_V = self._tables[split]
        codes = self._kind.codes_in(b"".join(document.text for document in documents))
        numbers = table_V[codes]
        if (numbers < 0).any():
            new, first = np.unique(codes[numbers < 0], return_index=True)
            for code in new[np.argsort(first)].tolist():
                table_V[code] = order[self._kind.name_of(code)]
            numbers = table_V[codes]
        return self._kind.parted(numbers, documents)


class Coded(Counted, RunningTokenizer):
    """A tokenizer of characters or bytes, each of which has a code.

    Attributes:
        n_code: codes that there can be.
        id_of_code: the id of each, (V,).
    """

    numbers = CodeNumbers
    n_code: ClassVar[int]
    id_of_code: np.ndarray

    @staticmethod
    @abstractmethod
    def codes_in(text: bytes) -> np.ndarray:
        """The codes of a text."""

    @staticmethod
    @abstractmethod
    def ends_in(text: bytes) -> np.ndarray:
        """Characters of a text up to the end of each of its codes."""

    @staticmethod
    @abstractmethod
    def n_code_of(text: bytes) -> int:
        """How many codes a text has."""

    @staticmethod
    @abstractmethod
    def name_of(code: int) -> str:
        """The name of a code in the vocabulary."""

    @classmethod
    def parted(cls, ids: np.ndarray, documents: Sequence[Document]) -> list[Tokens]:
        """The tokens of each of these documents, which follow each other."""
        borders = np.cumsum([cls.n_code_of(document.text) for document in documents])
        found = list(map(Tokens, np.split(ids, borders[:-1])))
        if is_measured(documents):
            for i, document in enumerate(documents):
                found[i] = found[i]._replace(ends=cls.ends_in(document.text))
        return found

    def encode_batch(self, documents: Sequence[Document]) -> list[Tokens]:
        codes = self.codes_in(b"".join(document.text for document in documents))
        ids, n_unknown = self._ids_of_codes(codes)
        first, *others = self.parted(ids, documents)
        return [first._replace(n_unknown=n_unknown), *others]

    @abstractmethod
    def _ids_of_codes(self, code_N: np.ndarray) -> tuple[np.ndarray, int]:
        """Ids, and how many of them stand for what is unknown."""


class Characters(Coded):
    """The characters of a training text, the line break and `<unk>`, which stands for others."""

    unit = "characters"
    names_line_ends = True
    n_code = 0x110000

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words)
        for needed in ("\n", UNK):
            if needed not in self.index:
                raise ValueError(f"has no {needed!r}")
        self._unk = self.index[UNK]
        self.id_of_code = np.full(self.n_code, self._unk, dtype=np.uint32)
        for i, word in enumerate(self.words):
            if len(word) == 1:
                self.id_of_code[ord(word)] = i

    @classmethod
    def build(cls, counts: Counter[str], *limits: Any, **more: Any) -> Self:
        """The most frequent first, then by code."""
        frequent = sorted(counts, key=lambda character: (-counts[character], character))
        return cls(list(dict.fromkeys(["\n", UNK, *frequent])))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Inverse of `to_text`. Raises `ValueError` if it is damaged."""
        quoted = [line.replace('"', '\\"') for line in text.removesuffix("\n").split("\n")]
        return cls([json.loads(f'"{line}"') for line in quoted])

    @staticmethod
    def codes_in(text: bytes) -> np.ndarray:
        return codes_of(text_of(text))

    @staticmethod
    def ends_in(text: bytes) -> np.ndarray:
        return np.arange(1, len(text.decode()) + 1)

    @staticmethod
    def n_code_of(text: bytes) -> int:
        return len(text.decode())

    @staticmethod
    def name_of(code: int) -> str:
        return chr(code)

    @property
    def eos_id(self) -> int:
        return self.index["\n"]

    def to_text(self) -> str:
        """One character per line, line ends and backslashes escaped as in JSON."""
        return escaped(self.words)

    def encode(self, text: str) -> Tokens:
        ids, n_unknown = self._ids_of_codes(codes_of(text))
        return Tokens(ids, np.arange(1, len(ids) + 1), n_unknown)

    def _ids_of_codes(self, code_N: np.ndarray) -> tuple[np.ndarray, int]:
        ids = self.id_of_code[code_N]
        return ids, int((ids == self._unk).sum())

    def text_of(self, ids: Sequence[int]) -> str:
        return "".join(map(self.words.__getitem__, ids))

    def decoder(self) -> Callable[[int], str]:
        """A token is a whole character, also the one that stands for what is none."""
        return self.words.__getitem__


class Symbols(Coded):
    """Bytes by their number, `32` is a space. A text begins after a line end or a space. What is
    not UTF-8 is shown as U+FFFD."""

    takes_words = keeps_line_ends = True
    unit = "bytes"
    n_code = 256

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words)
        codes = [self.byte_of(word) for word in words]
        if not all(0 <= code < 256 for code in codes):
            raise ValueError("a word is no byte")
        if len(set(codes)) != len(codes):
            raise ValueError("a byte is in the vocabulary twice")
        self._code_V = np.array(codes, dtype=np.uint8)
        self.id_of_code = np.full(256, -1, dtype=np.int16)
        self.id_of_code[self._code_V] = np.arange(len(words))

    @classmethod
    def build(cls, counts: Counter[str], *limits: Any, **more: Any) -> Self:
        """The most frequent first, ties by first occurrence."""
        return cls([name for name, _ in counts.most_common()])

    @staticmethod
    def byte_of(word: str) -> int:
        """The byte that a word of the vocabulary names; inverse of `name_of`."""
        return int(word)

    @staticmethod
    def name_of(code: int) -> str:
        return str(code)

    @staticmethod
    def codes_in(text: bytes) -> np.ndarray:
        return np.frombuffer(text, dtype=np.uint8)

    @staticmethod
    def ends_in(text: bytes) -> np.ndarray:
        """A character ends with its last byte."""
        read = text.decode(errors="surrogateescape")
        if read.isascii():
            return np.arange(1, len(read) + 1)
        lengths_C = byte_lengths(codes_of(read))
        last_N = np.zeros(lengths_C.sum(), dtype=bool)
        last_N[np.cumsum(lengths_C) - 1] = True
        return np.cumsum(last_N)

    @staticmethod
    def n_code_of(text: bytes) -> int:
        return len(text)

    @property
    def eos_id(self) -> int:
        for byte in (ord("\n"), ord(" ")):
            if self.id_of_code[byte] >= 0:
                return int(self.id_of_code[byte])
        return 0

    def encode(self, text: str) -> Tokens:
        content = text.encode("utf-8", "surrogateescape")
        ids, n_unknown = self._ids_of_codes(self.codes_in(content))
        return Tokens(ids, self.ends_in(content), n_unknown)

    def _ids_of_codes(self, code_N: np.ndarray) -> tuple[np.ndarray, int]:
        """Raises `DataError` at a byte that is not in the vocabulary."""
        ids = self.id_of_code[code_N]
        if (ids < 0).any():  # where in its file is not known here: this may be one of many batches
            byte = code_N[np.argmax(ids < 0)]
            raise DataError(f"byte {byte} of the text is not in the vocabulary; take it out")
        return ids, 0

    def text_of(self, ids: Sequence[int]) -> str:
        return self._code_V[np.asarray(ids, dtype=np.int64)].tobytes().decode("utf-8", "replace")


ALL_BYTES = tuple(map(str, range(256)))
