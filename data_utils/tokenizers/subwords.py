"""Subwords: a tokenizer.json of Hugging Face tokenizers, trained here or brought along."""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from txl.files import typed_content

from ..file_formats import parts_of
from ..raw_text import DataError, reading, text_of
from ..sizes import sizes_of
from .base import EOS, Batch, Block, Encoded
from .encoder import encoder_of, library
from .running import RunningTokenizer, escaped

DEFAULT_SIZE = 8192
_SMALLEST = 257  # every byte, and the end of a document
_ENDS = (EOS, "<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>", "[EOS]", "[SEP]")


class Subwords(RunningTokenizer):
    """The tokens of a tokenizer.json. A document ends with the tokenizer's token for that, if it has one. Raises
    `ValueError` if `content` is no tokenizer.json."""

    batch_bytes = 1 << 21

    def __init__(self, content: str) -> None:
        self.content, self.encoder = content, encoder_of(content)
        super().__init__(self.encoder.names())
        longest_first = sorted(filter(None, self.encoder.special()), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self.end_id = next((self.index[name] for name in _ENDS if name in self.index), None)

    @classmethod
    def trained(cls, pieces: Iterable[bytes], size: int) -> "Subwords":
        """A byte-level BPE of `size` tokens, every byte and `<eos>` among them; fewer if the text is too small."""
        if size < _SMALLEST:
            raise DataError(f"--vocab_size {size}: must be at least {_SMALLEST}, every byte and {EOS}")
        tokenizers = library()
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=size, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(map(text_of, pieces), trainer)
        return cls(tokenizer.to_str())

    @classmethod
    def read(cls, path: Path) -> "Subwords":
        """The tokenizer of a file. Raises `DataError` if it is missing or damaged."""
        with reading(path):
            try:
                return cls(typed_content(path).decode())
            except DataError:
                raise
            except (ValueError, RecursionError) as error:
                raise DataError(f"--tokenizer {path}: {str(error).splitlines()[0]}; give a whole file") from None

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
        found = self.encoder.encode(pieces, with_ends=True)
        ends = [begin + one.ends for begin, one in zip(begins, found, strict=False)]
        return Encoded(np.concatenate([one.ids for one in found]), np.concatenate(ends))

    def special_in(self, text: str) -> dict[str, int]:
        return {} if self._special is None else dict(Counter(self._special.findall(text)))

    def text_of(self, ids: Sequence[int]) -> str:
        return self.encoder.decode([i for i in ids if i != self.end_id])

    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        for batch in batches:
            yield self._block(batch)

    def _block(self, batch: Batch) -> Block:
        text = text_of(batch.content)  # its errors name a place in the whole
        borders = [0, *batch.ends, *([len(batch.content)] if len(batch.content) > max([0, *batch.ends]) else [])]
        documents = [batch.content[a:b] for a, b in itertools.pairwise(borders)]
        pieces = [(piece.decode(), i) for i, document in enumerate(documents) for piece in parts_of(document)]
        found = self.encoder.encode([piece for piece, _ in pieces], with_ends=batch.measured)
        end = np.array([] if self.end_id is None else [self.end_id], dtype=np.uint32)
        ids: list[np.ndarray] = []
        sizes: list[np.ndarray] = []
        ends: list[int] = []
        n_token = 0
        for n, ((piece, i), one) in enumerate(zip(pieces, found, strict=True)):
            ends_document = i < len(batch.ends) and (n + 1 == len(pieces) or pieces[n + 1][1] != i)
            of_piece = np.append(one.ids, end) if ends_document else one.ids
            ids.append(of_piece)
            n_token += len(of_piece)
            if ends_document:
                ends.append(n_token)
            if one.ends is not None:
                measured = sizes_of(piece, one.ends)
                sizes.append(np.pad(measured, ((0, len(of_piece) - len(measured)), (0, 0))))
        joined = np.concatenate(ids) if ids else np.zeros(0, dtype=np.uint32)
        return Block(
            joined,
            np.array(ends, dtype=np.int64),
            sizes=np.concatenate(sizes) if sizes else None,
            special=self.special_in(text),
        )
