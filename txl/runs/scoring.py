"""Scoring a split of a corpus: how its convention reads it, its streams, the row of the report. In
a training: the splits to score, a sample of text, the best checkpoint at the end.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from txl.attention_rules import use_attention
from txl.checkpoint import load_model, open_checkpoint
from txl.config import Context, ModelConfig, build, require
from txl.convert import vocabulary_in
from txl.data_utils.corpus import Corpus
from txl.data_utils.errors import DataError
from txl.data_utils.lm1b import SentenceRows
from txl.data_utils.segments import (
    CountedRows,
    equal_streams,
    scoring_stream,
    text_streams,
    total_sums,
)
from txl.evaluation.config import ADDED, DEFAULTS, EvalConfig, ScoreConfig
from txl.evaluation.conventions import DEALING, reading_of
from txl.evaluation.measures.token_losses import TokenLossWatch
from txl.evaluation.reading import (
    Predictor,
    evaluation_context,
    warmup_segments,
    within,
)
from txl.evaluation.report import line_of, print_table
from txl.evaluation.rows import Row, row_of_split
from txl.evaluation.test_time import Additions, TrainingText
from txl.generation.ending import Ending
from txl.generation.rule import Rule
from txl.language.model import LanguageModel
from txl.language.text_generation import TextGenerator
from txl.memory import unbounded
from txl.model.autocast import dtype_on
from txl.model.transformer import TransformerXL
from txl.runs.models import open_model
from txl.runtime.distributed import Ranks
from txl.runtime.log import perplexity, print_line
from txl.settings.layers import Asked
from txl.training.config import TrainConfig
from txl.training.loop import Validation
from txl.training.metrics import Metrics

PLAIN = Additions()
Config = TypeVar("Config", EvalConfig, ScoreConfig)


def open_for_scoring(
    kind: type[Config], typed: Asked, ranks: Ranks
) -> tuple[Config, Additions, LanguageModel]:
    """What flags ask for, and the model.

    Raises `UsageError` on test-time methods that do not work with the rest.
    """
    convention = typed.get("convention", "txl")
    config = build(kind, typed, **DEFAULTS.get(convention, {}))
    config = dataclasses.replace(config, dtype=dtype_on(ranks.device, config.dtype))
    additions = Additions(*(build(cls, typed) for cls in ADDED))
    additions.check(config.dtype, ranks.world, convention)
    # test-time methods use weights in float32; --dtype is then of the products alone
    if additions.name:
        kept = "float32"
    else:
        kept = config.dtype
    vocabulary = config.vocabulary or vocabulary_in(typed.get("data"), Path(config.work_dir))
    how = {"vocabulary": vocabulary, "device": ranks.device, "dtype": kept}
    return config, additions, open_model(config, typed, **how)


def streams_by_default(shape: ModelConfig, reset: str, ranks: Ranks) -> int:
    """Streams to read in parallel: one where the result depends on their number, else at least one
    per process.
    """
    if unbounded(shape) and reset == "never":
        return 1
    return max(EvalConfig.batch_size, ranks.world)


def default_streams(
    config: EvalConfig, additions: Additions, lm: LanguageModel, ranks: Ranks
) -> int:
    """Streams of an evaluation without --batch_size: `streams_by_default`, but one with --dynamic, and
    those of `config` with another --convention. Prints a line if memory looks back without limit.
    """
    if config.convention != "txl":
        return config.batch_size
    n_stream = streams_by_default(lm.model_config, config.reset, ranks)
    if n_stream == 1 and ranks.is_main:
        what = unbounded(lm.model_config)
        print_line(
            f"| {what} looks back without limit: read in one stream, on which the result depends"
        )
    if additions.dynamic.is_on:
        return 1
    return n_stream


class Split(NamedTuple):
    """A split of a corpus.

    Attributes:
        sizes: what each token stands for in the text, see `Corpus.sizes`.
        starts: gives where documents begin.
        between_sentences: the token between sentences that have no order; None: the text is one.
    """

    name: str
    ids: np.ndarray
    sizes: Mapping[str, np.ndarray]
    starts: Callable[[], np.ndarray]
    between_sentences: int | None = None

    def starts_if_any(self) -> np.ndarray | None:
        """Where documents begin; None: there are none."""
        with contextlib.suppress(DataError):
            return self.starts()
        return None

    def beginning(self, n_token: int) -> "Split":
        """The first tokens of it, at most so many."""
        if n_token >= len(self.ids):
            return self
        sizes = {}
        for name, size_N in self.sizes.items():
            sizes[name] = size_N[:n_token]

        def starts() -> np.ndarray:
            every = self.starts()
            return every[every < n_token]

        return self._replace(ids=self.ids[:n_token], sizes=sizes, starts=starts)

    @classmethod
    def of(cls, corpus: Corpus, name: str) -> "Split":
        starts = functools.partial(corpus.document_starts, name)
        if corpus.kind.has_sentences:
            between = corpus.vocab.eos_id
        else:
            between = None
        return cls(name, corpus.split(name), corpus.sizes(name), starts, between)


class Adapted(NamedTuple):
    """The model as it is read besides: with test-time methods, for example.

    Attributes:
        name: what is done, in words.
        predictor: for a split and a way to read it. Raises `UsageError` if it cannot be read so.
        warmup_segments: those needed in addition to the model's, for a context.
    """

    name: str
    predictor: Callable[[Split, EvalConfig, Context], Predictor]
    warmup_segments: Callable[[Context], int] = PLAIN.warmup_segments


def score(
    model: TransformerXL,
    split: Split,
    context: Context,
    config: EvalConfig,
    ranks: Ranks,
    *,
    adapted: Adapted | None = None,
    keeps_losses: bool = False,
    as_cut: Row | None = None,
) -> Row:
    """Score a split with one context.

    Args:
        config: with `borders` of one row, cut or aside.
        adapted: the model as it is read besides; None: as it is alone.
        keeps_losses: the row has the loss of each token.
        as_cut: with borders aside, the row of the same with borders cut, which has the loss of each
            token: those that stand late in their segments there are not read again.
    """
    borders = config.borders
    assert borders != "both", "these are two rows"
    reading = reading_of(config.convention, model, context, n_token=len(split.ids))
    if adapted is not None:
        reading = dataclasses.replace(
            reading,
            n_warmup=reading.n_warmup + adapted.warmup_segments(reading.context),
            predictor=adapted.predictor(split, config, context),
            added=adapted.name,
        )
    token_watch = None
    if keeps_losses:
        dealt = (
            "deals sentences to its streams, where they have no place in the text, so the loss of"
            " each token cannot be kept; drop it, or --token_losses"
        )
        require(not deals_sentences(split, config), f"--convention {config.convention}: {dealt}")
        names = {"asked": reading.asked, "added": reading.added, "borders": borders}
        token_watch = TokenLossWatch(split.name, split.ids, **names)
    streams = streams_of(
        split,
        reading.context,
        config,
        ranks,
        n_warmup=reading.n_warmup,
        only_shifted=as_cut is not None,
    )
    row = row_of_split(
        split.name,
        streams,
        reading,
        model,
        ranks,
        counts=total_sums(streams, split.sizes),
        borders=borders,
        token_watch=token_watch,
        with_attention=config.attention_by_distance,
    )
    if as_cut is None:
        return row
    return completed(row, as_cut)


def completed(shifted: Row, as_cut: Row) -> Row:
    """The row with borders aside, given the part of it that was read with shifted segments, and the
    row of the text as it is cut, in which the other tokens stand late in their segments.
    """
    mine = shifted.tokens
    other = as_cut.tokens
    assert mine is not None
    assert other is not None
    from_other_N = mine.visible_N == 0
    nats_N = np.where(from_other_N, other.nats_N, mine.nats_N)
    visible_N = np.where(from_other_N, other.visible_N, mine.visible_N)
    nats = shifted.score.nats + float(np.nansum(other.nats_N[from_other_N], dtype=np.float64))
    return dataclasses.replace(
        shifted,
        score=dataclasses.replace(as_cut.score, nats=nats),
        seconds=shifted.seconds + as_cut.seconds,
        tokens=dataclasses.replace(mine, nats_N=nats_N, visible_N=visible_N),
    )


Way = tuple[EvalConfig, Context]
"""How a split is read for one row, and how far back."""


def ways_of(config: EvalConfig, trained: Context) -> list[Way]:
    """The ways to read a split that a configuration asks for: each of its borders with each of its
    lengths. Attention by distance is of the text as it is cut.
    """
    readings = [config]
    if config.borders == "both":
        readings = [
            dataclasses.replace(config, borders="cut"),
            dataclasses.replace(config, borders="aside", attention_by_distance=False),
        ]
    return list(itertools.product(readings, config.look_backs(trained)))


def rows_of(
    model: TransformerXL,
    split: Split,
    ways: Iterable[Way],
    ranks: Ranks,
    *,
    adapted: Adapted | None = None,
    keeps_losses: bool = False,
) -> list[Row]:
    """Score a split in several ways, and print each row below `HEAD` as soon as it is there. What
    two of them share is read once where losses are kept, see `score`.

    Args:
        adapted: in each way the split is read so, too, without attention by distance.
        keeps_losses: rows have the loss of each token.
    """
    rows: list[Row] = []
    for config, context in ways:
        rate = functools.partial(
            score, model, split, context, ranks=ranks, keeps_losses=keeps_losses
        )
        if adapted is not None:  # before the split is scored: the training text may be refused
            adapted.predictor(split, config, context)
        new = [rate(config=config, as_cut=_as_cut(rows, config, context))]
        if adapted is not None:
            plain = dataclasses.replace(config, attention_by_distance=False)
            new.append(rate(config=plain, adapted=adapted))
        for row in new:
            if ranks.is_main:
                print_line(line_of(row))
        rows += new
    return rows


def _as_cut(rows: Sequence[Row], config: EvalConfig, context: Context) -> Row | None:
    """The row of the plain model as the text is cut, if borders are aside and it is there."""
    if config.borders != "aside":
        return None
    for row in rows:
        is_same = row.context == context and not row.added
        if is_same and row.borders == "cut" and row.tokens is not None:
            return row
    return None


def deals_sentences(split: Split, config: EvalConfig) -> bool:
    """True if sentences are dealt to the streams one by one, as the 2019 code and Hugging Face's
    read lm1b.
    """
    return split.between_sentences is not None and config.convention in DEALING


def streams_of(
    split: Split,
    context: Context,
    config: EvalConfig,
    ranks: Ranks,
    *,
    n_warmup: int,
    only_shifted: bool = False,
) -> Sequence[CountedRows]:
    """This process's share of a split; each stream is read with its own memory.

    Args:
        n_warmup: segments that must be read before the first that counts.
        only_shifted: with borders aside, without the reading that is as with borders cut.
    """
    lengths = {
        "batch_size": config.batch_size,
        "tgt_len": context.tgt_len,
        "ext_len": context.ext_len,
    }
    if split.between_sentences is not None and deals_sentences(split, config):
        rows = np.array_split(np.arange(config.batch_size), ranks.world)[ranks.rank]
        return [
            SentenceRows(split.ids, eos_id=split.between_sentences, rows=rows.tolist(), **lengths)
        ]
    cut = scoring_stream
    if config.convention != "txl":
        cut = equal_streams
    return text_streams(
        split.ids,
        starts=split.starts() if config.reset == "document" else None,
        is_aside=config.borders == "aside",
        only_shifted=only_shifted,
        n_warmup=n_warmup,
        cut=cut,
        rank=ranks.rank,
        world=ranks.world,
        **lengths,
    )


def training_text(corpus: Corpus, ranks: Ranks) -> TrainingText:
    """The training text, for test-time adaptation."""
    ids = ranks.main_first(lambda: corpus.split("train"))
    return TrainingText(ids, scoring_stream)


def evaluation_of(config: TrainConfig, shape: ModelConfig, ranks: Ranks) -> EvalConfig:
    """How the splits are scored: with full context, by default in as many streams as results do not
    depend on.
    """
    n_stream = config.eval_batch_size or streams_by_default(shape, config.reset, ranks)
    return EvalConfig(batch_size=n_stream, reset=config.reset)


def validation_of(
    corpus: Corpus, config: TrainConfig, context: Context, shape: ModelConfig, ranks: Ranks
) -> Validation:
    """How this process scores the valid split."""
    split = Split.of(corpus, "valid")
    here = _lengths_for(split, config, context, shape)
    n_warmup = warmup_segments(shape.n_layer, here)
    streams = streams_of(split, here, evaluation_of(config, shape, ranks), ranks, n_warmup=n_warmup)
    limit = config.max_eval_steps or -1
    if limit > 0 and config.reset == "document":
        limit = _own_share(limit, streams, ranks)
    return Validation(streams, here, total_sums(streams, split.sizes), limit)


def _own_share(limit: int, streams: Sequence[CountedRows], ranks: Ranks) -> int:
    """How many of the first `limit` segments of a text are this process's, to which whole streams
    are dealt in turn.
    """
    lengths = ranks.gathered([len(stream) for stream in streams])
    n_own = 0
    for turn in itertools.zip_longest(*lengths, fillvalue=0):
        for rank, n_segment in enumerate(turn):
            n_read = min(limit, n_segment)
            limit -= n_read
            if rank == ranks.rank:
                n_own += n_read
    return n_own


def _lengths_for(
    split: Split, config: TrainConfig, context: Context, shape: ModelConfig
) -> Context:
    """The lengths with which a training reads a split, none beyond its text."""
    asked = evaluation_context(context, config.eval_tgt_len or context.tgt_len)
    return within(shape, asked, len(split.ids))


def sample_text(model: TransformerXL, corpus: Corpus, context: Context, config: TrainConfig) -> str:
    """A text generated by the current model, always with the same seed."""
    generator = TextGenerator(
        model=model.eval(),
        context=context,
        tokenizer=corpus.vocab,
        tokenised=corpus.kind.is_tokenised,
        ending=Ending(length=config.sample_length),
        rule=Rule(top_p=0.95),
        seed=config.seed,
    )
    return "".join(generator.stream([]))


def evaluate_best(
    run_folder: Path,
    corpus: Corpus,
    config: TrainConfig,
    context: Context,
    ranks: Ranks,
    metrics: Metrics,
) -> None:
    """Score all of valid and test with the best checkpoint, read as during training. Prints a table
    and the last line of the 2019 code.

    Args:
        context: of the training.
    """
    checkpoint = open_checkpoint(run_folder)
    model = load_model(checkpoint).to(ranks.device)
    use_attention(model, config.attn_impl)
    asked = evaluation_of(config, model.config, ranks)
    rows = []
    for split in (Split.of(corpus, name) for name in ("valid", "test")):
        here = _lengths_for(split, config, context, model.config)
        rows.append(score(model, split, here, asked, ranks))
    if ranks.is_main:
        print_table(rows)
        nats = rows[-1].score.nats_per_token
        metrics.add(
            "test", checkpoint.record["step"], {"test/nll_nats": nats, "test/ppl": perplexity(nats)}
        )
        print_line(f"| End of training | test loss {nats:5.2f} | test ppl {perplexity(nats):9.3f}")
