"""Results of an evaluation as tables, JSON and a file of tokens.

Plots are in `txl.evaluation.plots`.
"""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from txl.evaluation.rows import Row
from txl.runtime.log import perplexity, print_line
from txl.runtime.outputs import Kind, json_kind, text_kind, write_json, write_text

HEAD = (
    f"{'split':<6} {'tgt_len':>7} {'mem_len':>7} {'tokens':>9} {'loss':>8} {'perplexity':>11}"
    f" {'ppl/word':>10} {'bits/char':>9} {'bits/byte':>9} {'tokens/s':>9} {'peak MiB':>8}"
)
"""Of the table of rows. The last figures compare models of different vocabularies; ppl/word is per
word and line end.
"""
_LONG = 1e6
"""From which on a perplexity is rounded."""


def line_of(row: Row) -> str:
    """A row in the columns of `HEAD`: loss, speed and memory."""
    score = row.score
    if row.peak_bytes is None:
        mib = "-"
    else:
        mib = f"{row.peak_bytes / 2**20:.0f}"
    line = (
        f"{row.split:<6} {row.context.tgt_len:>7} {row.context.mem_len:>7} {score.tokens:>9}"
        f" {score.nats_per_token:>8.4f} {_perplexity(score.perplexity):>11}"
        f" {_perplexity(score.word_perplexity):>10} {_bits(score.bits_per_character):>9}"
        f" {_bits(score.bits_per_byte):>9} {score.tokens / row.seconds:>9.0f} {mib:>8}"
    )
    remarks = ", ".join(filter(None, [row.manner, row.unlike]))
    return f"{line}  {remarks}".rstrip()


def _perplexity(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= _LONG:
        return f"{value:.3g}"
    return f"{value:.3f}"


def _bits(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}"


def counted(row: Row) -> str:
    """The counts of a split in one line."""
    score = row.score
    return (
        f"{row.split}: {score.tokens:,} tokens counted, {score.unknown / score.tokens:.2%} of them"
        f" <unk>: {score.words:,} words and {score.lines:,} line ends, {score.characters:,}"
        f" characters, {score.bytes:,} bytes"
    )


ASIDE = (
    "each token is predicted late in its segment, in the last quarter, whatever the memory; the"
    " text is read several times for that, with segments that begin elsewhere"
)


def print_table(rows: Sequence[Row]) -> None:
    """Print the rows, and what is to be said of them."""
    print_line(HEAD)
    for row in rows:
        print_line(line_of(row))
    print_remarks(rows)


def print_remarks(rows: Sequence[Row]) -> None:
    """Print what stands below the table: the counts of each split, and where a figure is not what it
    seems.
    """
    for row in {row.split: row for row in rows}.values():
        print_line(counted(row))
    for row in {row.split: row for row in rows if row.note_of_unknown}.values():
        print_line(f"{row.split}: {row.note_of_unknown}")
    if any(row.borders == "aside" for row in rows):
        print_line(f"borders aside: {ASIDE}")


_OF_ALL = ("weights", "read_with", "dtype")
EVALUATION = json_kind(
    "txl eval",
    ("checkpoint", "rows"),
    (*_OF_ALL, "convention", "reset", "texts", "gains", "costs"),
)
SCORE = json_kind("txl score", ("checkpoint", "text", "rows"), (*_OF_ALL, "memory_file", "each"))
"""Of the files of --json."""


def write_results(path: Path, rows: Sequence[Row], kind: Kind, **how: Any) -> None:
    """Write the JSON file; `how`: what was scored, and how."""
    write_json(path, {**how, "rows": [row.as_dict() for row in rows]}, kind)


class Token(NamedTuple):
    """One token of a scored text.

    Attributes:
        position: index of the token in what is read alone: the text, or a line or document of it.
        unk: whether it is `<unk>`.
        offset: characters of the text before it.
        surface: its spelling in the text; empty for a line break.
    """

    position: int
    token: str
    id: int
    nats: float
    unk: bool
    offset: int
    surface: str


class Part(NamedTuple):
    """A text that was read alone: its number in the file, from 1 on, and its tokens."""

    number: int
    tokens: list[Token]

    def as_dict(self, each: str) -> dict[str, Any]:
        """JSON-ready; `each`: line, document."""
        nats = math.fsum(token.nats for token in self.tokens)
        n_token = len(self.tokens)
        return {
            each: self.number,
            "tokens": n_token,
            "nats": nats,
            "perplexity": perplexity(nats / n_token),
        }


def print_parts(parts: Sequence[Part], each: str) -> None:
    """Print one line with the total of each part."""
    for part in parts:
        total = part.as_dict(each)
        n_token = total["tokens"]
        nats = total["nats"]
        ppl = total["perplexity"]
        print_line(
            f"| {each} {part.number:5d} | tokens {n_token:5d} | nats {nats:11.4f} | ppl {ppl:9.3f}"
        )


def as_tsv(parts: Sequence[Part], each: str) -> str:
    """A header line, then one line per token, tab-separated, quoted as in CSV. Where `each` is not
    the file, a last column numbers the lines or documents.
    """
    out = _Lines()
    writer = csv.writer(out, delimiter="\t")
    if each == "file":
        names = []
    else:
        names = [each]
    writer.writerow([*Token._fields, *names])
    for part in parts:
        numbers = [part.number for _ in names]
        writer.writerows([*token._replace(unk=int(token.unk)), *numbers] for token in part.tokens)
    return "".join(out)


_TOKENS_JSON = json_kind("txl score --per_token", ("checkpoint", "text", "tokens"))
_TOKENS_TSV = text_kind("txl score", "\t".join(Token._fields) + "(\t(line|document))?\n")


def tokens_kind(path: str | Path) -> Kind:
    """What `write_tokens` writes: JSON if the file name ends in `.json`, else TSV, see `as_tsv`."""
    if Path(path).suffix == ".json":
        return _TOKENS_JSON
    return _TOKENS_TSV


class _Lines(list[str]):
    """What a csv writer writes, with line ends of one character. Asked for them itself, that of
    Python 3.11 leaves a carriage return unquoted, which readers take for the end of a row.
    """

    def write(self, line: str) -> None:
        self.append(line.removesuffix("\r\n") + "\n")


def write_tokens(path: Path, parts: Sequence[Part], each: str, **extra: Any) -> None:
    """Write the tokens to a file of `tokens_kind`."""
    kind = tokens_kind(path)
    if kind is _TOKENS_TSV:
        write_text(path, as_tsv(parts, each), kind)
        return
    tokens = []
    for part in parts:
        if each == "file":
            number = {}
        else:
            number = {each: part.number}
        for token in part.tokens:
            tokens.append({**token._asdict(), **number})
    write_json(path, {**extra, "tokens": tokens}, kind)
