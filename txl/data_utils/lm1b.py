"""One Billion Word: its vocabulary, its files, and its sentences as streams."""

import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from .cache import Store
from .config import DataSet
from .documents import Document
from .download import SHARDS, VOCABULARY
from .errors import DataError
from .free_text import read_text
from .segments import Segment, TrainingSegment, as_tensor, draws_of
from .texts import Texts
from .tokens import EOS, UNK, Tokenizer, Tokens, Vocab, is_measured


class SentenceVocab(Vocab):
    """The words of One Billion Word's vocabulary file: `<S>` stands between sentences and at the
    beginning of each file, `<UNK>` for unknown words. They are encoded from `<eos>` and `<unk>`,
    and decoded to them."""

    _NAMES: ClassVar = {"<S>": EOS, "<UNK>": UNK}

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words)
        for word, name in self._NAMES.items():
            if word not in self.index:
                raise ValueError(f"has no {word}")
            self.index.setdefault(name, self.index[word])

    def encode_batch(self, documents: Sequence[Document]) -> list[Tokens]:
        found = super().encode_batch(documents)
        for i, document in enumerate(documents):
            if document.begins_file:
                ids = np.insert(found[i].ids, 0, self.eos_id)
                found[i] = found[i]._replace(ids=ids)
                if is_measured(documents):
                    found[i] = found[i]._replace(ends=np.insert(found[i].ends, 0, 0))
        return found

    def decode(self, ids: Iterable[int]) -> list[str]:
        return [self._NAMES.get(word, word) for word in super().decode(ids)]


_MOST_SHARDS = 256


class Shards(Texts):
    """A folder with the training text in train.txt or in many files, in the order of their names;
    valid.txt, test.txt. Each line is a document."""

    rule = "file"  # sentences are found by their ends

    def files(self, split: str) -> list[Path]:
        if split == "train":
            for pattern in SHARDS:
                if shards := sorted(self.home.glob(pattern)):
                    if len(shards) > _MOST_SHARDS:
                        what = f"{len(shards)} files; at most {_MOST_SHARDS} can be read"
                        raise DataError(f"{shards[0].parent}: {what}")
                    return shards
        return super().files(split)

    def fingerprint(self, split: str) -> str | None:
        digests = list(map(self.checks.digest, self.files(split)))
        if len(digests) == 1:
            return digests[0]
        return hashlib.sha256("".join(digests).encode()).hexdigest()

    def defines_vocabulary(self, counted: Sequence[str]) -> bool:
        return (self.home / VOCABULARY).is_file()

    def document_starts(self, split: str, store: Store, tokenizer: Tokenizer) -> np.ndarray:
        return np.flatnonzero(store.ids[:-1] == tokenizer.eos_id) + 1  # after each <S>


def read_vocabulary(folder: Path) -> SentenceVocab:
    """The first word of each line of the vocabulary file; a word that comes again is left out, as
    in the 2019 code. Raises `DataError` if the file is missing, has a blank line, or lacks <S> or
    <UNK>."""
    path = folder / VOCABULARY
    words: dict[str, None] = {}
    if not path.is_file():
        raise DataError(f"{path}: no such file; load it with: python -m data_utils.download lm1b")
    for n, line in enumerate(io.StringIO(read_text(str(path)), newline=""), 1):
        if not line.strip():
            raise DataError(f"{path}, line {n}: is blank; each line needs a word")
        words[line.split()[0]] = None
    try:
        return SentenceVocab(list(words))
    except ValueError as error:
        raise DataError(f"{path}: {error}; bring the file of the data set again") from None


