"""Subwords: a tokenizer.json of Hugging Face tokenizers, trained here or brought along."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from txl.files import typed_content

from .config import DataConfig, DataSet
from .documents import Document
from .errors import DataError, reading, text_of
from .formats import parts_of
from .texts import AnyText, Texts
from .tokens import EOS, RunningTokenizer, Tokens, escaped, is_measured

_MOST_TOKENS = 2**24
_TOKENS_PER_BYTE = 32
_BYTES_PER_TOKEN = 2**16
_LONGEST_RUN = 1000
"""Characters."""
_LONG_RUN = re.compile(rf"(\S{{{_LONGEST_RUN}}})")
DEFAULT_SIZE = 8192
_SMALLEST = 257  # every byte, and the end of a document
_ENDS = (EOS, "<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>", "[EOS]", "[SEP]")
LARGEST = 2**26
"""Bytes of a tokenizer.json; that of 262,144 tokens has half as many."""


def library() -> Any:
    """The module. Raises `DataError` if it is not installed."""
    try:
        import tokenizers
    except ImportError:
        raise DataError(
            "--dataset bpe: needs Hugging Face tokenizers: pip install tokenizers"
        ) from None
    return tokenizers


@contextmanager
def _calling(error_of: Callable[[str], Exception]) -> Iterator[None]:
    """Errors of the library, which have no class in common, as that which `error_of` makes of the
    reason. What it prints of them is dropped."""
    try:
        with _without_stderr():
            yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic is no Exception
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise error_of(why[:300]) from None


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Inside, what the process prints there is dropped."""
    try:
        ours = os.dup(2)
    except OSError:  # it is closed already
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
        os.close(nowhere)


def joined(parts: Iterable[tuple[str, Tokens]]) -> Tokens:
    """The tokens of a text, of its parts and the tokens of each."""
    ids = [np.zeros(0, dtype=np.uint32)]
    ends = [np.zeros(0, dtype=np.int64)]
    begin = 0
    for part, one in parts:
        ids.append(one.ids)
        ends.append(begin + one.ends)
        begin += len(part)
    return Tokens(np.concatenate(ids), np.concatenate(ends))


def _unread(why: str) -> ValueError:
    return ValueError(f"no tokenizer.json that tokenizers can read ({why})")


def _refused(why: str) -> DataError:
    return DataError(f"tokenizer.json: {why}; give another, or another text")


def tokenizer_content(path: Path) -> bytes:
    """The content of a tokenizer.json. Raises `DataError` if it is too large for one, `OSError` if
    it cannot be read."""
    content = typed_content(path, LARGEST + 1)
    if len(content) > LARGEST:
        raise DataError(
            f"{path}: is larger than {LARGEST >> 20} MiB, and no tokenizer is; use another copy"
        )
    return content


