"""Evaluate a trained Transformer-XL with one or several context lengths, in one process or many, or score any text:

python eval.py --work_dir RUN ...           torchrun --nproc_per_node=4 eval.py --work_dir RUN ...
python eval.py --work_dir RUN --text FILE --per_token FILE.tsv
python eval.py --recl RUN RUN ... --split test
"""

import dataclasses
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from txl.checkpoint import Checkpoint, open_checkpoint
from txl.cli import Typed, build, read_flags
from txl.commands.recl import compare_context_lengths
from txl.commands.scoring import Split, score
from txl.commands.trained import loaded, open_corpus, training_text, vocabulary_of
from txl.config import Context, require
from txl.data_utils.corpus import DataConfig
from txl.data_utils.free_text import encode_text, read_text
from txl.data_utils.tokenizers.base import UNK
from txl.evaluation.config import DEFAULTS, CacheConfig, DynamicConfig, EvalConfig, KnnConfig, StudyConfig
from txl.evaluation.plots import drawable, pictures_of, write_pictures
from txl.evaluation.reading import Predictor, Reading, within
from txl.evaluation.report import Token, as_tsv, print_row, print_table, require_outputs, write_results, write_tokens
from txl.evaluation.rows import row_of_text
from txl.evaluation.test_time import Additions, prepared
from txl.memory import require_works, unbounded
from txl.model.settings import chosen_by, require_read
from txl.runtime.distributed import Ranks, process_group
from txl.runtime.log import print_line
from txl.training.metrics import show_pictures

MOST_USED = ("work_dir", "data", "dataset", "split", "mem_len", "tgt_len", "text", "json")


CONFIGS = (EvalConfig, StudyConfig, DynamicConfig, CacheConfig, KnnConfig, DataConfig)
"""Their fields are the flags."""


def main(argv: Sequence[str]) -> None:
    typed = read_flags(argv, *CONFIGS, description=__doc__ or "", first=MOST_USED)
    with process_group(timeout_s=3600, device=typed.get("device", "auto")) as ranks:
        if typed.get("recl"):
            compare_context_lengths(typed, ranks)
        else:
            run_evaluation(typed, ranks)


def run_evaluation(typed: Typed, ranks: Ranks) -> None:
    """Check the flags against each other and the checkpoint, then score the splits, or the file of --text."""
    additions = Additions(*(build(cls, typed) for cls in (DynamicConfig, CacheConfig, KnnConfig)))
    config, study = build(EvalConfig, typed, **DEFAULTS.get(typed.get("convention"), {})), build(StudyConfig, typed)
    additions.check(typed, config, ranks.world)
    for name in ("recl_step", "recl_longest", "recl_every"):
        require(name not in typed, f"--{name} has no effect without --recl; give it, or leave this flag out")
    checkpoint = open_checkpoint(Path(config.work_dir))
    require_read(typed, **chosen_by(checkpoint.model_config))
    for settings in (config, study):
        require_works(checkpoint.model_config.memory, settings)
    trained = checkpoint.record.get("train", {}).get("reset", "never")
    if "reset" not in typed and config.text is None and config.convention == "txl":
        config = dataclasses.replace(config, reset=trained)
    if config.text is None and "batch_size" not in typed:
        config = dataclasses.replace(config, batch_size=default_streams(config, additions, checkpoint, ranks))
    if config.text is None:
        score_splits(typed, config, study, additions, checkpoint, ranks)
    else:
        require_effect_on_text(typed, additions)
        if ranks.is_main:  # it is one stream
            score_file(config.text, typed, config, additions, checkpoint, ranks)


def require_effect_on_text(typed: Typed, additions: Additions) -> None:
    """Raise `UsageError` if a flag was typed that has no effect with --text."""
    for name in ("loss_by_position", "attention_by_distance"):
        require(not typed.get(name), f"--{name} and --text: it is measured on splits; drop one of the two")
    of_training_text = [] if additions.read_training_text else [f.name for f in dataclasses.fields(DataConfig)]
    for name in ("split", "batch_size", "pictures", *of_training_text):
        require(name not in typed, f"--{name} has no effect with --text, which is one stream of its own; leave it out")


