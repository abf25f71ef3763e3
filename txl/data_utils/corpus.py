"""A text as memory-mapped ids with a vocabulary: files, documents, tokenizer, cache, each entered
once. RAM does not grow with the corpus."""

import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from txl.files import content_of

from .cache import (
    Checks,
    Store,
    Writer,
    draft_folder,
    keep,
    name_of,
    one_at_a_time,
    open_record,
    open_store,
)
from .config import DATA_SETS, DataConfig
from .documents import Document, whole
from .errors import DataError
from .remote import with_copies
from .sources import CACHE, home_of
from .tokens import (
    EOS,
    MEASURES,
    UNK,
    Counted,
    Encoder,
    Numbers,
    Tokenizer,
    UnknownWordError,
    read_as_text,
)

_LOG = logging.getLogger(__name__)
LONG_WORD = 12
"""Characters a word, spaces included; those of texts between spaces have half as many."""
MANY_UNKNOWN = 0.2
"""Share of the words of a split."""
_OTHER_TOKENS = "use --dataset bpe, or characters where words have no spaces between them"


class Corpus:
    """The splits of a data set as ids. Raises `DataError` if the text is missing, empty or not
    UTF-8.

    Args:
        vocab: None: made of the text, or read from the cache.
        needed: splits that must be there, and are opened.
    """

    def __init__(
        self, config: DataConfig, vocab: Tokenizer | None = None, *, needed: Sequence[str] = ()
    ) -> None:
        self.config = config
        self.kind = DATA_SETS[config.dataset]
        here = with_copies(config)
        self._home = home_of(here.data)
        self.cache = Path(config.cache_dir or self._home / CACHE)
        if config.cache_dir is None and self.cache.is_symlink():
            raise DataError(
                f"{self.cache}: a link; name the folder that it leads to with --cache_dir"
            )
        self._checks = Checks(self.cache)
        self._stores: dict[str, Store] = {}
        self._noticed: list[str] = []
        self._vocab_is_given = vocab is not None
        with self._writing():
            self.texts = self.kind.texts(here, self._checks)
            if vocab is None:
                self.require_splits(*self.kind.counted)
            self.require_splits(*needed)
            if vocab is not None and type(vocab) is not self.kind.tokenizer:
                what = "the model's vocabulary is another; give that of its training"
                raise DataError(f"--dataset {config.dataset}: {what}")
            self.vocab = (
                vocab
                or self.kind.known(self.texts)
                or self._kept_vocabulary()
                or self._new_vocabulary()
            )
            together = self.texts.together(())
            self._prepare(together)
            self.texts.describe({name: len(self._stores[name].starts) for name in together})
        for name in needed:
            self.split(name)

    @property
    def folder(self) -> Path:
        """The folder of the text."""
        return self.texts.home

    @property
    def note(self) -> str:
        """How a text that is not in train.txt, valid.txt and test.txt was split and read."""
        return self.texts.note

    @property
    def defines_vocabulary(self) -> bool:
        """True if the text that the vocabulary is made of is there."""
        return self.texts.defines_vocabulary(self.kind.counted)

    def split(self, name: str) -> np.ndarray:
        """The ids of a split, with an `<eos>` per line if it is read in words, memory-mapped and
        read-only."""
        return self._store(name).ids

    def sizes(self, name: str) -> dict[str, np.ndarray]:
        """Words, lines, characters, bytes and `<unk>` that each token of valid or test counts for,
        (N,) each.

        A token includes the white space before it, and a line end the rest of the line, so that
        characters and bytes sum to those of the documents. Of an id that somebody else made none is
        known.
        """
        store = self._store(name)
        if len(store.sizes):
            return self.vocab.sizes_by_name(store.sizes, store.ids)
        nothing_N = np.zeros(len(store.ids), dtype=np.int64)
        return {**dict.fromkeys(MEASURES, nothing_N), "unknown": nothing_N > 0}

    def documents(self, name: str) -> Iterator[bytes]:
        """The documents of a split, in order, from its files."""
        return whole(self._documents([name]))

    def file_starts(self, name: str) -> list[int]:
        """Indices into the ids of a split where its files begin."""
        return self._store(name).files.tolist() or [0]

    def document_starts(self, name: str) -> np.ndarray:
        """Indices into the ids of a split where documents begin. Raises `DataError` if the text
        names none."""
        return np.asarray(self.texts.document_starts(name, self._store(name), self.vocab))

    def fingerprint(self, name: str) -> str:
        """Hex digest of the text of a split."""
        self.require_splits(name)
        return self.texts.fingerprint(name) or self._store(name).text

    def is_held_out_of(self, fingerprint: str) -> bool:
        """True unless valid or test is held out of another training text than this one."""
        return not self.texts.dealt or self._stores["train"].text == fingerprint

    def held_out(self) -> tuple[str, ...]:
        """Those of valid and test that are there. Raises `DataError` if none is."""
        splits = tuple(name for name in ("valid", "test") if self.texts.is_there(name))
        if not splits:
            self.require_splits("valid")
        return splits

    def require_splits(self, *names: str) -> None:
        """Raise `DataError` unless the text of all these splits is there."""
        for name in names:
            self.texts.require(name)

    def _store(self, name: str) -> Store:
        if name not in self._stores:
            with self._writing():
                self._prepare([name])
        self._notice(name)
        return self._stores[name]

    def _prepare(self, splits: Sequence[str]) -> None:
        """Open the stores of splits; those that are absent are made first, in one pass over their
        files."""
        self.require_splits(*splits)
        absent = list(itertools.filterfalse(self._open, splits))
        if absent:
            self._write(absent, self.vocab)
            for name in absent:
                self._open(name)

    def _open(self, name: str) -> bool:
        """Open the store of a split; False if it is absent."""
        if name not in self._stores:
            n_token = len(self.vocab)
            store = self.texts.ready(name, n_token) or open_store(
                self._folder(name, self.vocab), self._checks, n_token
            )
            if store is None:
                return False
            self._stores[name] = store
        return True

    def _notice(self, name: str) -> None:
        """Say once what a user should know of a split that is read."""
        if name in self._noticed:
            return
        self._noticed.append(name)
        store = self._stores[name]
        text = self.texts.name(name)
        n_token = len(store.ids)
        if n_unknown := store.n_unknown:
            notice = "%s: %d of %d %s are not in the vocabulary and are read as %s"
            if n_unknown > MANY_UNKNOWN * n_token:
                notice += f"; these are many, and figures say little: {_OTHER_TOKENS}"
            _LOG.warning(notice, text, n_unknown, n_token, self.vocab.unit, UNK)
        if self.vocab.is_of_words and len(store.sizes):
            n_word, _, n_character, _ = store.sizes.sum(axis=0).tolist()
            if n_character > LONG_WORD * n_word:
                notice = "%s: has %d words of %.0f characters on average, hardly any spaces; %s"
                length = n_character / max(1, n_word)
                _LOG.warning(notice, text, n_word, length, "use --dataset characters")
        if store.named and self.vocab.is_of_words:
            notice = "%s: %d of %d words are %s itself and are read as line ends"
            _LOG.warning(notice, text, store.named[EOS], n_token, EOS)
        elif store.named:
            _LOG.warning("%s: %s", text, read_as_text(store.named))
        for held in ("valid", "test"):
            if name in ("train", held) and {"train", held} <= set(self._noticed):
                self._warn_of_copies(held)

    def _warn_of_copies(self, held: str) -> None:
        """Say how many documents of a held-out split also stand in train."""
        known = self._stores["train"].places
        places = self._stores[held].places
        if not len(known) or not len(places):
            return
        at = np.minimum(np.searchsorted(known, places), len(known) - 1)
        if n_copy := int((known[at] == places).sum()):
            notice = "%s: %d of its %d documents also stand in train: figures of it are too good"
            _LOG.warning(notice, self.texts.name(held), n_copy, len(places))

    def _folder(self, name: str, tokenizer: Tokenizer) -> Path:
        """The folder of a store, whose name says what it is made from."""
        made_from = [self._of_text(name), tokenizer.fingerprint()]
        return self.cache / name_of(f"{self.config.dataset}-{name}", made_from)

    def _of_text(self, name: str) -> list[Any]:
        digests = list(map(self._checks.digest, self.texts.files(name)))
        return [digests, self.texts.settings(name)]

    def _state(self, name: str) -> list[Any]:
        """What a change of a split's files changes, be it undone before the end."""
        of_text = self._of_text(name)  # which names a file that is not there
        states = map(Path.stat, self.texts.files(name))
        return [of_text, *((state.st_size, state.st_mtime_ns) for state in states)]

    @contextmanager
    def _unchanged(self, splits: Sequence[str]) -> Iterator[None]:
        """Raise `DataError` if files of these splits change meanwhile: what was read has another
        text's name then."""
        states = {name: self._state(name) for name in splits}
        yield
        self._checks.forget_young()
        for name in splits:
            if self._state(name) != states[name]:
                raise self.texts.changed(name)

    def _vocabulary_folder(self) -> Path:
        config = self.config
        limits = [self.kind.special, config.min_freq, config.max_size, config.vocab_size]
        made_from = [list(map(self._of_text, self.kind.counted)), limits]
        return self.cache / name_of(f"{config.dataset}-vocabulary", made_from)

    def _kept_vocabulary(self) -> Tokenizer | None:
        folder = self._vocabulary_folder()
        if open_record(folder, self._checks) is None:
            return None
        try:
            return self.kind.tokenizer.from_files(lambda name: content_of(folder / name).decode())
        except (ValueError, OSError):  # changed on purpose, or not all of it is there
            return None

    def _new_vocabulary(self) -> Tokenizer:
        """The tokenizer of the counted splits. Where symbols are counted, the splits are written
        too, as their text is read only once."""
        if self.kind.trained is None:
            assert issubclass(self.kind.tokenizer, Counted)
            counted = list(dict.fromkeys([*self.kind.counted, *self.texts.together(())]))
            return self._write(counted, self.kind.tokenizer.numbers(self.kind.tokenizer))
        texts = (document.text for document in self._documents(self.kind.counted))
        try:
            with self._unchanged(self.kind.counted):
                tokenizer = self.kind.trained(texts, self.config)
        except UnicodeDecodeError:
            raise self.texts.fault(self.kind.counted) from None
        with draft_folder(self.cache) as draft:
            self._keep_vocabulary(draft, tokenizer)
        return tokenizer

    def _documents(self, splits: Sequence[str]) -> Iterator[Document]:
        """The documents of these splits, without those of others that are read with them."""
        for document in self.texts.documents(splits):
            if document.split in splits:
                yield document

    def _keep_vocabulary(self, draft: Path, tokenizer: Tokenizer) -> None:
        folder = draft / "vocabulary"
        folder.mkdir()
        for name, content in tokenizer.files().items():
            (folder / name).write_bytes(content.encode())
        keep(folder, self._vocabulary_folder(), {})

    def _write(self, splits: Sequence[str], encoder: Tokenizer | Numbers) -> Tokenizer:
        """Write the stores of splits in one pass over their files, all or none; the tokenizer,
        which is made of the counted splits if `encoder` numbers symbols."""
        n_token = None
        if isinstance(encoder, Tokenizer):
            n_token = len(encoder)
        with draft_folder(self.cache) as draft, ExitStack() as stack:
            writers: dict[str, Writer] = {}
            for name in splits:
                writer = Writer(draft / name, n_token, measured=name != "train")
                writers[name] = stack.enter_context(writer)
            with self._unchanged(splits):
                self._encode(encoder, writers)
            self.texts.describe({name: writer.n_document for name, writer in writers.items()})
            if isinstance(encoder, Tokenizer):
                tokenizer = encoder
            else:
                tokenizer = self._translated(writers, encoder)
            for name, writer in writers.items():
                if tokenizer.is_of_words and writer.holds_only(tokenizer.eos_id):
                    what = "holds white space only; every split needs some words"
                    raise DataError(f"{self.texts.name(name)}: {what}")
            if not isinstance(encoder, Tokenizer):
                self._keep_vocabulary(draft, tokenizer)
            for name, writer in writers.items():
                record = writer.finish()
                keep(writer.folder, self._folder(name, tokenizer), record)
        return tokenizer

    def _encode(self, encoder: Encoder, writers: dict[str, Writer]) -> None:
        """Give the tokens of all documents to the writers of their splits."""
        splits = list(writers)
        try:
            for documents, tokens in encoder.encode_documents(self._documents(splits)):
                writers[documents[0].split].add(encoder, documents, tokens)
        except UnicodeDecodeError:
            raise self.texts.fault(splits) from None
        except UnknownWordError as error:
            raise self._no_such_word(splits, error.words) from None

    def _translated(self, writers: dict[str, Writer], numbers: Numbers) -> Tokenizer:
        """The tokenizer of what was counted; the numbers become its ids."""
        config = self.config
        special = self.kind.special
        if config.min_freq or config.max_size is not None:
            special = (*special, UNK)  # for the words that are left out
        counts: Counter[str] = Counter()
        n_eos = 0
        for name in self.kind.counted:
            names = numbers.names(name)
            counts.update(dict(zip(names, writers[name].counts(len(names)).tolist(), strict=True)))
            n_eos += writers[name].named[EOS]
        if numbers.is_of_words:
            counts[EOS] = n_eos  # ends of lines do not count, only words that are written so
        limits = {"special": special, "min_freq": config.min_freq, "max_size": config.max_size}
        tokenizer = self.kind.tokenizer.build(counts, **limits)
        for name, writer in writers.items():
            names = numbers.names(name)
            try:
                ids = np.array(tokenizer.ids_of(names), dtype=np.uint32)
            except UnknownWordError as error:
                raise self._no_such_word([name], error.words) from None
            unknown = np.array([word not in tokenizer for word in names], dtype=bool)
            writer.translate(ids, unknown, len(tokenizer))
        return tokenizer

    def _no_such_word(self, splits: Sequence[str], words: set[str]) -> DataError:
        path, n, word = self.texts.line_with(splits, words)
        what = f"the word {word!r} is not in the vocabulary, which has no {UNK} to stand for it"
        advice = "use --dataset text, where unknown words are allowed"
        if self._vocab_is_given:
            advice = "give a text whose words the model knows"
        return DataError(f"{path}, line {n}: {what}; {advice}")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One process at a time; errors of writing become a `DataError` that names --cache_dir."""
        try:
            with one_at_a_time(self._home):
                yield
                self._checks.save()
        except OSError as error:
            where = error.filename or self.cache
            advice = "make room, or name another folder with --cache_dir"
            raise DataError(f"{where}: {error.strerror or error}; {advice}") from error