class Subwords(RunningTokenizer):
    """The tokens of a tokenizer.json. A document ends with the tokenizer's token for that, if it
    has one. Raises `ValueError` if `content` is no tokenizer.json."""

    unit = "subwords"
    batch_bytes = 1 << 21
    recognises_special: ClassVar[bool] = False
    """Special tokens may stand in a text; else their names are text."""

    def __init__(self, content: str) -> None:
        if len(content) > LARGEST:
            raise ValueError(f"a tokenizer.json that is larger than {LARGEST >> 20} MiB")
        self.content = content
        tokenizer = library().Tokenizer
        with _calling(_unread):
            self._library = tokenizer.from_str(content)
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = not self.recognises_special
        super().__init__(self._names())
        added = self._library.get_added_tokens_decoder().values()
        special = [token.content for token in added if token.special and token.content]
        self._special = None
        if special:
            longest_first = sorted(special, key=len, reverse=True)
            self._special = re.compile("|".join(map(re.escape, longest_first)))
        self.end_id = next((self.index[name] for name in _ENDS if name in self.index), None)

    def _names(self) -> list[str]:
        """The tokens, by id."""
        ids = self._library.get_vocab(with_added_tokens=True).values()
        n_token = 1 + max(ids, default=-1)
        if n_token > min(_MOST_TOKENS, 2 * len(ids) + 2**16):
            raise ValueError(f"its {len(ids)} tokens have ids up to {n_token - 1}")
        names = map(self._library.id_to_token, range(n_token))
        return [f"<no token {i}>" if name is None else name for i, name in enumerate(names)]

    @classmethod
    def trained(cls, texts: Iterable[bytes], size: int) -> "Subwords":
        """A byte-level BPE of `size` tokens, every byte and `<eos>` among them; fewer if the text
        is too small."""
        if size < _SMALLEST:
            raise DataError(
                f"--vocab_size {size}: must be at least {_SMALLEST}, every byte and {EOS}"
            )
        tokenizers = library()
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=size, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(_without_long_runs(map(text_of, texts)), trainer)
        return cls(tokenizer.to_str())

    @classmethod
    def read(cls, path: Path, *, special_tokens: bool = False) -> "Subwords":
        """The tokenizer of a file. Raises `DataError` if it is missing or damaged.

        Args:
            special_tokens: names of special tokens in a text are these tokens."""
        with reading(path):
            try:
                content = tokenizer_content(path).decode()
                if special_tokens:
                    content = _with_plain_tokens(content)
                return cls(content)
            except DataError:
                raise
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                why = str(error).splitlines()[0]
                raise DataError(f"--tokenizer {path}: {why}; give a whole file") from None

    @classmethod
    def from_files(cls, read: Callable[[str], str]) -> Self:
        return cls(read("tokenizer.json"))

    @property
    def eos_id(self) -> int:
        """The end of a document, or a line break, or the first token."""
        if self.end_id is not None:
            return self.end_id
        return next(iter(self.encode("\n").ids.tolist()), 0)

    def files(self) -> dict[str, str]:
        return {"vocab.txt": escaped(self.words), "tokenizer.json": self.content}

    def fingerprint(self) -> str:
        canonical = json.dumps(json.loads(self.content), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def encode(self, text: str) -> Tokens:
        texts = [part.decode() for part in parts_of(text.encode("utf-8", "replace"))]
        return joined(zip(texts, self._tokens(texts, with_ends=True), strict=True))

    def encode_batch(self, documents: Sequence[Document]) -> list[Tokens]:
        with_ends = is_measured(documents)
        texts = [text_of(document.text) for document in documents]
        found = self._tokens(texts, with_ends=with_ends)
        for i, document in enumerate(documents):
            if document.ends and self.end_id is not None:
                ends = found[i].ends
                if with_ends:  # that token stands for nothing of the text
                    ends = np.append(ends, len(texts[i]))
                    ends[-2:] = len(texts[i])
                found[i] = Tokens(np.append(found[i].ids, np.uint32(self.end_id)), ends)
        return found

    def _tokens(self, texts: Sequence[str], *, with_ends: bool) -> list[Tokens]:
        """The tokens of each text. Raises `DataError` if there are many times as many as bytes."""
        encode = self._library.encode_batch_fast
        if with_ends:
            encode = self._library.encode_batch
        with _calling(_refused):
            encodings = encode(list(texts), add_special_tokens=False)
            n_byte = len("".join(texts).encode())
            n_token = sum(len(encoding.ids) for encoding in encodings)
            if n_token > _TOKENS_PER_BYTE * (n_byte + 32):
                raise ValueError(f"makes {n_token} tokens of {n_byte} bytes")
        found = []
        for encoding in encodings:
            one = Tokens(np.array(encoding.ids, dtype=np.uint32))
            if with_ends:
                ends = np.array([end for _, end in encoding.offsets], dtype=np.int64)
                one = one._replace(ends=ends)
            found.append(one)
        return found

    def special_in(self, text: str) -> dict[str, int]:
        if self._special is None:
            return {}
        return dict(Counter(self._special.findall(text)))

    def named_in(self, text: bytes) -> Mapping[str, int]:
        return self.special_in(text.decode())

    def text_of(self, ids: Sequence[int]) -> str:
        return self._spelled([i for i in ids if i != self.end_id])

    def _spelled(self, ids: Sequence[int]) -> str:
        """The text of ids. Raises `DataError` if it is many times as long."""
        with _calling(_refused):
            text = self._library.decode(list(ids), skip_special_tokens=False)
            if len(text) > _BYTES_PER_TOKEN * (len(ids) + 1):
                raise ValueError(f"makes {len(text)} characters of {len(ids)} tokens")
        return text


def _with_plain_tokens(content: str) -> str:
    """A tokenizer.json in which no added token is special: such are recognised in any text."""
    parts = json.loads(content)
    for token in parts["added_tokens"]:
        token["special"] = False
    return json.dumps(parts)


def _without_long_runs(texts: Iterable[str]) -> Iterator[str]:
    """The texts, cut where a run without white space is longer than `_LONGEST_RUN`: a merge goes
    through all of the words that it is in, which takes hours where a text is one word."""
    for text in texts:
        if max(map(len, text.split()), default=0) > _LONGEST_RUN:
            yield from filter(None, _LONG_RUN.split(text))
        else:
            yield text


def _given(texts: Texts) -> Subwords | None:
    """The tokenizer of --tokenizer."""
    path = texts.config.tokenizer
    special_tokens = texts.config.special_tokens
    if path is None:
        if special_tokens:
            raise DataError("--special_tokens: are those of a --tokenizer; name its tokenizer.json")
        return None
    return Subwords.read(Path(path), special_tokens=special_tokens)


def _trained(texts: Iterator[bytes], config: DataConfig) -> Subwords:
    return Subwords.trained(texts, config.vocab_size or DEFAULT_SIZE)


BPE = DataSet(AnyText, Subwords, ("train",), known=_given, trained=_trained)
