"""report.json: all that the page shows of one run, as figures. Its words tell how long ago one was said,
and no folders of a machine.

A page is drawn from it without the model.
"""

import dataclasses
import re
import types
import typing
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from txl.config import UsageError
from txl.evaluation.gain import Gain, Interval
from txl.runtime.outputs import json_kind, write_json
from txl.runtime.records import fits, read_json

FORMAT = 1
"""Of the file; a reader refuses others."""
JSON = "report.json"
HTML = "report.html"
"""The names of the record and of the page in a run folder."""
MOST_NATS = 65.0
"""Of a loss: the page holds thousandths of a nat in 16 bits."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
    """One split at one length of memory, as eval.py prints it.

    Attributes:
        mem_len: tokens of memory.
        borders: cut, or aside: each token late in its segment.
        nats_per_token, perplexity, word_perplexity, bits_per_character: as in the file of `eval.py
            --json`; None: the text has no words or characters.
    """

    mem_len: int
    borders: str
    nats_per_token: float
    perplexity: float
    word_perplexity: float | None
    bits_per_character: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Said:
    """Tokens whose words were last said at some distance.

    Attributes:
        first, last: the distance in tokens, inclusive; first 0: the word was not said before; last
        None: no end.
        share: of the tokens of the split.
        saved: nats a token that the longer memory saves, with borders aside; None: too few to tell.
    """

    first: int
    last: int | None
    share: float
    saved: Interval | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distances:
    """Attention by distance, as `eval.py --attention_by_distance` measures it.

    Attributes:
        mem_len: of the reading.
        first_K, last_K: the distances of each bin, inclusive; the token itself is at 0.
        share_LNK: of a token's attention, by layer, head and bin.
    """

    mem_len: int
    first_K: list[int]
    last_K: list[int]
    share_LNK: list[list[list[float]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """The training.

    Attributes:
        train, valid: tokens read and nats per token, pairs in their order.
    """

    train: list[list[float]]
    valid: list[list[float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """How the run was made.

    Attributes:
        command: the words of the training's command line; empty: not known.
        versions: of Python, PyTorch, txl, and what else is known, by name.
        parameters: weights of the model.
        settings: all of them as text, by part and name, such as "model n_layer".
    """

    command: list[str]
    versions: dict[str, str]
    parameters: int
    settings: dict[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Map:
    """What an attention map is of, counted from 0; None: the mean of all layers, or of all heads of
    one.
    """

    layer: int | None
    head: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Looked:
    """Which tokens the first tokens of the shown text looked at; see `AttentionByToken`.

    Attributes:
        mem_len: of the reading.
        n_token: how many tokens.
        count_PN: keys of each map and token.
        back_K: their distances.
        share_K: their shares in 255ths.
        beyond_P: the share of each map that lies further back than a segment.
    """

    mem_len: int
    n_token: int
    maps: list[Map]
    count_PN: list[list[int]]
    back_K: list[int]
    share_K: list[int]
    beyond_P: list[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shown:
    """The part of the split that the page shows.

    Attributes:
        first: index of its first token among those that are predicted.
        pieces: each token as text, with the white space before it.
        before: those before the first, as far as it sees.
        mem_len_M: the lengths of memory.
        nats_MN: of each token at each length, with borders aside.
        looked: None: not measured.
    """

    first: int
    pieces: list[str]
    before: list[str]
    mem_len_M: list[int]
    nats_MN: list[list[float]]
    looked: Looked | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """All that the page shows of one run.

    Attributes:
        format: `FORMAT`.
        name: of the run.
        checkpoint, weights: the checkpoint's name and the digest of its weights.
        dtype: of the reading.
        split, text: which text was read, and the digest of it.
        tokenizer: the digest of the vocabulary.
        notes: what is to be known of the text.
        n_token: tokens that are predicted.
        tgt_len: of the reading; `trained_tgt_len`, `trained_mem_len`: of the training.
        rows: every length of memory as cut, then with borders aside.
        gains: of each memory longer than the shortest.
        compared: the memories that the page compares: the shortest, and that of the training; or
            the only one.
        said: nats saved by how long ago a word was said.
        distances, curve, shown: None: not measured, or not known.
        sample: a text that the model has written.
        origin: how the run was made.
    """

    format: int
    name: str
    checkpoint: str
    weights: str
    dtype: str
    split: str
    text: str
    tokenizer: str
    notes: list[str]
    n_token: int
    tgt_len: int
    trained_tgt_len: int
    trained_mem_len: int
    rows: list[Figures]
    gains: list[Gain]
    compared: list[int]
    said: list[Said]
    distances: Distances | None
    curve: Curve | None
    shown: Shown | None
    sample: str
    origin: Origin

    def rows_of(self, borders: str) -> list[Figures]:
        """The figures of one way to read, by length of memory."""
        return [row for row in self.rows if row.borders == borders]

    def row(self, borders: str, mem_len: int) -> Figures:
        """The figures of one reading."""
        (row,) = (row for row in self.rows_of(borders) if row.mem_len == mem_len)
        return row

    def gain(self, mem_len: int | None = None) -> Gain | None:
        """What a memory gains over the shortest, by default that which the page compares; None:
        there is no other.
        """
        if mem_len is None:
            wanted = self.compared[-1]
        else:
            wanted = mem_len
        for gain in self.gains:
            if gain.longer == wanted:
                return gain
        return None


FIGURES = json_kind("txl report", [field.name for field in dataclasses.fields(Report)])


def write_report(path: Path, report: Report) -> None:
    """Write report.json, see `output`."""
    write_json(path, dataclasses.asdict(report), FIGURES, indent=None)


def read_report(path: Path) -> Report:
    """The content of a report.json. Raises `UsageError` if it is none, is damaged or of another
    version, `OSError` if it cannot be read.
    """
    try:
        content = read_json(path)
    except UnicodeDecodeError:
        raise UsageError(
            f"{path}: not text in UTF-8; name a run, or a report.json that txl report wrote"
        ) from None
    except ValueError as error:
        raise UsageError(
            f"{path}: not JSON ({error}); remove it and measure again: txl report RUN"
        ) from None
    if not isinstance(content, dict) or "format" not in content:
        raise UsageError(
            f"{path}: no report.json of txl; name a run, or a file that txl report wrote"
        )
    if content["format"] != FORMAT:
        what = f"is of format {str(content['format'])[:20]}, and this txl reads {FORMAT}"
        raise UsageError(f"{path}: {what}; measure again: txl report RUN --measure")
    try:
        return _made(Report, content, "report")
    except ValueError as error:
        raise UsageError(
            f"{path}: damaged ({error}); measure again: txl report RUN --measure"
        ) from None


def _made(hint: Any, value: Any, name: str) -> Any:
    """A JSON value as an object of a type. Raises `ValueError` naming what does not have it."""
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint, value, name)
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    if origin is types.UnionType:
        if value is None:
            return None
        return _made(args[0], value, name)
    if origin is list and dataclasses.is_dataclass(args[0]):
        if not isinstance(value, list):
            raise ValueError(f"{name} is no list")
        return [_made(args[0], item, f"{name}[{i}]") for i, item in enumerate(value)]
    if not fits(value, hint):
        raise ValueError(f"{name} is {str(value)[:40]!r}")
    return value


def _dataclass(cls: Any, value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no object")
    hints = typing.get_type_hints(cls)
    missing = [field for field in hints if field not in value]
    if missing:
        raise ValueError(f"{name} has no {missing[0]}")
    return cls(**{field: _made(hints[field], value[field], field) for field in hints})


_FOLDERS = re.compile(r"(?:file://|(?<![\w.:/…]))(?:/|~[\w.-]*/)(?:[^/\s'\"=,;]+/)*([^/\s'\"=,;]*)")


def last_said(pieces: Sequence[str], ends_N: np.ndarray) -> np.ndarray:
    """How many tokens back the word that each token is part of was said last, (N,); 0: not before;
    -1: the token is part of no word, but a line end or white space.

    Args:
        pieces: the tokens as text.
        ends_N: words and line ends that end in each token.
    """
    back_N = np.full(len(pieces), -1, dtype=np.int64)
    last: dict[str, int] = {}
    begin = 0
    for end in np.flatnonzero(ends_N).tolist():
        word = "".join(pieces[begin : end + 1]).strip()
        if word:
            back = 0
            if word in last:
                back = end - last[word]
            back_N[begin : end + 1] = back
            last[word] = end
        begin = end + 1
    return back_N


def without_folders(text: str) -> str:
    """A text whose absolute paths are only their last part, after an ellipsis: what is passed on
    tells no home.
    """
    return _FOLDERS.sub(lambda found: f"…/{found[1]}", text)


def short_word(word: str) -> str:
    """A word of a command line or the value of a setting, without the folders of a path that it is
    or sets.
    """
    flag = ""
    value = word
    if word.startswith("-") and "=" in word:
        name, _, value = word.partition("=")
        flag = f"{name}="
    path = PurePath(value.removeprefix("file://"))
    leads_out = path.is_absolute() or ".." in path.parts or value.startswith("~")
    if len(path.parts) > 1 and leads_out:
        value = f"…/{path.name}"
    return without_folders(f"{flag}{value}")
