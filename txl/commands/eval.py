"""Evaluate a trained Transformer-XL with one or several context lengths, in one process or many:

python eval.py --work_dir RUN ...           torchrun --nproc_per_node=4 eval.py --work_dir RUN ...

With --text FILE it is `txl score`, with --recl RUN RUN ... `txl recl`; add --help to see their flags.
"""

import dataclasses
import functools
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from txl.cli.flags import Typed, has_flag, read_flags, refuse_idle_flags
from txl.commands.scoring import Split, opened, score, streams_by_default, training_text
from txl.config import Context, require
from txl.data_utils.corpus import DataConfig
from txl.evaluation.config import EVAL, EvalConfig, ReclConfig, ScoreConfig
from txl.evaluation.measures.token_losses import write_losses
from txl.evaluation.plots import drawable, pictures_of, write_pictures
from txl.evaluation.reading import Predictor
from txl.evaluation.report import print_row, print_table, require_outputs, write_results
from txl.evaluation.test_time import Additions, prepared
from txl.language.model import LanguageModel
from txl.memory import require_works, unbounded
from txl.runtime.distributed import Ranks, process_group
from txl.runtime.log import print_line
from txl.training.metrics import show_pictures

MOST_USED = ("work_dir", "data", "dataset", "split", "mem_len", "tgt_len", "json")
_OTHERS = {"recl": "txl.commands.recl", "text": "txl.commands.score"}
"""Programs that a flag asks for."""
_ELSEWHERE = {"has no effect without --text": (ScoreConfig,), "has no effect without --recl": (ReclConfig,)}


def main(argv: Sequence[str]) -> None:
    for flag, module in _OTHERS.items():
        if has_flag(argv, flag):
            return import_module(module).main(argv)
    typed = read_flags(argv, *EVAL, DataConfig, description=__doc__ or "", first=MOST_USED, elsewhere=_ELSEWHERE)
    with process_group(timeout_s=3600, device=typed.get("device", "auto")) as ranks:
        score_splits(*resolved(typed, ranks), ranks)


def resolved(typed: Typed, ranks: Ranks) -> tuple[LanguageModel, DataConfig, EvalConfig, Additions]:
    """The model, its text, and how that is scored. Raises `UsageError` on flags that do not go together."""
    config, additions, lm = opened(EvalConfig, typed, ranks)
    data = lm.data_config(typed)
    refuse_idle_flags(typed, config, *additions, data, lm.model_config)
    require_works(lm.model_config.memory, config, can_change=False)
    nothing = f"--pictures {config.pictures}: there is nothing to draw of one length; give several, or a length study"
    require(config.pictures is None or bool(pictures_of(config, Path())), nothing)
    if "reset" not in typed and config.convention == "txl":
        config = dataclasses.replace(config, reset=lm.reading["reset"])
    if "batch_size" not in typed:
        config = dataclasses.replace(config, batch_size=default_streams(config, additions, lm, ranks))
    return lm, data, config, additions


def default_streams(config: EvalConfig, additions: Additions, lm: LanguageModel, ranks: Ranks) -> int:
    """Streams to read in parallel if --batch_size is not given: one where the result depends on their number, else at
    least one per process."""
    if config.convention != "txl":
        return config.batch_size
    n_stream = streams_by_default(lm.model_config, config.reset, ranks)
    if n_stream == 1 and ranks.is_main:
        what = unbounded(lm.model_config)
        print_line(f"| {what} looks back without limit: read in one stream, on which the result depends")
    return 1 if additions.dynamic.dynamic != "off" else n_stream


def score_splits(lm: LanguageModel, data: DataConfig, config: EvalConfig, additions: Additions, ranks: Ranks) -> None:
    """Score splits with each context, their streams shared out over processes; rank 0 reports."""
    contexts = config.look_backs(lm.context)
    plain = dataclasses.replace(config, loss_by_position=False, attention_by_distance=False)
    corpus = ranks.main_first(lambda: lm.corpus(data))
    names = corpus.held_out() if config.split == "all" else (config.split,)
    corpus.require_splits(*names, *(["train"] if additions.read_training_text else []))
    pictures = pictures_of(config, lm.run or Path())
    if ranks.is_main:
        if corpus.note:
            print_line(f"| {corpus.note}")
        if config.split == "all" and len(names) == 1:
            print_line(f"| {names[0]} is the only split that is there")
        require_outputs(config.json, config.token_losses)
        pictures = drawable(pictures, config)
    rows = []
    with lm.used_as(config) as model:

        @functools.lru_cache(maxsize=1)  # one is large, and made from the training text
        def adapted(context: Context) -> Predictor:
            text = training_text(lm, corpus, ranks) if additions.read_training_text else None
            return prepared(additions, model, text, context, batch_size=config.batch_size, ranks=ranks)

        for name in names:
            ranks.main_first(lambda name=name: corpus.split(name))
            split = Split.of(corpus, name)
            for context in contexts:
                added = None
                if additions.name:  # before the text is read: a store that does not fit is refused first
                    added = adapted(context if additions.dynamic.dynamic == "rms" else contexts[0])
                new = [score(model, split, context, config, ranks)]
                if added is not None:
                    new.append(score(model, split, context, plain, ranks, additions=additions, predictor=added))
                rows += new
                if ranks.is_main:
                    for row in new:
                        print_row(row)
    if ranks.is_main:
        print_table(rows)
        how: dict[str, Any] = {"checkpoint": str(lm.folder), "weights": lm.fingerprint()}
        how |= {"convention": config.convention, "reset": config.reset}
        how |= {"texts": {name: corpus.fingerprint(name) for name in names}, "dtype": config.dtype}
        if config.token_losses:
            write_losses(Path(config.token_losses), [row.tokens for row in rows if row.tokens], **how)
        if config.json:
            write_results(Path(config.json), rows, **how)
        write_pictures(rows, pictures)
        show_pictures(lm.run or Path(), pictures)
