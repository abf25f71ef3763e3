"""A text as memory-mapped token files with a vocabulary. RAM does not grow with the corpus.

Stale or damaged token files are rewritten from the text.
"""

import hashlib
import logging
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from txl.files import sha256

from .byte_splits import byte_splits
from .config import BYTES, RUNNING, DataConfig
from .documents import SPLITS, documents_in, is_plain, prepared, rule_of
from .files import DataError, one_at_a_time, read_lines, read_record, reading, require_text, write_record
from .id_streams import document_offsets, id_range, open_checked, open_stream
from .pydoc_corpus import write_pydoc_corpus
from .recipes import RECIPES
from .running import Characters, Integers, RunningVocab
from .sentences import VOCABULARY, encoded_shards, read_vocabulary, shards_of
from .sources import CACHE, home_of, require_folder
from .spelling import pieces, sizes_of
from .subwords import DEFAULT_SIZE, Subwords
from .symbols import ALL_BYTES, Symbols
from .token_file import checked, fault, mapped_ids, read_header, write_tokens
from .vocabulary import EOS, UNK, SentenceVocab, Vocab
from .wikitext import article_starts
from .words import Block, Counted, encoded, n_word_token, with_words

VERSION = 2
_LOG = logging.getLogger(__name__)


class Corpus:
    """The splits of a data set as ids. Raises `DataError` if the text is missing, empty or not UTF-8.

    Args:
        vocab: None: counted on the text, or read from the cache.
        needed: splits that must be there, and are opened.
    """

    def __init__(self, config: DataConfig, vocab: Vocab | None = None, *, needed: Sequence[str] = ()) -> None:
        self.config = config
        self.recipe = RECIPES[config.dataset]
        if config.dataset not in (*BYTES, *RUNNING):
            require_folder(config.data, config.dataset)
        self._home = self.folder = home_of(config.data)
        self.cache = Path(config.cache_dir) if config.cache_dir else self._home / CACHE
        self.said = ""
        """How a text that is not in train.txt, valid.txt and test.txt was made into these, in `folder`."""
        self._fingerprints: dict[str, str] = {}
        self._splits: dict[str, np.ndarray] = {}
        with self._writing():
            if config.dataset == "pydoc" and not any(self._text(split).exists() for split in SPLITS):
                write_pydoc_corpus(self.folder)
            prepare = byte_splits if config.dataset in BYTES else prepared
            self._is_prepared = config.dataset in BYTES or (config.dataset in RUNNING and not is_plain(config.data))
            if self._is_prepared:
                self.folder, self.said = prepare(config, self.cache, self._digest)
            self.require_splits(*self.recipe.counted if vocab is None else (), *needed)
            self.vocab = vocab or self._load_vocab()
        if type(self.vocab) is not self.recipe.vocab:
            raise DataError(f"--dataset {config.dataset}: the model's vocabulary is another; give that of its training")
        for name in needed:
            self.split(name)

    @property
    def defines_vocabulary(self) -> bool:
        """True if the text that the vocabulary is made of is there."""
        files = [self.folder / VOCABULARY] if self.config.dataset == "lm1b" else map(self._text, self.recipe.counted)
        return all(path.is_file() for path in files)

    def split(self, name: str) -> np.ndarray:
        """The ids of a split, with an `<eos>` per line if it is read in words, memory-mapped and read-only."""
        if name not in self._splits:
            with self._writing():
                self._splits[name] = self._open(name)
        return self._splits[name]

    def sizes(self, name: str) -> dict[str, np.ndarray]:
        """Words, characters, bytes, ... of each token of a split, (N,) each; see `sizes_of`. Reads the text.

        A token includes the white space before it, and `<eos>` the rest of the line, so that characters and bytes sum
        to those of the file.
        """
        if isinstance(self.vocab, Integers):
            nothing_N = np.zeros(len(self.split(name)), dtype=np.int64)
            return {**dict.fromkeys(("lines", "characters", "bytes", "unknown"), nothing_N), "words": nothing_N + 1}
        if isinstance(self.vocab, RunningVocab):
            texts = (document.decode(errors="surrogateescape") for document in self.documents(name))
            parts = [self.vocab.sizes(text, self.vocab.tokens(text)) for text in texts]
            n_end = 0 if self.vocab.end_id is None else 1  # stands for nothing of the text
            return {what: np.concatenate([np.pad(part[what], (0, n_end)) for part in parts]) for what in parts[0]}
        lines = read_lines(self._text(name), task="measuring")
        written = (piece for line in lines for piece in pieces(line, line.split()))
        if not isinstance(self.vocab, SentenceVocab):
            return sizes_of(written, self.split(name), self.vocab)
        sizes = sizes_of(written, self.split(name)[1:], self.vocab)
        return {what: np.append(0, each_N) for what, each_N in sizes.items()}  # the first <S> stands before the text

    def documents(self, name: str) -> Iterator[bytes]:
        """The documents of a split, in order."""
        path = self._text(name)
        if not self._is_prepared:
            require_text(path)
            yield from documents_in(path, self.config, rule_of(self.config, [path])[0])
            return
        offsets = np.load(self.folder / f"{name}.documents.npy")
        with path.open("rb") as file:
            for n_byte in np.diff(offsets).tolist():
                yield file.read(n_byte)

    def file_starts(self, name: str) -> list[int]:
        """Indices into the ids of a split where its files begin."""
        self.split(name)
        return (read_header(self._token_path(name), self._made_from(name, self.vocab)) or {}).get("starts", [0])

    def document_starts(self, name: str) -> np.ndarray:
        """Indices into the ids of a split where documents begin. Raises `DataError` if the text names none."""
        if isinstance(self.vocab, Integers):
            return document_offsets(self._text(name), len(self.split(name)))
        if isinstance(self.vocab, SentenceVocab):
            return np.flatnonzero(self.split(name)[:-1] == self.vocab.eos_id) + 1  # after each <S>
        if self.config.dataset in BYTES:
            raise DataError(f"--reset document: {self.config.dataset} is one text without documents; leave it out")
        if isinstance(self.vocab, RunningVocab):
            if self.vocab.end_id is not None:
                return np.append(0, np.flatnonzero(self.split(name) == self.vocab.end_id)[:-1] + 1)
            lengths = [len(ids) for ids in self.vocab.encoded(self.documents(name))]
        elif self._is_prepared or self.config.documents not in ("auto", "heading"):
            lengths = [n_word_token(text) for text in map(bytes.decode, self.documents(name))]
        else:
            return article_starts(self.split(name), self.vocab)
        return np.cumsum([0, *lengths[:-1]])

    def _open(self, name: str) -> np.ndarray:
        text = self._text(name)
        if isinstance(self.vocab, Integers):
            return open_checked(self.cache, text, len(self.vocab))
        path, fingerprint = self._token_path(name), self._made_from(name, self.vocab)
        header = self._header(path, fingerprint)
        if header is None:
            starts: list[int] = []
            header = self._write(name, self._blocks(name, starts), self.vocab, starts)
        n_unknown, n_eos, n_token = header["n_unknown"], header["n_eos"], header["n_token"]
        if n_unknown:
            _LOG.warning(
                "%s: %d of %d words are not in the vocabulary and are read as %s", text, n_unknown, n_token, UNK
            )
        if n_eos:
            _LOG.warning("%s: %d of %d words are %s itself and are read as line ends", text, n_eos, n_token, EOS)
        return mapped_ids(path, header)

    def _made_from(self, name: str, vocab: Vocab) -> dict[str, Any]:
        """What the token file of a split is made from."""
        made = {"version": VERSION, "text": self.fingerprint(name), "vocabulary": vocab.fingerprint()}
        ends_documents = isinstance(vocab, Subwords)
        return {**made, "documents": self.config.documents} if ends_documents and not self._is_prepared else made

    def _blocks(self, name: str, starts: list[int]) -> Iterator[Block]:
        """The ids of a split; where its files begin is appended to `starts`, if there are several."""
        if isinstance(self.vocab, SentenceVocab):
            yield from encoded_shards(self._texts(name), self.vocab, starts)
            return
        if not isinstance(self.vocab, RunningVocab):
            yield from encoded(self._text(name), self.vocab)
            return
        unk = self.vocab.index.get(UNK, -1) if isinstance(self.vocab, Characters) else -1
        for ids in self.vocab.encoded(self.documents(name)):
            yield Block(ids, int((ids == unk).sum()))

    def fingerprint(self, name: str) -> str:
        """Hex digest of the text of a split."""
        if name not in self._fingerprints:
            self.require_splits(name)
            one, *more = map(self._digest, self._texts(name))
            self._fingerprints[name] = hashlib.sha256("".join([one, *more]).encode()).hexdigest() if more else one
        return self._fingerprints[name]

    def _digest(self, path: Path) -> str:
        with reading(path):
            return checked(self.cache, path, lambda: sha256(path))

    def _header(self, path: Path, fingerprint: dict[str, Any]) -> dict[str, Any] | None:
        """The header of a token file, or None if it is missing, damaged or made from something else."""
        header = read_header(path, fingerprint)
        if header is None or checked(self.cache, path, lambda: fault(path, header, len(self.vocab))):
            return None
        return header

    def require_splits(self, *names: str) -> None:
        """Raise `DataError` unless the text of all these splits is there."""
        for name in names:
            if self.config.dataset == "ids":
                open_stream(self._text(name))
            else:
                for path in self._texts(name):
                    if self.said and not path.is_file():
                        advice = "give a file of it too, or one whose name is that of no split"
                        raise DataError(f"{self._home}: has no {name} text ({self.said}); {advice}")
                    require_text(path)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One process at a time; errors of writing become a `DataError` that names --cache_dir."""
        try:
            with one_at_a_time(self._home):
                yield
        except OSError as error:
            where = error.filename or self.cache
            advice = "make room, or name another folder with --cache_dir"
            raise DataError(f"{where}: {error.strerror or error}; {advice}") from error

    def _text(self, split: str) -> Path:
        return self.folder / f"{split}.{'npy' if self.config.dataset == 'ids' else 'txt'}"

    def _texts(self, split: str) -> list[Path]:
        return shards_of(self.folder, split) if self.config.dataset == "lm1b" else [self._text(split)]

    def _token_path(self, split: str) -> Path:
        folder = self.folder if self._is_prepared else self.cache
        return folder / f"{self.config.dataset}.{split}.tokens"

    def _load_vocab(self) -> Vocab:
        config = self.config
        if config.dataset == "bytes":
            return Symbols(ALL_BYTES)
        if config.dataset == "ids":
            there = [text for text in map(self._text, SPLITS) if text.is_file()]
            n_token = config.vocab_size or 1 + max(id_range(self.cache, text)[1] for text in there)
            return Integers(list(map(str, range(n_token))))
        if config.dataset == "lm1b":
            return read_vocabulary(self.folder)
        if config.tokenizer is not None:
            return Subwords.read(Path(config.tokenizer))
        fingerprint = {
            "version": VERSION,
            "texts": [self.fingerprint(split) for split in self.recipe.counted],
            "special": list(self.recipe.special),
            "min_freq": config.min_freq,
            "max_size": config.max_size,
            **({"vocab_size": config.vocab_size} if config.dataset == "bpe" else {}),
        }
        path = self._token_path("vocab").with_suffix(".json")
        saved = read_record(path)
        with suppress(ValueError, KeyError, TypeError):  # what is damaged is made anew
            if saved["fingerprint"] == fingerprint:
                vocab = self.recipe.vocab(saved["words"])
                if vocab.fingerprint() == saved["checksum"]:
                    return vocab
        if path.is_file():
            _LOG.warning("%s: stale or damaged, rewritten", path)
        vocab, words = self._new_vocab()
        write_record(path, {"fingerprint": fingerprint, "checksum": vocab.fingerprint(), "words": words})
        return vocab

    def _new_vocab(self) -> tuple[Vocab, object]:
        """The vocabulary of the counted splits, and what the cache keeps of it."""
        kind = self.recipe.vocab
        if issubclass(kind, Characters | Symbols):
            symbols = kind.of(text for split in self.recipe.counted for text in self.documents(split))
            return symbols, symbols.words
        if self.config.dataset == "bpe":
            subwords = Subwords.trained(self.documents("train"), self.config.vocab_size or DEFAULT_SIZE)
            return subwords, subwords.content
        words = self._counted()
        return words, words.words

    def _counted(self) -> Vocab:
        """The vocabulary of words. Writes the token files of the counted splits too, whose text is read only once."""
        counted, n_eos = Counted(), {}
        with ExitStack() as stack:
            self.cache.mkdir(parents=True, exist_ok=True)
            files = {
                split: stack.enter_context(tempfile.TemporaryFile(dir=self.cache)) for split in self.recipe.counted
            }
            for split, file in files.items():
                n_eos[split] = counted.add(self._text(split), file)
            limits = {"min_freq": self.config.min_freq, "max_size": self.config.max_size}
            vocab = self.recipe.vocab.build(counted.counts(sum(n_eos.values())), special=self.recipe.special, **limits)
            for split, file in files.items():
                file.seek(0)
                self._write(split, counted.encoded(file, vocab, n_eos[split]), vocab)
        return vocab

    def _write(self, name: str, blocks: Iterable[Block], vocab: Vocab, starts: Sequence[int] = ()) -> dict[str, Any]:
        path, text = self._token_path(name), self._text(name)
        if path.is_file():
            _LOG.warning("%s: stale or damaged, rewritten", path)
        blocks = with_words(blocks, text, vocab.eos_id)
        return write_tokens(path, self._made_from(name, vocab), len(vocab), blocks, starts)
