"""Evaluate a trained Transformer-XL, with contexts of one length or of several, in one process or in many; or score any
text:

python eval.py --work_dir RUN ...           torchrun --nproc_per_node=4 eval.py --work_dir RUN ...
python eval.py --work_dir RUN --text FILE --per_token FILE.tsv
python eval.py --recl RUN RUN ... --split test
"""

import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from txl.checkpoint import Checkpoint, open_checkpoint
from txl.cli import Typed, build, read_flags
from txl.commands.opened import loaded, open_corpus, training_text
from txl.commands.recl import compare_context_lengths
from txl.commands.trained_text import vocabulary_of
from txl.config import Context, require
from txl.data_utils.corpus import DataConfig
from txl.data_utils.free_text import encode_text, read_text
from txl.data_utils.stream import RowStream, ScoringStream, document_streams, equal_streams
from txl.data_utils.vocabulary import EOS, UNK, Vocab
from txl.data_utils.wikitext import article_starts, starts_where_known
from txl.evaluation.config import CacheConfig, DynamicConfig, EvalConfig, KnnConfig, StudyConfig
from txl.evaluation.conventions import reading_of
from txl.evaluation.plots import drawable, pictures_of, write_pictures
from txl.evaluation.reading import Predictor, Reading, within
from txl.evaluation.report import (
    Token,
    as_tsv,
    print_row,
    print_table,
    require_outputs,
    write_results,
    write_tokens,
)
from txl.evaluation.rows import Row, row_of_split, row_of_text
from txl.evaluation.study.loss_by_position import LossByPosition
from txl.evaluation.test_time import Additions, prepared
from txl.model.settings import require_read
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks, joined
from txl.runtime.log import print_line
from txl.training.metrics import show_pictures

MOST_USED = ("work_dir", "data", "dataset", "split", "mem_len", "tgt_len", "text", "json")
NOTHING, NO_STUDY = Additions(), StudyConfig()


def main(argv: Sequence[str]) -> None:
    configs = (EvalConfig, StudyConfig, DynamicConfig, CacheConfig, KnnConfig, DataConfig)
    typed = read_flags(argv, *configs, description=__doc__ or "", first=MOST_USED)
    with joined(timeout_s=3600, device=typed.get("device", "auto")) as ranks:
        if typed.get("recl"):
            compare_context_lengths(typed, ranks)
        else:
            run_evaluation(typed, ranks)


def run_evaluation(typed: Typed, ranks: Ranks) -> None:
    """Score splits or a text at the look-backs asked for."""
    additions = Additions(*(build(cls, typed) for cls in (DynamicConfig, CacheConfig, KnnConfig)))
    config, study = build(EvalConfig, typed), build(StudyConfig, typed)
    additions.check(typed, config, ranks.world)
    require_recl(typed)
    checkpoint = open_checkpoint(Path(config.work_dir))
    require_read(typed, position=checkpoint.model_config.position, attention=checkpoint.model_config.attention)
    contexts = config.look_backs(checkpoint.context)
    if config.text is not None:
        require_reads_text(typed, additions)
        if ranks.is_main:  # it is one stream
            score_file(typed, config.text, config, additions, checkpoint, contexts, ranks)
        return
    if "batch_size" not in typed:
        n_stream = default_streams(config, additions, checkpoint, ranks)
        config = dataclasses.replace(config, batch_size=n_stream)
    score_splits(typed, config, study, additions, checkpoint, contexts, ranks)


def require_recl(typed: Typed) -> None:
    """Raise `UsageError` if something is asked for that only --recl reads."""
    for name in ("recl_step", "recl_longest", "recl_every"):
        require(name not in typed, f"--{name} has no effect without --recl; give it, or leave this flag out")


def require_reads_text(typed: Typed, additions: Additions) -> None:
    """Raise `UsageError` if something is asked for that a text of its own has no use for."""
    for name in ("loss_by_position", "attention_by_distance"):
        require(not typed.get(name), f"--{name} and --text: it is measured on splits; drop one of the two")
    of_splits = ["split", "batch_size", "pictures"]
    of_training_text = [f.name for f in dataclasses.fields(DataConfig)]
    for name in of_splits + ([] if additions.read_training_text else of_training_text):
        require(name not in typed, f"--{name} has no effect with --text, which is one stream of its own; leave it out")


def default_streams(config: EvalConfig, additions: Additions, checkpoint: Checkpoint, ranks: Ranks) -> int:
    """Streams to read side by side where --batch_size is not given: one where the result depends on their number, else
    at least one for each process."""
    if config.convention != "txl":
        return config.batch_size
    if checkpoint.model_config.recurrence == "same" and config.reset == "never":
        if ranks.is_main:
            print_line("| --recurrence same looks back without limit: read in one stream, on which the result depends")
        return 1
    return 1 if additions.dynamic.dynamic != "off" else max(config.batch_size, ranks.world)