def default_streams(config: EvalConfig, additions: Additions, checkpoint: Checkpoint, ranks: Ranks) -> int:
    """Streams to read in parallel if --batch_size is not given: one where the result depends on their number, else at
    least one per process."""
    if config.convention != "txl":
        return config.batch_size
    what = unbounded(checkpoint.model_config)
    if what and config.reset == "never":
        if ranks.is_main:
            print_line(f"| {what} looks back without limit: read in one stream, on which the result depends")
        return 1
    return 1 if additions.dynamic.dynamic != "off" else max(config.batch_size, ranks.world)


def score_splits(
    typed: Typed, config: EvalConfig, study: StudyConfig, additions: Additions, checkpoint: Checkpoint, ranks: Ranks
) -> None:
    """Score splits with each context, their streams shared out over processes; rank 0 reports."""
    contexts = config.look_backs(checkpoint.context)
    corpus = ranks.main_first(lambda: open_corpus(typed, checkpoint))
    names = ("valid", "test") if config.split == "all" else (config.split,)
    corpus.require_splits(*names, *(["train"] if additions.read_training_text else []))
    pictures = pictures_of(config, study)
    if ranks.is_main:
        if corpus.said:
            print_line(f"| {corpus.said}")
        require_outputs(config)
        pictures = drawable(pictures, config)
    rows = []
    with loaded(checkpoint, config, ranks.device) as model:

        @functools.lru_cache(maxsize=1)  # one is large, and made from the training text
        def adapted(context: Context) -> Predictor:
            text = training_text(corpus, ranks) if additions.read_training_text else None
            return prepared(additions, model, checkpoint, text, context, batch_size=config.batch_size, ranks=ranks)

        for name in names:
            ranks.main_first(lambda name=name: corpus.split(name))
            split = Split.of(corpus, name)
            for context in contexts:
                added = None
                if additions.name:  # before the text is read: a store that does not fit is refused first
                    added = adapted(context if additions.dynamic.dynamic == "rms" else contexts[0])
                new = [score(model, split, context, config, ranks, study)]
                if added is not None:
                    new.append(score(model, split, context, config, ranks, additions=additions, predictor=added))
                rows += new
                if ranks.is_main:
                    for row in new:
                        print_row(row)
    if ranks.is_main:
        print_table(rows)
        texts = {name: corpus.fingerprint(name) for name in names}
        write_results(rows, config, checkpoint=str(checkpoint.folder), texts=texts)
        write_pictures(rows, pictures)
        show_pictures(Path(config.work_dir), pictures)


def score_file(
    name: str, typed: Typed, config: EvalConfig, additions: Additions, checkpoint: Checkpoint, ranks: Ranks
) -> None:
    """Score a text from its first token on, as the beginning of a line or as the continuation of --context."""
    vocab = vocabulary_of(checkpoint)
    how: dict[str, Any] = {"running": config.tokenise}
    if not config.tokenise:
        how["advice"] = "; for running text there is --tokenise"
    before = [vocab.eos_id]
    if config.context is not None:
        before += encode_text(read_text(config.context), vocab, name=config.context, **how).ids
    text = encode_text(read_text(name), vocab, name=name, **how)
    require_outputs(config)
    training = training_text(open_corpus(typed, checkpoint), ranks) if additions.read_training_text else None
    counts = {name: int(size_N.sum()) for name, size_N in text.sizes.items()}
    ids = np.array(before + text.ids)
    rows, nats = [], []
    with loaded(checkpoint, config, ranks.device) as model:
        for context in config.look_backs(checkpoint.context):
            predictors: list[tuple[str, Predictor]] = [("", model)]
            if additions.name:
                added = prepared(additions, model, checkpoint, training, context, batch_size=1, ranks=ranks)
                predictors.append((additions.name, added))
            for name_of_added, predictor in predictors:
                reading = Reading(context, within(context, len(ids)), 0, predictor, name_of_added)
                row, nll_N = row_of_text(ids, reading, model, ranks, first=len(before), counts=counts)
                rows.append(row)
                nats = nll_N.tolist()  # --per_token writes those of the last row
    columns = zip(vocab.decode(text.ids), text.ids, nats, text.offsets, text.surfaces, strict=True)
    tokens = [
        Token(position, word, i, nat, i == vocab.index.get(UNK), offset, surface)
        for position, (word, i, nat, offset, surface) in enumerate(columns)
    ]
    if config.per_token == "-":
        sys.stdout.write(as_tsv(tokens))
    else:
        print_table(rows)
    if config.per_token not in (None, "-"):
        write_tokens(Path(config.per_token), tokens, checkpoint=str(checkpoint.folder), text=name)
    write_results(rows, config, checkpoint=str(checkpoint.folder))
