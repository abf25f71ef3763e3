"""Subwords: a tokenizer.json of Hugging Face tokenizers, trained here or brought along."""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..file_formats import parts_of
from ..raw_text import DataError, reading, text_of
from ..sizes import sizes_of
from .base import EOS, Batch, Block, Encoded
from .running import RunningTokenizer, escaped

DEFAULT_SIZE = 8192
_SMALLEST = 257  # every byte, and the end of a document
_ENDS = (EOS, "<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>", "[EOS]", "[SEP]")


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise DataError("--dataset bpe: needs Hugging Face tokenizers: pip install tokenizers") from None
    return tokenizers


class Subwords(RunningTokenizer):
    """The tokens of a tokenizer.json. A document ends with the tokenizer's token for that, if it has one. Raises
    `ValueError` if `content` is no tokenizer.json."""

    batch_bytes = 1 << 21

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
        special = [one.content for one in self.tokenizer.get_added_tokens_decoder().values() if one.special]
        longest_first = sorted(filter(None, special), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self.end_id = next((self.index[name] for name in _ENDS if name in self.index), None)

    @classmethod
    def trained(cls, pieces: Iterable[bytes], size: int) -> "Subwords":
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
        tokenizer.train_from_iterator(map(text_of, pieces), trainer)
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

    @classmethod
    def from_files(cls, read: Callable[[str], str]) -> Self:
        return cls(read("tokenizer.json"))

    @property
    def eos_id(self) -> int:
        """The end of a document, or a line break, or the first token."""
        if self.end_id is not None:
            return self.end_id
        return next(iter(self.tokenizer.encode("\n", add_special_tokens=False).ids), 0)

    def files(self) -> dict[str, str]:
        return {"vocab.txt": escaped(self.words), "tokenizer.json": self.content}

    def fingerprint(self) -> str:
        canonical = json.dumps(json.loads(self.content), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def encode(self, text: str) -> Encoded:
        ids, ends, begin = [], [], 0
        for piece in map(bytes.decode, parts_of(text.encode("utf-8", "replace"))):
            found = self.tokenizer.encode(piece, add_special_tokens=False)
            ids += found.ids
            ends += [begin + end for _, end in found.offsets]
            begin += len(piece)
        return Encoded(np.array(ids, dtype=np.uint32), np.array(ends, dtype=np.int64))

    def special_in(self, text: str) -> dict[str, int]:
        return {} if self._special is None else dict(Counter(self._special.findall(text)))

    def text_of(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode([i for i in ids if i != self.end_id], skip_special_tokens=False)

    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        for batch in batches:
            yield self._block(batch)

    def _block(self, batch: Batch) -> Block:
        text = text_of(batch.content)  # its errors name a place in the whole
        borders = [0, *batch.ends, *([len(batch.content)] if len(batch.content) > max([0, *batch.ends]) else [])]
        documents = [batch.content[a:b] for a, b in itertools.pairwise(borders)]
        pieces = [(piece.decode(), i) for i, document in enumerate(documents) for piece in parts_of(document)]
        encode = self.tokenizer.encode_batch if batch.measured else self.tokenizer.encode_batch_fast
        found = encode([piece for piece, _ in pieces], add_special_tokens=False)
        end = [] if self.end_id is None else [self.end_id]
        ids: list[np.ndarray] = []
        sizes: list[np.ndarray] = []
        ends: list[int] = []
        n_token = 0
        for n, ((piece, i), one) in enumerate(zip(pieces, found, strict=True)):
            ends_document = i < len(batch.ends) and (n + 1 == len(pieces) or pieces[n + 1][1] != i)
            of_piece = np.array(one.ids + (end if ends_document else []), dtype=np.uint32)
            ids.append(of_piece)
            n_token += len(of_piece)
            if ends_document:
                ends.append(n_token)
            if batch.measured:
                measured = sizes_of(piece, np.array([b for _, b in one.offsets], dtype=np.int64))
                sizes.append(np.pad(measured, ((0, len(of_piece) - len(measured)), (0, 0))))
        joined = np.concatenate(ids) if ids else np.zeros(0, dtype=np.uint32)
        return Block(
            joined,
            np.array(ends, dtype=np.int64),
            sizes=np.concatenate(sizes) if sizes else None,
            special=self.special_in(text),
        )
