"""Subwords: a tokenizer.json of Hugging Face tokenizers, trained here or brought along."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .files import DataError, reading
from .running import RunningVocab, Tokens
from .vocabulary import EOS

DEFAULT_SIZE = 8192
_SMALLEST = 257  # every byte, and the end of a document
_ENDS = (EOS, "<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>", "[EOS]", "[SEP]")
_PIECE = 1 << 20
_BATCH = 1 << 21
"""Characters that are encoded at a time: those of a document, and of all."""


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise DataError("--dataset bpe: needs Hugging Face tokenizers: pip install tokenizers") from None
    return tokenizers


class Subwords(RunningVocab):
    """The tokens of a tokenizer.json. A document ends with the tokenizer's token for that, if it has one. Raises
    `ValueError` if `content` is no tokenizer.json."""

    def __init__(self, content: str) -> None:
        self.content, library = content, _library()
        try:
            self.tokenizer = library.Tokenizer.from_str(content)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"no tokenizer.json that tokenizers can read ({error})") from None
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = True  # <eos> as written in a text is text
        n_token = 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        names = [self.tokenizer.id_to_token(i) for i in range(n_token)]
        super().__init__([f"<no token {i}>" if name is None else name for i, name in enumerate(names)])
        self.end_id = next((self.index[name] for name in _ENDS if name in self.index), None)

    @classmethod
    def trained(cls, documents: Iterable[bytes], size: int) -> "Subwords":
        """A byte-level BPE of `size` tokens, every byte and `<eos>` among them; fewer if the text is too small."""
        if size < _SMALLEST:
            raise DataError(f"--vocab_size {size}: must be at least {_SMALLEST}, every byte and {EOS}")
        library = _library()
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        alphabet = library.pre_tokenizers.ByteLevel.alphabet()
        trainer = library.trainers.BpeTrainer(
            vocab_size=size, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False
        )
        texts = (piece for document in documents for piece in _cut(document.decode()))
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer.to_str())

    @classmethod
    def read(cls, path: Path) -> "Subwords":
        """The tokenizer of a file. Raises `DataError` if it is missing or damaged."""
        with reading(path):
            try:
                return cls(path.read_text(encoding="utf-8"))
            except DataError:
                raise
            except ValueError as error:
                raise DataError(f"--tokenizer {path}: {str(error).splitlines()[0]}; give a whole file") from None

    @property
    def eos_id(self) -> int:
        """The end of a document, or a line break, or the first token."""
        if self.end_id is not None:
            return self.end_id
        return next(iter(self.tokenizer.encode("\n", add_special_tokens=False).ids), 0)

    def attachments(self) -> dict[str, str]:
        return {**super().attachments(), "tokenizer.json": self.content}

    def fingerprint(self) -> str:
        canonical = json.dumps(json.loads(self.content), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def tokens(self, text: str) -> Tokens:
        ids, ends, begin = [], [], 0
        for piece in _cut(text):
            found = self.tokenizer.encode(piece, add_special_tokens=False)
            ids += found.ids
            ends += [begin + end for _, end in found.offsets]
            begin += len(piece)
        return Tokens(np.array(ids, dtype=np.uint32), np.array(ends, dtype=np.int64))

    def text_of(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode([i for i in ids if i != self.end_id], skip_special_tokens=False)

    def encoded(self, documents: Iterable[bytes]) -> Iterator[np.ndarray]:
        """As `RunningVocab.encoded`, on all threads."""
        end = [] if self.end_id is None else [np.array([self.end_id], dtype=np.uint32)]
        parts: list[np.ndarray] = []
        for batch in _batches(document.decode() for document in documents):
            found = self.tokenizer.encode_batch_fast([piece for piece, _ in batch], add_special_tokens=False)
            for (_, is_last), one in zip(batch, found, strict=True):
                parts.append(np.array(one.ids, dtype=np.uint32))
                if is_last:
                    yield np.concatenate([*parts, *end])
                    parts = []


def _batches(texts: Iterable[str]) -> Iterator[list[tuple[str, bool]]]:
    """The pieces of texts, a few at a time; True: the last of its text."""
    batch: list[tuple[str, bool]] = []
    size = 0
    for text in texts:
        *pieces, last = _cut(text)
        for piece, is_last in [*((piece, False) for piece in pieces), (last, True)]:
            batch.append((piece, is_last))
            size += len(piece)
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _cut(text: str) -> list[str]:
    """A long text in pieces that end at a line end, or at a space where lines are long."""
    pieces, begin = [], 0
    while len(text) - begin > _PIECE:
        end = text.rfind("\n", begin, begin + _PIECE) + 1 or text.rfind(" ", begin, begin + _PIECE)
        end = end if end > begin else begin + _PIECE
        pieces.append(text[begin:end])
        begin = end
    return [*pieces, text[begin:]]
