"""Which text is read and how, as a dataclass whose fields are flags."""

from dataclasses import dataclass
from typing import Literal

from txl.config import SEED, Checked, option

from .raw_text import DataError

RUNNING = ("text", "bpe", "bytes", "characters")
"""Data sets whose text may come in any files; their documents are found, and valid and test split off."""
BYTES = ("enwik8", "text8")
"""Data sets of bytes that are split by their length."""
WORDS = ("text", "wt103", "wt2", "ptb", "pydoc")
"""Data sets of words that are counted."""


@dataclass(frozen=True, kw_only=True)
class DataConfig(Checked):
    """Which text is read, and how it is tokenised."""

    data: tuple[str, ...] | str = option(
        "data/wikitext-103",
        "folder of train.txt, valid.txt and test.txt (ids: of .npy or .bin files); or any folder, files or glob of "
        "text, also gzip, bzip2, xz, zstd, zip, jsonl and parquet; here or at https://, hf://, s3:// and the like; "
        "see docs/data.md; pydoc writes its text there, and needs a folder of its own",
    )
    dataset: Literal[
        "wt103", "wt2", "ptb", "enwik8", "text8", "lm1b", "text", "pydoc", "bpe", "bytes", "characters", "ids"
    ] = option(
        "wt103",
        "WikiText-103, WikiText-2, Penn Treebank, enwik8, text8, One Billion Word; words of any text, the "
        "documentation of this Python; any text in subwords, bytes or characters; streams of integers",
    )
    cache_dir: str | None = option(None, "folder of what is made of the text (not given: txl-cache beside the text)")
    min_freq: int = option(0, "words seen less often become <unk>", when=("dataset", *WORDS), minimum=0)
    max_size: int | None = option(
        None, "largest number of words in the vocabulary, the rest become <unk>", when=("dataset", *WORDS), minimum=1
    )
    vocab_size: int | None = option(
        None,
        "tokens in the vocabulary (not given: 8192 subwords, or the largest id plus one)",
        when=("dataset", "bpe", "ids"),
        minimum=1,
        maximum=2**24,
    )
    ids_dtype: Literal[
        "auto", "uint8", "uint16", "uint32", "uint64", "int32", "int64", "uint16_be", "int32_be", "int64_be"
    ] = option(
        "auto",
        "type of the ids in .bin files (be: big-endian); auto: what an .idx beside the file or a header of llm.c says, "
        "else uint16",
        when=("dataset", "ids"),
    )
    tokenizer: str | None = option(
        None, "a tokenizer.json to use; not given: a byte-level BPE is trained", when=("dataset", "bpe")
    )
    documents: Literal["auto", "blank", "heading", "file", "row"] = option(
        "auto",
        "what a document is: text up to a blank line, up to a heading '= Title =', a file, or a row (of plain text: a "
        "line); auto: the log names it",
        when=("dataset", *RUNNING),
    )
    text_field: str = option("text", "field of jsonl and parquet that holds the text", when=("dataset", *RUNNING))
    held_out: float = option(
        0.02,
        "share of the documents for each of valid and test, where the text has no such files",
        when=("dataset", *RUNNING),
        above=0,
        below=0.5,
    )
    data_convention: Literal["txl", "original"] = option(
        "txl",
        "txl: every byte is a token; original: as the 2019 code reads them, without line ends and, of text8, without "
        "the spaces around a split",
        when=("dataset", *BYTES),
    )
    prefix: bool = option(
        False,
        "--data is only a beginning of the data set, or another file of bytes; figures are not comparable",
        when=("dataset", *BYTES),
    )
    split_seed: int = option(0, "seed of that choice", when=("dataset", *RUNNING), **SEED)

    def __post_init__(self) -> None:
        if not isinstance(self.data, str):
            object.__setattr__(self, "data", tuple(self.data))
        super().__post_init__()
        if self.tokenizer is not None and self.vocab_size is not None:
            raise DataError(f"--vocab_size {self.vocab_size}: the vocabulary is that of --tokenizer; drop one of them")
