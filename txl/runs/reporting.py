"""Measuring what a report shows of a trained model: the figures of eval.py, and where in the text
they come from.
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from txl.config import build, require
from txl.data_utils.corpus import Corpus
from txl.data_utils.tokens import UNK, Tokenizer
from txl.evaluation.config import EvalConfig, ReportConfig
from txl.evaluation.conventions import reading_of
from txl.evaluation.gain import (
    LEAST_BLOCKS,
    Blocks,
    Interval,
    blocks_of,
    gains_of,
    paired_bootstrap,
)
from txl.evaluation.measures.attention import attention_by_distance, attention_by_token
from txl.evaluation.reading import within
from txl.evaluation.report import HEAD, print_remarks
from txl.evaluation.rows import Row
from txl.language.model import LanguageModel
from txl.memory import MEMORIES
from txl.model.autocast import dtype_on
from txl.model.parts import attends_by_softmax
from txl.model.transformer import TransformerXL
from txl.report.page import PAGE, write_page
from txl.report.record import (
    FIGURES,
    FORMAT,
    HTML,
    JSON,
    MOST_NATS,
    Curve,
    Distances,
    Figures,
    Looked,
    Map,
    Origin,
    Report,
    Said,
    Shown,
    last_said,
    short_word,
    without_folders,
    write_report,
)
from txl.runs.scoring import PLAIN, Split, default_streams, rows_of, streams_of, ways_of
from txl.runtime.distributed import Ranks
from txl.runtime.log import print_line
from txl.runtime.outputs import require_free
from txl.settings.layers import Asked
from txl.training.metrics import records_of

STEP = 256
"""Tokens between the places where the shown text may begin."""
FEWEST = 50
"""Tokens of one kind of word, below which nothing is said of it."""


def add_report(run: str | Path, **settings: Any) -> Path:
    """Measure a run, and write report.json and report.html into its folder. Returns the path of the
    page.

    Args:
        settings: of `ReportConfig` and `DataConfig`.
    Raises:
        UsageError: if the run cannot be read, its text is not there any more, or something else
            stands where the two belong.
        OSError: if they cannot be written there.
    """
    asked = build(ReportConfig, settings)
    lm = LanguageModel.open(run, device=asked.device, dtype=asked.dtype)
    folder = folder_of(lm)
    figures, page = folder / JSON, folder / HTML
    require_free(page, PAGE)
    require_free(figures, FIGURES)
    report = measure_report(lm, asked, settings)
    write_report(figures, report)
    write_page(page, [report])
    return page


def folder_of(lm: LanguageModel) -> Path:
    """Where the report of a model is kept, see `folder_for`."""
    return folder_for(lm.run or lm.folder)


def folder_for(path: Path) -> Path:
    """Where the report of what stands there is kept: the run folder of a run or of one of its
    checkpoints, the folder of another model; of a file, and of what the library of the hub keeps, the
    current one.
    """
    if not path.is_dir():
        return Path()
    parent = Path(os.path.abspath(path)).parent
    if (path / "config.json").is_file() and (parent / "latest").is_file():
        path = parent
    if _is_of_hub(path):
        return Path()
    return path


def _is_of_hub(path: Path) -> bool:
    """Whether this is a copy that the library of the hub keeps: models--OWNER--NAME/snapshots/DIGEST."""
    copies = path.resolve().parent
    return copies.name == "snapshots" and copies.parent.name.startswith("models--")


def name_of_model(lm: LanguageModel) -> str:
    """What a model is called: as its run, its folder or file, or on the hub."""
    place = lm.run or lm.folder
    for copy in (place, place.resolve().parent):  # of the whole, or of one of its checkpoints
        if _is_of_hub(copy):
            return copy.resolve().parents[1].name.removeprefix("models--").replace("--", "/")
    if place.is_dir():
        return name_of(folder_for(place))
    return place.name


def name_of(folder: Path) -> str:
    """What a run is called: as its folder; a run of a study, `VARIANT/seed_1/run`, as its variant
    and seed.
    """
    folder = Path(os.path.abspath(folder))
    if folder.name == "run" and folder.parent.name.startswith("seed_"):
        return f"{folder.parent.parent.name}/{folder.parent.name}"
    return folder.name


def measure_report(
    lm: LanguageModel,
    asked: ReportConfig,
    typed: Asked = MappingProxyType({}),  # type: ignore[assignment]
    *,
    rows: Sequence[Row] = (),
) -> Report:
    """Measure what a page shows of a model.

    Args:
        typed: the settings that were given, of which those of the text and the memory override the
            training's.
        rows: of one split and segment length, read both ways, with their `tokens`; empty: they are
            read here.
    Raises:
        UsageError: if the text is not there, or a setting does not fit the model.
    """
    corpus = lm.corpus(lm.data_config(typed))
    if rows:
        name = rows[0].split
    else:
        name = split_of(corpus, asked)
    corpus.require_splits(name)
    ranks = Ranks(0, 1, lm.model.device)
    config = evaluation_of(lm, asked, typed, ranks, name)
    split = Split.of(corpus, name)
    if rows and rows[0].tokens is not None:  # they may be of its beginning
        split = split.beginning(len(rows[0].tokens.nats_N))
    with lm.used_as(config) as model:
        if not rows:
            print_line(HEAD)
            rows = rows_of(model, split, ways_of(config, lm.context), ranks, keeps_losses=True)
            print_remarks(rows)
        return _Measured(lm, model, split, config, asked, rows, ranks).report(corpus)


def split_of(corpus: Corpus, asked: ReportConfig) -> str:
    """The split that is read."""
    if asked.split != "auto":
        return asked.split
    if "test" in corpus.held_out():
        return "test"
    return "valid"


def evaluation_of(
    lm: LanguageModel, asked: ReportConfig, typed: Asked, ranks: Ranks, split: str
) -> EvalConfig:
    """How eval.py would read the text."""
    lengths = {
        "split": split,
        "borders": "both",
        "reset": lm.reading["reset"],
        "mem_len": asked.mem_len or lengths_of(lm),
        "work_dir": str(lm.folder),
    }
    own = {}
    for name, value in typed.items():
        if name not in ("split", "mem_len", "json", "dtype"):
            own[name] = value
    dtype = dtype_on(lm.model.device, asked.dtype)
    config = build(EvalConfig, own, **{**lengths, "dtype": dtype, "device": asked.device})
    config = dataclasses.replace(config, mem_len=tuple(sorted(set(config.mem_len))))
    return dataclasses.replace(config, batch_size=default_streams(config, PLAIN, lm, ranks))


def lengths_of(lm: LanguageModel) -> tuple[int, ...]:
    """The lengths of memory that are read by default."""
    trained = lm.context.mem_len
    allowed = MEMORIES[lm.model_config.memory].traits.works_with.get("mem_len")
    if allowed is not None:
        return tuple(allowed)
    if not trained:
        return (0, lm.context.tgt_len, 2 * lm.context.tgt_len)
    lengths = {0, trained // 16, trained // 4, trained, 2 * trained}
    if lm.context.same_length:  # a window of nothing sees nothing
        lengths.discard(0)
    return tuple(sorted(lengths))


class _Measured:
    """One model with its readings of a split.

    Args:
        rows: read both ways, with their losses by token.
    """

    def __init__(
        self,
        lm: LanguageModel,
        model: TransformerXL,
        split: Split,
        config: EvalConfig,
        asked: ReportConfig,
        rows: Sequence[Row],
        ranks: Ranks,
    ) -> None:
        self.lm = lm
        self.model = model
        self.split = split
        self.config = config
        self.asked = asked
        self.rows = rows
        self.ranks = ranks
        self.lengths = sorted({row.context.mem_len for row in rows})
        self.compared = compared_lengths(self.lengths, lm.context.mem_len)
        self.context = dataclasses.replace(rows[0].context, mem_len=self.compared[-1])
        self.starts = split.starts_if_any()
        self.pieces = pieces_of(lm.tokenizer, split.ids)

    def report(self, corpus: Corpus) -> Report:
        """All that the page shows."""
        lm = self.lm
        sample = ""
        if self.asked.sample_length:
            sample = lm.generate(length=self.asked.sample_length, seed=1, top_p=0.95)
        notes = []
        for note in (corpus.note, self.rows[0].note_of_unknown):
            if note:
                notes.append(note)
        return Report(
            format=FORMAT,
            name=as_text(name_of_model(lm)),
            checkpoint=lm.folder.name,
            weights=lm.fingerprint(),
            dtype=self.config.dtype,
            split=self.split.name,
            text=self._text(corpus),
            tokenizer=lm.tokenizer.fingerprint(),
            notes=[without_folders(as_text(note)) for note in notes],
            n_token=self.rows[0].score.tokens,
            tgt_len=self.context.tgt_len,
            trained_tgt_len=lm.context.tgt_len,
            trained_mem_len=lm.context.mem_len,
            rows=[figures_of(row) for row in self.rows],
            gains=self._gains(),
            compared=self.compared,
            said=self._said(),
            distances=self._distances(),
            curve=curve_of(records_of(lm.run)),
            shown=self._shown(),
            sample=as_text(sample),
            origin=origin_of(lm),
        )

    def _text(self, corpus: Corpus) -> str:
        """The digest of the text that was read: the split, or the beginning of it."""
        whole = corpus.fingerprint(self.split.name)
        n_token = len(self.split.ids)
        if n_token == len(corpus.split(self.split.name)):
            return whole
        read = int(self.split.sizes["bytes"].sum()) or n_token
        return hashlib.sha256(f"{whole} {read}".encode()).hexdigest()

    def _gains(self) -> list[Any]:
        """Of each length over the shortest, as eval.py says them of these two lengths."""
        gains = []
        for longer in self.lengths[1:]:
            pair = []
            for row in self.rows:
                if row.context.mem_len in (self.lengths[0], longer):
                    pair.append(row)
            how = {"starts": self.starts, "trained": self.lm.context, "reset": self.config.reset}
            gains += gains_of(pair, self.split.sizes, **how)
        return gains

    def _nats_N(self, mem_len: int) -> np.ndarray:
        """The loss of each token, read with borders aside; NaN of the first."""
        for row in self.rows:
            if (row.borders, row.context.mem_len) == ("aside", mem_len):
                assert row.tokens is not None
                return row.tokens.nats_N.astype(np.float64)
        raise AssertionError("no such row")

    def _saved_N(self) -> np.ndarray:
        return self._nats_N(self.compared[0]) - self._nats_N(self.compared[-1])

    def _said(self) -> list[Said]:
        """What is saved, by how long ago a word was said."""
        if len(self.compared) < 2:
            return []
        sizes = self.split.sizes
        words_N = sizes["words"] + sizes["lines"]
        if not words_N.any():  # ids of which no text is known
            words_N = np.ones_like(words_N)
        back_N = last_said(self.pieces, words_N)
        back_N[self.split.ids == self.lm.tokenizer.index.get(UNK, -1)] = -1
        near = self.context.tgt_len
        far = near + self.compared[-1]
        saved_N = self._saved_N()
        is_alone = self.config.reset == "document"
        blocks = blocks_of(
            len(saved_N), self.compared[-1], starts=self.starts, are_read_alone=is_alone
        )
        found = []
        for first, last in ((1, near), (near + 1, far), (far + 1, None), (0, 0)):
            where_N = (back_N >= first) & (back_N <= (last if last is not None else len(back_N)))
            where_N[0] = False
            saved = saved_at(where_N, saved_N, blocks)
            share = float(where_N.sum() / (len(where_N) - 1))
            found.append(Said(first=first, last=last, share=share, saved=saved))
        return found

    def _distances(self) -> Distances | None:
        if not self.asked.distances or not self._attends():
            return None
        reading = reading_of("txl", self.model, self.context, n_token=len(self.split.ids))
        config = dataclasses.replace(self.config, borders="cut")
        streams = streams_of(
            self.split, reading.context, config, self.ranks, n_warmup=reading.n_warmup
        )
        found = attention_by_distance(self.model, streams, reading.context).as_dict()
        return Distances(
            mem_len=self.context.mem_len,
            first_K=[one["from"] for one in found["bins"]],
            last_K=[one["to"] for one in found["bins"]],
            share_LNK=np.round(found["share"], 6).tolist(),
        )

    def _attends(self) -> bool:
        """Whether what the model attends to are tokens at distances."""
        shape = self.lm.model_config
        traits = MEMORIES[shape.memory].traits
        has_distances = traits.is_queue and "attention_by_distance" not in traits.works_with
        is_plain = has_distances or traits.works_with.get("mem_len") == (0,)
        return attends_by_softmax(shape) and is_plain and shape.recurrence == "below"

    def _shown(self) -> Shown:
        """A part of the text with the loss of each token, and what its first tokens looked at."""
        n_predicted = len(self.split.ids) - 1
        n_shown = min(self.asked.tokens, n_predicted)
        if self.asked.first is not None:
            first = self.asked.first
            beyond = (
                f"--first {first}: the split has {n_predicted} tokens that are predicted; give a"
                " smaller number"
            )
            require(first <= n_predicted, beyond)
            n_shown = min(n_shown, n_predicted - first + 1)
        else:
            first = 1 + average_part(self._saved_N()[1:], n_shown)
        before = max(0, first - self.context.mem_len - self.context.tgt_len)
        nats_MN = []
        for mem_len in self.lengths:
            nats_N = np.minimum(self._nats_N(mem_len)[first : first + n_shown], MOST_NATS)
            nats_MN.append(np.round(nats_N, 3).tolist())
        return Shown(
            first=first,
            pieces=self.pieces[first : first + n_shown],
            before=self.pieces[before:first],
            mem_len_M=list(self.lengths),
            nats_MN=nats_MN,
            looked=self._looked(first, n_shown),
        )

    def _looked(self, first: int, n_shown: int) -> Looked | None:
        n_token = min(self.asked.attended, n_shown)
        if not n_token or not self._attends():
            return None
        starts = None
        if self.config.reset == "document":
            starts = self.starts
        context = within(self.model.config, self.context, len(self.split.ids))
        how = {"first": first, "n_token": n_token, "starts": starts}
        found = attention_by_token(self.model, self.split.ids, context, **how)
        return Looked(
            mem_len=self.context.mem_len,
            n_token=found.n_token,
            maps=[Map(layer=one.layer, head=one.head) for one in found.maps],
            count_PN=found.count_PN.tolist(),
            back_K=found.back_K.tolist(),
            share_K=found.share_K.tolist(),
            beyond_P=np.round(found.beyond_P, 6).tolist(),
        )


def compared_lengths(lengths: Sequence[int], trained: int) -> list[int]:
    """The shortest length and that of the training; if that was not read, the longest below it,
    else the longest.
    """
    if len(lengths) < 2:
        return list(lengths)
    known = []
    for length in lengths[1:]:
        if length <= trained:
            known.append(length)
    if known:
        return [lengths[0], known[-1]]
    return [lengths[0], lengths[-1]]


def saved_at(where_N: np.ndarray, saved_N: np.ndarray, blocks: Blocks) -> Interval | None:
    """What is saved at tokens of one kind; None: they are too few, or stand in too few blocks, which
    tell nothing of the others.
    """
    n_block = len(np.unique(blocks.block_N[where_N]))
    if where_N.sum() < FEWEST or n_block < LEAST_BLOCKS:
        return None
    return paired_bootstrap(np.where(where_N, saved_N, np.nan), blocks)


def figures_of(row: Row) -> Figures:
    """What is kept of a row."""
    content = row.as_dict()
    has_words = row.score.words + row.score.lines > 0
    return Figures(
        mem_len=row.context.mem_len,
        borders=row.borders,
        nats_per_token=content["nats_per_token"],
        perplexity=content["perplexity"],
        word_perplexity=content["word_perplexity"] if has_words else None,
        bits_per_character=content["bits_per_character"],
    )


def pieces_of(tokenizer: Tokenizer, ids: np.ndarray) -> list[str]:
    """Tokens as text, each with the white space before it; a character in several tokens comes with
    its last.
    """
    piece = tokenizer.decoder()
    return [as_text(piece(token)) for token in np.asarray(ids).tolist()]


def as_text(text: str) -> str:
    """A text that UTF-8 can hold: bytes that are no text become signs that say so."""
    return text.encode("utf-8", "replace").decode()


def average_part(saved_N: np.ndarray, n: int) -> int:
    """Where a part of n tokens begins in which memory saves as much as in the whole text: no cherry
    is picked.
    """
    if n >= len(saved_N):
        return 0
    sum_N = np.concatenate([[0.0], np.cumsum(saved_N)])
    begin_P = np.arange(0, len(saved_N) - n + 1, STEP)
    mean_P = (sum_N[begin_P + n] - sum_N[begin_P]) / n
    return int(begin_P[np.abs(mean_P - saved_N.mean()).argmin()])


def curve_of(records: Sequence[Mapping[str, Any]]) -> Curve | None:
    """The training by its records; None: there are none."""
    found: dict[str, list[list[float]]] = {"train": [], "valid": []}
    for record in records:
        kind = record.get("kind")
        if kind in found:
            nats = record.get(f"{kind}/nll_nats")
            if nats is not None:
                found[kind].append([float(record["tokens"]), float(nats)])
    if not found["train"] and not found["valid"]:
        return None
    return Curve(train=found["train"], valid=found["valid"])


def origin_of(lm: LanguageModel) -> Origin:
    """How a model was made, without the folders of the machine."""
    starts = []
    for record in records_of(lm.run):
        if record.get("kind") == "start":
            starts.append(record)
    if starts:
        start: Mapping[str, Any] = starts[-1]
    else:
        start = {}
    known = {**lm.record.get("versions", {}), **start}
    versions = {}
    for name in ("txl", "git_commit", "torch", "python", "processor"):
        if known.get(name):
            versions[name] = str(known[name])
    settings = {}
    for part in ("model", "context", "train", "data"):
        for name, value in lm.record.get(part, {}).items():
            if isinstance(value, list | tuple):
                settings[f"{part} {name}"] = " ".join(short_word(str(one)) for one in value)
            else:
                settings[f"{part} {name}"] = short_word(str(value))
    n_parameter = sum(weight.numel() for weight in lm.model.parameters())
    return Origin(
        command=[short_word(as_text(str(word))) for word in start.get("command", [])],
        versions=versions,
        parameters=int(lm.record.get("parameters", n_parameter)),
        settings={name: as_text(value) for name, value in settings.items()},
    )


def say_where(path: Path) -> None:
    """Print where a page lies."""
    print_line(f"| page: {path}")
