"""Splits of a text are scored with a trained model, with each context that is asked for; rank 0 reports."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from txl.config import Context, require
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.remote import names_in
from txl.evaluation.config import EvalConfig
from txl.evaluation.gain import Gain, gains_of
from txl.evaluation.measures.token_losses import LOSSES, write_losses
from txl.evaluation.plots import Plot, drawable, pictures_of, write_pictures
from txl.evaluation.reading import Predictor
from txl.evaluation.report import EVALUATION, HEAD, print_remarks, write_results
from txl.evaluation.rows import Row
from txl.evaluation.test_time import Additions, prepared
from txl.language.model import LanguageModel
from txl.memory import require_works
from txl.model.transformer import TransformerXL
from txl.runs.scoring import (
    Adapted,
    Split,
    default_streams,
    open_for_scoring,
    rows_of,
    training_text,
    ways_of,
)
from txl.runtime.distributed import Ranks, process_group
from txl.runtime.log import print_line
from txl.runtime.outputs import inputs_of, require_outputs
from txl.runtime.resources import keep_freed_memory
from txl.settings.flags import refuse_idle_flags
from txl.settings.layers import Asked
from txl.training.metrics import show_pictures


class Measure:
    """What a program measures of the splits that it scores, besides perplexity: here nothing.

    Attributes:
        keeps_losses: it needs the loss of each token.
        plots: what it draws, by file name.
    """

    keeps_losses = False
    plots: Mapping[str, Plot] = MappingProxyType({})

    def adapted(self, model: TransformerXL, ranks: Ranks) -> Adapted | None:
        """How each split is read besides; None: as it is alone."""
        return None

    def of_split(self, split: Split, rows: list[Row], config: EvalConfig) -> list[Row]:
        """The rows of a split, with what is measured of them; on rank 0."""
        return rows

    def report(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Print what is found, below the table; what the file of --json has of it; on rank 0."""
        return {}


NOTHING = Measure()


def evaluate(asked: Asked, measure: Measure = NOTHING) -> None:
    """Score splits with a trained model, in this process and those that torchrun has started; rank 0
    prints a table and writes files.

    Args:
        asked: settings of `EVAL` and `DataConfig` by name.
        measure: what is measured besides perplexity.
    Raises:
        UsageError: if settings do not go together, or the model or the text cannot be read.
    """
    with process_group(timeout_s=3600, device=asked.get("device", "auto")) as ranks:
        score_splits(*resolve_evaluation(asked, ranks, measure), ranks, measure)


def resolve_evaluation(
    typed: Asked, ranks: Ranks, measure: Measure = NOTHING
) -> tuple[LanguageModel, DataConfig, EvalConfig, Additions]:
    """The model, its text, and how that is scored.

    Raises `UsageError` on flags that do not go together.
    """
    config, additions, lm = open_for_scoring(EvalConfig, typed, ranks)
    data = lm.data_config(typed)
    refuse_idle_flags(typed, config, *additions, data, lm.model_config)
    require_works(lm.model_config.memory, config, can_change=False)
    learns = additions.dynamic.is_on
    why = (
        "learns from each token once, in the order of the text, which --borders aside reads several"
        " times"
    )
    idle = f"--dynamic {additions.dynamic.dynamic}: {why}; drop one of the two"
    require(config.borders == "cut" or not learns, idle)
    nothing = (
        f"--pictures {config.pictures}: there is nothing to draw of one length; give several, or"
        " --attention_by_distance"
    )
    require(config.pictures is None or bool(pictures_of(config, Path(), measure.plots)), nothing)
    if ranks.is_main:
        outputs = {
            "--json": (config.json, EVALUATION),
            "--token_losses": (config.token_losses, LOSSES),
        }
        of_text = dict.fromkeys(names_in(data.data), "--data")
        require_outputs(outputs, inputs_of(typed, "json", "token_losses", "pictures") | of_text)
    if "reset" not in typed and config.convention == "txl":
        config = dataclasses.replace(config, reset=lm.reading["reset"])
    if "batch_size" not in typed:
        config = dataclasses.replace(
            config, batch_size=default_streams(config, additions, lm, ranks)
        )
    return lm, data, config, additions