class SentenceStream:
    """Sentences in random order, dealt to batch_size streams, and those cut into segments.

    As kimiyoung/transformer-xl's LMMultiFileIterator: in every epoch the order of the files and of
    the sentences of each is drawn anew. File by file, the first stream that needs text takes the
    next sentence, until one finds none left; what the others hold then is dropped. A resumed run
    can start at any segment of any epoch.

    Args:
        ids: the sentences; `eos_id` stands between them, and at the beginning and end of each file.
        files: indices where files begin.
        columns: the streams to yield, of all batch_size; None: all. Streams do not depend on which
            are asked for.
        by_sentence: the segments say how far each token is from the beginning of its sentence.
        shuffle: False: in the order of the text.
        seed: what the order is drawn from, together with the epoch.
    Raises:
        DataError: if the text is too short for so many streams.
    """

    def __init__(
        self,
        ids: np.ndarray,
        files: Sequence[int],
        *,
        eos_id: int,
        batch_size: int,
        tgt_len: int,
        ext_len: int = 0,
        columns: slice | None = None,
        by_sentence: bool = False,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        self.ids = ids
        self.files = [*files, len(ids)]
        self.eos_id = eos_id
        self.batch_size = batch_size
        self.tgt_len = tgt_len
        self.ext_len = ext_len
        self.columns = columns or slice(0, batch_size)
        self.by_sentence = by_sentence
        self.shuffle = shuffle
        self.seed = seed
        if next(self.epoch(1), None) is None:
            short = (
                f"the text of {len(ids)} tokens is too short for so many streams of --tgt_len "
                f"{tgt_len}"
            )
            raise DataError(f"--batch_size {batch_size}: {short}; lower one of them")

    def __len__(self) -> int:
        """About as many segments as an epoch has, at least."""
        return max(1, (len(self.ids) - len(self.files)) // (self.batch_size * self.tgt_len))

    def __iter__(self) -> Iterator[TrainingSegment]:
        return self.epoch(1)

    def epoch(self, epoch: int, *, first: int = 0) -> Iterator[TrainingSegment]:
        """The segments of an epoch, counted from 1, from segment `first` on."""
        return map(self._segment, self.places(epoch, first=first))

    def places(self, epoch: int, *, first: int = 0) -> Iterator[np.ndarray]:
        """Of each token that `epoch` yields, its index in the text and that of its sentence's
        first, (B, T, 2)."""
        draws = draws_of(epoch, self.seed)
        order = np.arange(len(self.files) - 1)
        if self.shuffle:
            draws.shuffle(order)
        n = 0
        n_before = -(-self.ext_len // self.tgt_len)  # segments before the first that it reads again
        for file in order.tolist():
            begin_S, end_S = self._sentences(file, draws)
            held_BT = np.zeros((self.batch_size, 0, 2), dtype=np.int64)
            for pieces in self._dealt(begin_S, end_S):
                if n >= first - n_before:
                    held_BT = np.concatenate([held_BT, self._indices(pieces)], axis=1)
                    held_BT = held_BT[:, -(self.ext_len + self.tgt_len) :]
                if n >= first:
                    yield held_BT[self.columns]
                n += 1

    def _sentences(self, file: int, draws: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the first token of each sentence of a file, in the order of the epoch, and of
        the last."""
        begin = self.files[file]
        end = self.files[file + 1]
        border_S = begin + np.flatnonzero(self.ids[begin:end] == self.eos_id)
        order_S = np.arange(len(border_S) - 1)
        if self.shuffle:
            draws.shuffle(order_S)
        return border_S[order_S], border_S[order_S + 1]

    def _dealt(
        self, begin_S: np.ndarray, end_S: np.ndarray
    ) -> Iterator[list[tuple[int, int, int]]]:
        """The segments of a file as pieces of sentences: of each its sentence's first token, its
        own and its length, row by row."""
        sentences = zip(begin_S.tolist(), end_S.tolist(), strict=True)
        now = [
            (0, 0, 0)
        ] * self.batch_size  # of each stream: the sentence, the next token of it, its end
        while True:
            pieces = []
            for b, (sentence, at, end) in enumerate(now):
                n_missing = self.tgt_len
                while n_missing:
                    if at >= end:
                        sentence, end = next(sentences, (-1, -1))
                        if sentence < 0:
                            return
                        at = sentence
                    n_new = min(end - at, n_missing)
                    pieces.append((sentence, at, n_new))
                    n_missing -= n_new
                    at += n_new
                now[b] = sentence, at, end
            yield pieces

    def _indices(self, pieces: list[tuple[int, int, int]]) -> np.ndarray:
        """Of each token of a segment its index in the text and that of its sentence's first, (B, T,
        2)."""
        sentence_P, at_P, n_P = np.array(pieces).T
        begin_P = np.cumsum(n_P) - n_P
        index_N = np.arange(self.batch_size * self.tgt_len) + np.repeat(at_P - begin_P, n_P)
        both_N2 = np.stack([index_N, np.repeat(sentence_P, n_P)], axis=1)
        return both_N2.reshape(self.batch_size, self.tgt_len, 2)

    def _segment(self, index_BT: np.ndarray) -> TrainingSegment:
        at_BT = index_BT[..., 0]
        input_BT = as_tensor(self.ids[at_BT])
        target_BT = as_tensor(self.ids[at_BT[:, -self.tgt_len :] + 1])
        if not self.by_sentence:
            return TrainingSegment(input_BT, target_BT)
        return TrainingSegment(input_BT, target_BT, as_tensor(at_BT - index_BT[..., 1]))


class SentenceRows:
    """The sentences of a text in its order, dealt to batch_size rows that an evaluation reads side
    by side.

    As kimiyoung/transformer-xl's LMShuffledIterator, which reads the valid and test splits of One
    Billion Word: the first row that needs text takes the next sentence, until one finds none left;
    what the others hold then is dropped.

    Args:
        ids: the sentences; `eos_id` stands between them, at the beginning and at the end.
        rows: those to yield, of all batch_size, in order; which text a row has does not depend on
            it.
    Attributes:
        first_B: index of each row's first token.
    Raises:
        DataError: if the text is too short for so many rows.
    """

    def __init__(
        self,
        ids: np.ndarray,
        *,
        eos_id: int,
        batch_size: int,
        tgt_len: int,
        ext_len: int,
        rows: Sequence[int],
    ) -> None:
        columns = slice(0, 0)
        if len(rows):
            columns = slice(rows[0], rows[-1] + 1)
        self._stream = SentenceStream(
            ids,
            [0],
            eos_id=eos_id,
            batch_size=batch_size,
            tgt_len=tgt_len,
            ext_len=ext_len,
            columns=columns,
            shuffle=False,
        )
        self.first_B = np.zeros(0, dtype=np.int64)
        if len(rows):
            self.first_B = next(self._places())[:, 0, 0]

    def __len__(self) -> int:
        if not len(self.first_B):
            return 0
        return len(self._stream)

    def __iter__(self) -> Iterator[Segment]:
        if len(self.first_B):
            for segment in self._stream:
                yield Segment(segment.input_BT, segment.target_BT)

    def sums(self, sizes: Mapping[str, np.ndarray]) -> Counter[str]:
        """Sums over all targets. `sizes` has a number for each token of the text, (N,), by name."""
        sums: Counter[str] = Counter()
        for index_BT in self._places():
            target_BT = index_BT[:, -self._stream.tgt_len :, 0] + 1
            for name, size_N in sizes.items():
                sums[name] += int(size_N[target_BT].sum())
        return sums

    def _places(self) -> Iterator[np.ndarray]:
        return self._stream.places(1)


LM1B = DataSet(
    Shards, SentenceVocab, known=lambda texts: read_vocabulary(texts.home), has_sentences=True
)
