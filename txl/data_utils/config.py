"""The data sets: a line in the registry each, and the flags that say which text is read. No other
file asks which data set it is."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from txl.config import SEED, Checked, option
from txl.registry import DATA_SETS

from .errors import DataError

if TYPE_CHECKING:
    from .texts import Texts
    from .tokens import Tokenizer

RUNNING = ("text", "bpe", "bytes", "characters", "pretrained")
"""Data sets whose text may come in any files; their documents are found, and valid and test split
off."""
BYTES = ("enwik8", "text8")
"""Data sets of bytes that are split by their length."""
WORDS = ("text", "wt103", "wt2", "ptb", "pydoc")
"""Data sets of words that are counted."""


@dataclass(frozen=True, kw_only=True)
class DataConfig(Checked):
    """Which text is read, and how it is tokenised."""

    data: tuple[str, ...] | str = option(
        "data/wikitext-103",
        "folder of train.txt, valid.txt and test.txt (ids: of .npy or .bin files); or any folder, "
        "files or glob of "
        "text, also gzip, bzip2, xz, zstd, zip, jsonl and parquet; here or at https://, hf://, "
        "s3:// and the like; "
        "see docs/data.md; pydoc writes its text there, and needs a folder of its own",
    )
    dataset: str = option(
        "wt103",
        "WikiText-103, WikiText-2, Penn Treebank, enwik8, text8, One Billion Word; words of any "
        "text, the "
        "documentation of this Python; any text in subwords, bytes or characters; streams of "
        "integers; pretrained: any text as it stands, in the tokens of a pretrained model",
    )
    cache_dir: str | None = option(
        None, "folder of what is made of the text (not given: txl-cache beside the text)"
    )
    min_freq: int = option(
        0, "words seen less often become <unk>", when=("dataset", *WORDS), minimum=0
    )
    max_size: int | None = option(
        None,
        "largest number of words in the vocabulary, the rest become <unk>",
        when=("dataset", *WORDS),
        minimum=1,
    )
    vocab_size: int | None = option(
        None,
        "tokens in the vocabulary (not given: 8192 subwords, or the largest id plus one)",
        when=("dataset", "bpe", "ids"),
        minimum=1,
        maximum=2**24,
    )
    tokenizer: str | None = option(
        None,
        "a tokenizer.json to use; not given: a byte-level BPE is trained (pretrained: it must be "
        "given)",
        when=("dataset", "bpe", "pretrained"),
    )
    special_tokens: bool = option(
        False,
        "names of special tokens of --tokenizer in a text are these tokens, not text (those of "
        "pretrained always are)",
        when=("dataset", "bpe"),
    )
    documents: Literal["auto", "blank", "heading", "file", "row"] = option(
        "auto",
        "what a document is: text up to a blank line, up to a heading '= Title =', a file, or a "
        "row (of plain text: a "
        "line); auto: the log names it",
        when=("dataset", *RUNNING),
    )
    text_field: str = option(
        "text", "field of jsonl and parquet that holds the text", when=("dataset", *RUNNING)
    )
    held_out: float = option(
        0.02,
        "share of the text for each of valid and test, where the text has no such files",
        when=("dataset", *RUNNING),
        above=0,
        below=0.5,
    )
    held_out_by: Literal["end", "document"] = option(
        "end",
        "end: of each file the last documents (of 20 files or more, whole ones), by bytes; "
        "document: each "
        "where a hash of its text says, so that what stands before it is unrelated; runs made "
        "before this flag keep document",
        when=("dataset", *RUNNING),
    )
    data_convention: Literal["txl", "original"] = option(
        "txl",
        "txl: every byte is a token; original: as the 2019 code reads them, without line ends and, "
        "of text8, without "
        "the spaces around a split",
        when=("dataset", *BYTES),
    )
    prefix: bool = option(
        False,
        "--data is only a beginning of the data set, or another file of bytes; figures are not "
        "comparable",
        when=("dataset", *BYTES),
    )
    split_seed: int = option(0, "seed of that hash", when=("held_out_by", "document"), **SEED)

    def __post_init__(self) -> None:
        if not isinstance(self.data, str):
            object.__setattr__(self, "data", tuple(self.data))
        super().__post_init__()
        DATA_SETS.require_known(self.dataset)
        if self.tokenizer is not None and self.vocab_size is not None:
            what = "the vocabulary is that of --tokenizer; drop one of them"
            raise DataError(f"--vocab_size {self.vocab_size}: {what}")


class DataSet(NamedTuple):
    """A data set; to add one, see docs/data.md.

    Attributes:
        texts: where its files are, of which split, and how they fall into documents.
        tokenizer: the kind of its tokenizer.
        counted: the splits that make the vocabulary.
        known: the tokenizer, where no text has to be read for it.
        trained: the tokenizer that is trained on texts; None: their symbols are counted.
        special: words that come first in the vocabulary.
        has_sentences: trained on shuffled sentences.
        is_tokenised: running text becomes words as WikiText's does, and back.
        as_in_2019: settings with which the 2019 code's models were trained.
        name: of one in a file of your own, see `txl.plugins`; the others have it in the registry.
    """

    texts: "type[Texts]"
    tokenizer: "type[Tokenizer]"
    counted: tuple[str, ...] = ()
    known: "Callable[[Any], Tokenizer | None]" = lambda texts: None
    trained: "Callable[[Iterator[bytes], DataConfig], Tokenizer] | None" = None
    special: tuple[str, ...] = ()
    has_sentences: bool = False
    is_tokenised: bool = True
    as_in_2019: Mapping[str, str] = {}
    name: str = ""


def tokenizer_of(dataset: str, read: Callable[[str], str]) -> "Tokenizer":
    """The tokenizer that a checkpoint keeps in files, whose contents `read` gives by name. Raises
    `ValueError` if it is damaged."""
    return kind_of_tokenizer(dataset).from_files(read)


def kind_of_tokenizer(dataset: str) -> "type[Tokenizer]":
    """The kind of a data set's tokenizer. Raises `UsageError` if there is no such data set, as
    where the file that defines it is not named."""
    DATA_SETS.require_known(dataset)
    return DATA_SETS[dataset].tokenizer


def is_tokenised(record: Mapping[str, Any]) -> bool:
    """True unless a checkpoint's record says that words of its text are separated by white space
    only."""
    known = DATA_SETS.get(record.get("data", {}).get("dataset"))
    return known is None or known.is_tokenised