def report(
    rows: Sequence[Row],
    gains: Sequence[Gain],
    config: EvalConfig,
    measure: Measure,
    **how: Any,
) -> None:
    """Print the tables and write the files; `how`: what was scored, and how."""
    print_remarks(rows)
    for gain in gains:
        print_line(gain.sentence())
    if config.borders == "both" and not gains:
        print_line("--borders both: compares memories; give --mem_len at least two lengths")
    found = measure.report(rows)
    if config.token_losses:
        write_losses(Path(config.token_losses), [row.tokens for row in rows if row.tokens], **how)
    if config.json:
        if config.borders == "both":
            how["gains"] = [gain.as_dict() for gain in gains]
        write_results(Path(config.json), rows, EVALUATION, **how, **found)


def announce(corpus: Corpus, names: Sequence[str], config: EvalConfig, *, learns: bool) -> None:
    """Print what is to be known of the text; `learns`: the model does, from it."""
    if corpus.note:
        print_line(f"| {corpus.note}")
    if learns and config.reset == "document":
        print_line(
            "| --reset document: the weights that --dynamic changes begin anew with each document,"
            " as the memory does; --reset never goes on"
        )
    if config.split == "all" and len(names) == 1:
        print_line(f"| {names[0]} is the only split that is there")


def origin(
    lm: LanguageModel, corpus: Corpus, names: Sequence[str], config: EvalConfig
) -> dict[str, Any]:
    """What a file of results says about the model, the text and the reading."""
    return {
        "checkpoint": str(lm.folder),
        "weights": lm.fingerprint(),
        **lm.read_with,
        "convention": config.convention,
        "reset": config.reset,
        "texts": {name: corpus.fingerprint(name) for name in names},
        "dtype": config.dtype,
    }


def score_splits(
    lm: LanguageModel,
    data: DataConfig,
    config: EvalConfig,
    additions: Additions,
    ranks: Ranks,
    measure: Measure = NOTHING,
) -> None:
    """Score splits with each context, their streams shared out over processes; rank 0 reports."""
    if additions.dynamic.is_on:  # each of its updates makes tensors of the size of all weights
        keep_freed_memory()
    ways = ways_of(config, lm.context)
    compares = config.borders == "both"
    keeps_losses = compares or measure.keeps_losses or config.token_losses is not None
    corpus = ranks.main_first(lambda: lm.corpus(data))
    names = corpus.held_out() if config.split == "all" else (config.split,)
    corpus.require_splits(*names, *(["train"] if additions.dynamic.reads_training_text else []))
    pictures = pictures_of(config, lm.run, measure.plots)
    if ranks.is_main:
        announce(corpus, names, config, learns=additions.dynamic.is_on)
        pictures = drawable(pictures, config)
    rows: list[Row] = []
    gains: list[Gain] = []
    with lm.used_as(config) as model:

        @functools.lru_cache(maxsize=1)  # one is large, and made from the training text
        def prepared_for(context: Context) -> Predictor:
            if additions.dynamic.reads_training_text:
                text = training_text(corpus, ranks)
            else:
                text = None
            return prepared(
                additions, model, text, context, batch_size=config.batch_size, ranks=ranks
            )

        def predictor_for(split: Split, config: EvalConfig, context: Context) -> Predictor:
            if additions.dynamic.reads_training_text:
                return prepared_for(context)
            return prepared_for(ways[0][1])  # the same for all

        adapted = measure.adapted(model, ranks)
        if additions.name:
            adapted = Adapted(additions.name, predictor_for, additions.warmup_segments)
        if ranks.is_main:
            print_line(HEAD)
        for name in names:
            ranks.main_first(lambda name=name: corpus.split(name))
            split = Split.of(corpus, name)
            of_split = rows_of(
                model, split, ways, ranks, adapted=adapted, keeps_losses=keeps_losses
            )
            if compares and ranks.is_main:
                which = {"trained": lm.context, "reset": config.reset}
                gains += gains_of(of_split, split.sizes, starts=split.starts_if_any(), **which)
            if ranks.is_main:
                of_split = measure.of_split(split, of_split, config)
            if not config.token_losses:
                of_split = [dataclasses.replace(row, tokens=None) for row in of_split]
            rows += of_split
    if ranks.is_main:
        report(rows, gains, config, measure, **origin(lm, corpus, names, config))
        write_pictures(rows, pictures, measure.plots)
        if lm.run is not None:
            show_pictures(lm.run, pictures)