def score_splits(
    typed: Typed,
    config: EvalConfig,
    study: StudyConfig,
    additions: Additions,
    checkpoint: Checkpoint,
    contexts: Sequence[Context],
    ranks: Ranks,
) -> None:
    """Score the splits, the streams shared out over processes; rank 0 tells."""
    corpus = ranks.main_first(lambda: open_corpus(typed, checkpoint))
    splits = ("valid", "test") if config.split == "all" else (config.split,)
    corpus.require_splits(*splits, *(["train"] if additions.read_training_text else []))
    pictures = pictures_of(config, study)
    if ranks.is_main:
        require_outputs(config)
        pictures = drawable(pictures, config)
    rows = []
    with loaded(checkpoint, config, ranks) as model:

        @functools.lru_cache(maxsize=1)  # one is made from the training text, and large
        def with_additions(context: Context) -> Predictor:
            text = training_text(corpus, ranks) if additions.read_training_text else None
            return prepared(additions, model, checkpoint, text, context, batch_size=config.batch_size, ranks=ranks)

        for split in splits:
            ids = ranks.main_first(lambda split=split: corpus.split(split))
            sizes = corpus.sizes(split)
            for context in contexts:
                text = (model, corpus.vocab, ids, split, context, config, ranks)
                if not additions.name:
                    new = [score(*text, study, sizes=sizes)]
                else:  # the predictor first: what is wrong with a store is known before the text is read
                    predictor = with_additions(context if additions.dynamic.dynamic == "rms" else contexts[0])
                    added = score(*text, sizes=sizes, additions=additions, predictor=predictor)
                    new = [score(*text, study, sizes=sizes), added]
                rows += new
                if ranks.is_main:
                    for row in new:
                        print_row(row)
    if ranks.is_main:
        print_table(rows)
        write_results(rows, config, checkpoint=str(checkpoint.folder))
        write_pictures(rows, pictures)
        show_pictures(Path(config.work_dir), pictures)


def score(
    model: TransformerXL,
    vocab: Vocab,
    ids: np.ndarray,
    split: str,
    context: Context,
    config: EvalConfig,
    ranks: Ranks,
    study: StudyConfig = NO_STUDY,
    *,
    sizes: Mapping[str, np.ndarray],
    additions: Additions = NOTHING,
    predictor: Predictor | None = None,
) -> Row:
    """A split with one look-back, the streams shared out over processes.

    Args:
        study: what else is measured of it.
        sizes: what each token of the split stands for.
        predictor: the model with `additions`; not given: the model.
    """
    reading = reading_of(config.convention, model, context, n_token=len(ids))
    if predictor is not None:
        n_warmup = reading.n_warmup + additions.warmup_segments(reading.context)
        reading = dataclasses.replace(reading, n_warmup=n_warmup, predictor=predictor, added=additions.name)
    watch = None
    if study.loss_by_position:
        watch = LossByPosition(reading.context, n_token=len(ids), starts=starts_where_known(ids, vocab))
    streams = cut(ids, vocab, reading, config, ranks)
    return row_of_split(
        split,
        streams,
        reading,
        model,
        ranks,
        counts=sum((stream.sums(sizes) for stream in streams), Counter()),
        watch=watch,
        with_attention=study.attention_by_distance,
    )


def score_file(
    typed: Typed,
    name: str,
    config: EvalConfig,
    additions: Additions,
    checkpoint: Checkpoint,
    contexts: Sequence[Context],
    ranks: Ranks,
) -> None:
    """Score a text from its first token on: it begins a line, or goes on where the text before it ends."""
    vocab = vocabulary_of(checkpoint)
    before = [vocab.index[EOS]]
    if config.context is not None:
        before += encode_text(read_text(config.context), vocab, name=config.context, running=config.tokenise).ids
    text = encode_text(read_text(name), vocab, name=name, running=config.tokenise)
    require_outputs(config)
    training = training_text(open_corpus(typed, checkpoint), ranks) if additions.read_training_text else None
    counts = {name: int(size_N.sum()) for name, size_N in text.sizes.items()}
    ids = np.array(before + text.ids)
    rows, nats = [], []
    with loaded(checkpoint, config, ranks) as model:
        for context in contexts:
            predictors: list[tuple[str, Predictor]] = [("", model)]
            if additions.name:
                added = prepared(additions, model, checkpoint, training, context, batch_size=1, ranks=ranks)
                predictors.append((additions.name, added))
            for name_of_added, predictor in predictors:
                reading = Reading(context, within(context, len(ids)), 0, predictor, name_of_added)
                row, nll_N = row_of_text(ids, reading, model, ranks, first=len(before), counts=counts)
                rows.append(row)
                nats = nll_N.tolist()  # those of the last row are written token by token
    columns = zip(vocab.decode(text.ids), text.ids, nats, text.offsets, text.surfaces, strict=True)
    tokens = [
        Token(place, word, i, nat, i == vocab.index.get(UNK), offset, surface)
        for place, (word, i, nat, offset, surface) in enumerate(columns)
    ]
    if config.per_token == "-":
        sys.stdout.write(as_tsv(tokens))
    else:
        print_table(rows)
    if config.per_token not in (None, "-"):
        write_tokens(Path(config.per_token), tokens, checkpoint=str(checkpoint.folder), text=name)
    write_results(rows, config, checkpoint=str(checkpoint.folder))


def cut(ids: np.ndarray, vocab: Vocab, reading: Reading, config: EvalConfig, ranks: Ranks) -> list[RowStream]:
    """This process's share of a split: streams, each to be read with a memory of its own."""
    context = reading.context
    lengths = {"batch_size": config.batch_size, "tgt_len": context.tgt_len, "ext_len": context.ext_len}
    share = {"rank": ranks.rank, "world": ranks.world}
    if config.reset == "document":
        return document_streams(ids, article_starts(ids, vocab), **lengths, **share)
    if config.convention == "txl":
        return [ScoringStream(ids, n_warmup=reading.n_warmup, **lengths, **share)]
    return [equal_streams(ids, n_warmup=reading.n_warmup, **lengths, **share)]
