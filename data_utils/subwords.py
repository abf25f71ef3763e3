"""Subwords: a tokenizer.json of Hugging Face tokenizers, trained here or brought along."""

import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from txl.files import typed_content

from .any_files import AnyText
from .datasets import DataConfig, DataSet
from .formats import parts_of
from .processes import Apart
from .raw_text import DataError, reading, text_of
from .texts import Texts
from .tokenizer import EOS, MEASURES, Batch, Block, Encoded, RunningTokenizer, escaped, sizes_of

_MOST_TOKENS = 2**24
_TOKENS_PER_BYTE = 32
_BYTES_PER_TOKEN = 2**16
_LONGEST_RUN = 1000
"""Characters."""
_LONG_RUN = re.compile(rf"(\S{{{_LONGEST_RUN}}})")
_SECONDS = 20
"""Of processor time for a call and for each megabyte of text; a slow tokenizer takes one for a
megabyte."""


def library() -> Any:
    """The module. Raises `DataError` if it is not installed."""
    try:
        import tokenizers
    except ImportError:
        raise DataError(
            "--dataset bpe: needs Hugging Face tokenizers: pip install tokenizers"
        ) from None
    return tokenizers


class Encoder:
    """A tokenizer.json in this process. Raises `ValueError` if it is none, or its ids are too
    large.

    Args:
        recognises_special: the name of a special token in a text is that token; else it is text.
    """

    def __init__(self, content: str, *, recognises_special: bool = False) -> None:
        try:
            self._tokenizer = library().Tokenizer.from_str(content)
        except DataError:
            raise
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"no tokenizer.json that tokenizers can read ({error})") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = not recognises_special

    def begins(self) -> list[int]:
        """The tokens that the post-processor puts before a text."""
        encoding = self._tokenizer.encode("a", add_special_tokens=True)
        ids: list[int] = []
        for i, is_added in zip(encoding.ids, encoding.special_tokens_mask, strict=True):
            if not is_added:
                break
            ids.append(i)
        return ids

    def names(self) -> list[str]:
        """The tokens, by id."""
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        n_token = 1 + max(ids, default=-1)
        if n_token > min(_MOST_TOKENS, 2 * len(ids) + 2**16):
            raise ValueError(f"its {len(ids)} tokens have ids up to {n_token - 1}")
        names = list(map(self._tokenizer.id_to_token, range(n_token)))
        for i, name in enumerate(names):
            if name is None:
                names[i] = f"<no token {i}>"
        return names

    def special(self) -> list[str]:
        """How the special tokens are written."""
        return [
            token.content
            for token in self._tokenizer.get_added_tokens_decoder().values()
            if token.special
        ]

    def encode(self, pieces: Sequence[str], with_ends: bool) -> list[Encoded]:
        """The tokens of each piece. Raises `ValueError` if they are many times as long as the
        text.

        Args:
            with_ends: else the tokens have no ends, which takes less time.
        """
        encode = self._tokenizer.encode_batch_fast
        if with_ends:
            encode = self._tokenizer.encode_batch
        encodings = encode(list(pieces), add_special_tokens=False)
        n_byte = len("".join(pieces).encode())
        n_token = sum(len(encoding.ids) for encoding in encodings)
        if n_token > _TOKENS_PER_BYTE * (n_byte + 32):
            raise ValueError(f"makes {n_token} tokens of {n_byte} bytes")
        encoded: list[Encoded] = []
        for encoding in encodings:
            ends: list[int] = []
            if with_ends:
                ends = [end for _, end in encoding.offsets]
            ids = np.array(encoding.ids, dtype=np.uint32)
            encoded.append(Encoded(ids, np.array(ends, dtype=np.int64)))
        return encoded

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids. Raises `ValueError` if it is many times as long."""
        text = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        if len(text) > _BYTES_PER_TOKEN * (len(ids) + 1):
            raise ValueError(f"makes {len(text)} characters of {len(ids)} tokens")
        return text


class EncoderApart(Encoder):
    """The same in a process of its own."""

    def __init__(self, content: str, *, recognises_special: bool = False) -> None:
        library()
        make = functools.partial(Encoder, content, recognises_special=recognises_special)
        self._apart = Apart(make, "tokenizer.json")

    def begins(self) -> list[int]:
        return self._called("begins", seconds=_SECONDS)

    def names(self) -> list[str]:
        return self._apart.call("names", seconds=_SECONDS)

    def special(self) -> list[str]:
        return self._apart.call("special", seconds=_SECONDS)

    def encode(self, pieces: Sequence[str], with_ends: bool) -> list[Encoded]:
        seconds = _SECONDS * (1 + sum(map(len, pieces)) // 10**6)
        return self._called("encode", list(pieces), with_ends, seconds=seconds)

    def decode(self, ids: Sequence[int]) -> str:
        return self._called("decode", list(ids), seconds=_SECONDS)

    def _called(self, method: str, *args: Any, seconds: int) -> Any:
        try:
            return self._apart.call(method, *args, seconds=seconds)
        except DataError:
            raise
        except ValueError as error:
            raise DataError(f"tokenizer.json: {error}; give another, or another text") from None


def encoder_of(content: str, *, recognises_special: bool = False) -> Encoder:
    """What encodes by a tokenizer.json. Raises `ValueError` if it is none."""
    if _is_plain(content):
        return Encoder(content, recognises_special=recognises_special)
    return EncoderApart(content, recognises_special=recognises_special)


def _is_plain(content: str) -> bool:
    """True for a byte-level BPE without rules of its own, as it is trained here."""
    try:
        parts = json.loads(content)
        model = parts["model"]
        types = [parts[name]["type"] for name in ("pre_tokenizer", "decoder", "model")]
        rules = parts.get("normalizer"), parts.get("post_processor"), model.get("unk_token")
        affixes = model.get("continuing_subword_prefix"), model.get("end_of_word_suffix")
        ids = list(model["vocab"].values())
        ids += [token["id"] for token in parts.get("added_tokens", ())]
        return (
            types == ["ByteLevel", "ByteLevel", "BPE"]
            and not any(rules)
            and not any(affixes)
            and all(isinstance(i, int) and i < 2 * len(ids) for i in ids)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


DEFAULT_SIZE = 8192
_SMALLEST = 257  # every byte, and the end of a document
_ENDS = (EOS, "<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>", "[EOS]", "[SEP]")


LARGEST = 2**26
"""Bytes of a tokenizer.json; that of 262,144 tokens has half as many."""


def tokenizer_content(path: Path) -> bytes:
    """The content of a tokenizer.json. Raises `DataError` if it is too large for one, `OSError` if
    it cannot be read.
    """
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
        self.encoder = encoder_of(content, recognises_special=self.recognises_special)
        super().__init__(self.encoder.names())
        longest_first = sorted(filter(None, self.encoder.special()), key=len, reverse=True)
        self._special = None
        if longest_first:
            self._special = re.compile("|".join(map(re.escape, longest_first)))
        self.end_id = next((self.index[name] for name in _ENDS if name in self.index), None)

    @classmethod
    def trained(cls, pieces: Iterable[bytes], size: int) -> "Subwords":
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
        tokenizer.train_from_iterator(_without_long_runs(map(text_of, pieces)), trainer)
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
                raise DataError(
                    f"--tokenizer {path}: {str(error).splitlines()[0]}; give a whole file"
                ) from None

    @classmethod
    def from_files(cls, read: Callable[[str], str]) -> Self:
        return cls(read("tokenizer.json"))

    @property
    def eos_id(self) -> int:
        """The end of a document, or a line break, or the first token."""
        if self.end_id is not None:
            return self.end_id
        (line_end,) = self.encoder.encode(["\n"], with_ends=False)
        return next(iter(line_end.ids.tolist()), 0)

    def files(self) -> dict[str, str]:
        return {"vocab.txt": escaped(self.words), "tokenizer.json": self.content}

    def fingerprint(self) -> str:
        canonical = json.dumps(json.loads(self.content), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def encode(self, text: str) -> Encoded:
        pieces = [part.decode() for part in parts_of(text.encode("utf-8", "replace"))]
        begins = np.cumsum([0, *map(len, pieces)])
        encoded = self.encoder.encode(pieces, with_ends=True)
        ids, ends_of_pieces = zip(*encoded, strict=True)
        ends = map(np.add, begins, ends_of_pieces)
        return Encoded(np.concatenate(ids), np.concatenate(list(ends)))

    def special_in(self, text: str) -> dict[str, int]:
        if self._special is None:
            return {}
        return dict(Counter(self._special.findall(text)))

    def text_of(self, ids: Sequence[int]) -> str:
        return self.encoder.decode([i for i in ids if i != self.end_id])

    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        for batch in batches:
            yield self._block(batch)

    def _block(self, batch: Batch) -> Block:
        text = text_of(batch.content)  # its errors name a place in the whole
        pieces: list[str] = []
        ends_document: list[bool] = []
        begin = 0
        for end in batch.ends:
            parts = parts_of(batch.content[begin:end])
            pieces += map(bytes.decode, parts)
            ends_document += [False] * (len(parts) - 1) + [True]
            begin = end
        if begin < len(batch.content):  # a document that goes on in the next batch
            parts = parts_of(batch.content[begin:])
            pieces += map(bytes.decode, parts)
            ends_document += [False] * len(parts)
        ids = [np.zeros(0, dtype=np.uint32)]
        ends: list[int] = []
        sizes: list[np.ndarray] = []
        n_token = 0
        encoded = self.encoder.encode(pieces, with_ends=batch.measured)
        for piece, tokens, is_last in zip(pieces, encoded, ends_document, strict=True):
            ids.append(tokens.ids)
            if batch.measured:
                sizes.append(sizes_of(piece, tokens.ends))
            if is_last and self.end_id is not None:
                ids.append(np.array([self.end_id], dtype=np.uint32))
                sizes.append(np.zeros((1, len(MEASURES)), dtype=np.uint32))
                n_token += 1
            n_token += len(tokens.ids)
            if is_last:
                ends.append(n_token)
        block = Block(np.concatenate(ids), np.array(ends, dtype=np.int64))
        if batch.measured and sizes:
            block = block._replace(sizes=np.concatenate(sizes))
        return block._replace(special=self.special_in(text))


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


def _trained(pieces: Iterator[bytes], config: DataConfig) -> Subwords:
    return Subwords.trained(pieces, config.vocab_size or DEFAULT_SIZE)


BPE = DataSet(AnyText, Subwords, ("train",), known=_given, trained=_trained)
