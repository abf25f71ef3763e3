"""Sentences of One Billion Word: words with `<S>` at both ends of each sentence."""

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from .base import EOS, UNK, Batch, Block
from .words import Vocab


class SentenceVocab(Vocab):
    """The words of One Billion Word's vocabulary file: `<S>` stands between sentences and at the beginning of each
    file, `<UNK>` for unknown words. They are encoded from `<eos>` and `<unk>`, and decoded to them."""

    by_file = True
    _NAMES: ClassVar = {"<S>": EOS, "<UNK>": UNK}

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words)
        if missing := [there for there in self._NAMES if there not in self.index]:
            raise ValueError(f"has no {missing[0]}")
        self.index = {**{name: self.index[there] for there, name in self._NAMES.items()}, **self.index}

    def encode_batches(self, batches: Iterable[Batch]) -> Iterator[Block]:
        begins: list[bool] = []  # of the batches that are on their way

        def noted() -> Iterator[Batch]:
            for batch in batches:
                begins.append(batch.begins_file)
                yield batch

        for block in super().encode_batches(noted()):
            if begins.pop(0):
                sizes = None if block.sizes is None else np.insert(block.sizes, 0, 0, axis=0)
                ids = np.insert(block.ids, 0, self.eos_id)
                block = block._replace(ids=ids, ends=block.ends + 1, sizes=sizes)
            yield block

    def decode(self, ids: Iterable[int]) -> list[str]:
        return [self._NAMES.get(word, word) for word in super().decode(ids)]
