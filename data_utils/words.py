"""Words of a text as ids, fast: in each part of a text a word type is looked up once, the rest is numpy."""

import multiprocessing
import os
import signal
import sys
import warnings
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from .files import DataError, blocks_of, parts_of, read_lines, watched
from .vocabulary import EOS, UNK, Vocab

_N_PROCESS = 4
"""What one process can take from others without waiting."""


class Block(NamedTuple):
    """Consecutive ids of a text, how many of them stand for unknown words, and how many are `<eos>` as written."""

    ids: np.ndarray
    n_unknown: int = 0
    n_eos: int = 0


class _Numbers(dict[str, int]):
    """The number of each word in the order of first occurrence."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


class Part(NamedTuple):
    """A part of a text: the types in the order of first occurrence, the tokens as indices into them, and the number of
    words that are `<eos>` as written."""

    types: list[str]
    token_N: np.ndarray
    n_eos: int


def _number(part: tuple[Path, int, int]) -> Part:
    """The tokens of a part: its words, separated by white space in Python's sense, and `<eos>` for each line."""
    numbers, found, n_eos, text = _Numbers(), array("I"), 0, ""
    for text in blocks_of(*part):
        if EOS in text:
            n_eos += text.split().count(EOS)
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        found.extend(map(numbers.__getitem__, text.replace("\n", f" {EOS} ").split()))
    if not text.endswith("\n"):
        found.append(numbers[EOS])
    return Part(list(numbers), np.frombuffer(found, dtype=np.uint32), n_eos)


def _numbered(path: Path, *, task: str) -> Iterator[Part]:
    """The parts of a text, those of a long one numbered by several processes."""
    with watched(path, task) as bar, ExitStack() as stack:
        parts, run, at_a_time = parts_of(path), map, 1
        n_process = min(len(parts) // 2, _N_PROCESS, len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1)
        if n_process > 1:
            with warnings.catch_warnings():  # of threads, none of which a process of these needs
                warnings.simplefilter("ignore", DeprecationWarning)
                pool = stack.enter_context(multiprocessing.get_context("fork").Pool(n_process, _leave_signals))
            run, at_a_time = pool.imap, 4 * n_process  # more would pile up
        for i in range(0, len(parts), at_a_time):
            for (_, begin, end), found in zip(parts[i:], run(_number, parts[i : i + at_a_time]), strict=False):
                yield found
                bar.update(end - begin)


def _leave_signals() -> None:
    """In a process of a pool: leave Ctrl-C to the parent, and end at SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Counted:
    """Words of texts, counted. Their tokens are kept in a file, so that a text is read once."""

    def __init__(self) -> None:
        self._order: dict[str, int] = {}
        self._counts = np.zeros(0, dtype=np.int64)

    def add(self, path: Path, file: BinaryIO) -> int:
        """Count the words of a text, in the order of first occurrence, and write its tokens to `file`. Returns how many
        words are `<eos>` as written."""
        n_eos = 0
        for types, token_N, n_written in _numbered(path, task="counting"):
            place = self._order.setdefault
            place_V = np.fromiter((place(word, len(self._order)) for word in types), np.uint32, len(types))
            self._counts = np.append(self._counts, np.zeros(len(self._order) - len(self._counts), dtype=np.int64))
            self._counts[place_V] += np.bincount(token_N, minlength=len(types))
            place_V[token_N].tofile(file)
            n_eos += n_written
        return n_eos

    def counts(self, n_eos: int) -> Counter[str]:
        """How often each word occurs. Ends of lines do not count, only the `n_eos` that are words as written."""
        return Counter(dict(zip(self._order, self._counts.tolist(), strict=True)) | {EOS: n_eos})

    def encoded(self, file: BinaryIO, vocab: Vocab, n_eos: int) -> Iterator[Block]:
        """The tokens in `file` as ids."""
        ids = np.array(vocab.encode(self._order), dtype=np.uint32)
        is_unknown = np.array([word not in vocab for word in self._order])
        has_unknown = is_unknown.any()
        while len(token_N := np.fromfile(file, dtype=np.uint32, count=1 << 20)):
            yield Block(ids[token_N], int(is_unknown[token_N].sum()) if has_unknown else 0, n_eos)
            n_eos = 0


def encoded(path: Path, vocab: Vocab) -> Iterator[Block]:
    """The ids of a text; unknown words are `<unk>`. Raises `DataError` at an unknown word, with its line, if the
    vocabulary has no `<unk>`."""
    for types, token_N, n_eos in _numbered(path, task="tokenising"):
        unknown = [i for i, word in enumerate(types) if word not in vocab]
        if unknown and UNK not in vocab:
            raise _no_such_word(path, {types[i] for i in unknown})
        n_unknown = int(np.isin(token_N, unknown).sum()) if unknown else 0
        yield Block(np.array(vocab.encode(types), dtype=np.uint32)[token_N], n_unknown, n_eos)


def _no_such_word(path: Path, unknown: set[str]) -> DataError:
    lines = enumerate(read_lines(path, task="searching"), 1)
    n, word = next((n, word) for n, line in lines for word in line.split() if word in unknown)
    return DataError(
        f"{path}, line {n}: the word {word!r} is not in the vocabulary, which has no {UNK} to stand for it; use "
        f"--dataset text, where unknown words are allowed"
    )


def n_word_token(text: str) -> int:
    """The number of tokens of a text: its words and lines, which end at \\n, \\r and \\r\\n only."""
    n_end = text.count("\n") + text.count("\r") - text.count("\r\n")
    return len(text.split()) + n_end + bool(text and not text.endswith(("\n", "\r")))


def with_words(blocks: Iterable[Block], text: Path, eos_id: int) -> Iterator[Block]:
    """The blocks. Raises `DataError` if they hold nothing but ends of lines."""
    has_words = False
    for block in blocks:
        has_words = has_words or bool((block.ids != eos_id).any())
        yield block
    if not has_words:
        raise DataError(f"{text}: holds white space only; every split needs some words")
