#!/usr/bin/env python
"""Evaluate a trained Transformer-XL, at one memory length or at several, in one process or in many:

python eval.py --work_dir RUN ...           torchrun --nproc_per_node=4 eval.py --work_dir RUN ...
"""

import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data_utils.corpus import Corpus, DataConfig
from data_utils.files import DataError
from data_utils.stream import RowStream, ScoringStream, Segment, document_streams, equal_streams
from data_utils.vocabulary import Vocab
from data_utils.wikitext import article_starts
from txl.checkpoint import Checkpoint, damaged, load_model, open_checkpoint
from txl.cli import Typed, build, read_flags, run
from txl.config import CacheConfig, Context, DynamicConfig, EvalConfig, KnnConfig, UsageError
from txl.conventions import context_of, n_warmup_of, predictor_of
from txl.distributed import Ranks, joined
from txl.evaluate import Predictor, Score, evaluate, warmup_segments, within
from txl.log import perplexity, say
from txl.model import TransformerXL
from txl.report import Row, counted, plot_context, require_writable, table, write_json
from txl.testtime import Additions, gradient_statistics
from txl.testtime.store import Store, build_store, open_store

NOTHING = Additions()
PICTURE = "context.png"


def main(argv: Sequence[str]) -> None:
    typed = read_flags(argv, EvalConfig, DynamicConfig, CacheConfig, KnnConfig, DataConfig, description=__doc__ or "")
    with joined(timeout_s=3600) as ranks:
        run_evaluation(typed, ranks)


def run_evaluation(typed: Typed, ranks: Ranks) -> None:
    """Score the splits at the look-backs asked for, the streams shared out over processes; rank 0 tells."""
    additions = Additions(*(build(cls, typed) for cls in (DynamicConfig, CacheConfig, KnnConfig)))
    one_stream = {"batch_size": 1} if additions.dynamic.dynamic != "off" else {}
    config = build(EvalConfig, typed, **one_stream)
    additions.require_sense(typed, config, ranks.world)
    checkpoint = open_checkpoint(Path(config.work_dir))
    contexts = look_backs(config, checkpoint.context)
    corpus = ranks.main_first(lambda: open_corpus(typed, checkpoint))
    splits = ("valid", "test") if config.split == "all" else (config.split,)
    corpus.require_splits(*splits, *(["train"] if additions.read_training_text else []))
    if ranks.is_main:
        for path in outputs(config):
            require_writable(path)
    model = load_model(checkpoint).to(ranks.device)

    @functools.lru_cache(maxsize=1)  # one is made from the training text, and large
    def with_additions(context: Context) -> Predictor:
        return prepared(additions, model, checkpoint, corpus, context, config, ranks)

    rows = []
    for split in splits:
        ids = ranks.main_first(lambda split=split: corpus.split(split))
        for context in contexts:
            text = (model, corpus.vocab, ids, split, context, config, ranks)
            if not additions.name:
                new = [score(*text)]
            else:  # the predictor first: what is wrong with a store is known before the text is read
                predictor = with_additions(context if additions.dynamic.dynamic == "rms" else contexts[0])
                new = [score(*text), score(*text, additions=additions, predictor=predictor)]
            rows += new
            if ranks.is_main:
                for row in new:
                    tell_one(row)
    if ranks.is_main:
        tell(rows, config, checkpoint)


def tell_one(row: Row) -> None:
    """A line as soon as there is something to tell."""
    nats, added = row.score.nats_per_token, f" | {row.added}" if row.added else ""
    say(f"| {row.split} | mem_len {row.context.mem_len:5d} | loss {nats:5.2f} | ppl {perplexity(nats):9.3f}{added}")


def tell(rows: Sequence[Row], config: EvalConfig, checkpoint: Checkpoint) -> None:
    """The table, and where asked for the JSON and the picture."""
    say(table(rows))
    for row in {row.split: row for row in rows}.values():
        say(counted(row))
    for path in outputs(config):
        if path.name == PICTURE:
            plot_context(path, rows)
            say(f"| perplexity against memory: {path}")
        else:
            write_json(path, rows, checkpoint=str(checkpoint.folder), convention=config.convention, reset=config.reset)


def outputs(config: EvalConfig) -> list[Path]:
    """The files that the evaluation writes: the JSON asked for, and the picture where there is something to plot."""
    json = [Path(config.json)] if config.json else []
    return json + ([Path(config.work_dir) / PICTURE] if len(config.mem_len) > 1 else [])


def look_backs(config: EvalConfig, trained: Context) -> list[Context]:
    """One look-back for each memory length asked for; what was not given is as in training."""
    given = {name: getattr(config, name) for name in ("tgt_len", "ext_len", "clamp_len", "same_length")}
    given = {name: value for name, value in given.items() if value is not None}
    mem_lens = config.mem_len or (trained.mem_len,)
    return [dataclasses.replace(trained, **given, mem_len=mem_len) for mem_len in mem_lens]


def open_corpus(typed: Typed, checkpoint: Checkpoint) -> Corpus:
    """The text, read with the checkpoint's vocabulary.

    Raises:
        UsageError: if the text has a vocabulary of its own and it is another one.
    """
    vocab = Vocab.from_text(checkpoint.attachment("vocab.txt"))
    try:
        trained_on = DataConfig(**checkpoint.record["data"])
    except (KeyError, TypeError, DataError):
        raise damaged(checkpoint.folder / "config.json") from None
    as_trained = dataclasses.asdict(trained_on)
    if typed.get("dataset", trained_on.dataset) != trained_on.dataset:  # its own rules, not those of the run
        del as_trained["min_freq"], as_trained["max_size"]
    corpus = Corpus(build(DataConfig, typed, **as_trained), vocab)
    if corpus.defines_vocabulary:
        own = Corpus(corpus.config).vocab
        if own.fingerprint() != vocab.fingerprint():
            raise UsageError(
                f"{corpus.folder}: its vocabulary ({len(own):,} words) is not the one {checkpoint.folder} was trained "
                f"with ({len(vocab):,} words); give the --data and --dataset of the training run, or a folder with "
                f"valid.txt and test.txt only"
            )
    return corpus


def score(
    model: TransformerXL,
    vocab: Vocab,
    ids: np.ndarray,
    split: str,
    context: Context,
    config: EvalConfig,
    ranks: Ranks,
    *,
    additions: Additions = NOTHING,
    predictor: Predictor | None = None,
) -> Row:
    """A split with one look-back, the streams shared out over processes.

    Args:
        predictor: the model with `additions`; not given: the model.
    """
    start = time.perf_counter()
    seen = context_of(config.convention, context)
    predictor = predictor or predictor_of(config.convention, model, seen)
    if config.convention != "huggingface":  # whose memory begins full, so that its length makes a difference
        seen = within(seen, len(ids))
    n_warmup = n_warmup_of(config.convention, context, seen, n_layer=model.config.n_layer)
    n_warmup += additions.warmup_segments(seen)
    streams = cut(ids, vocab, seen, n_warmup, config, ranks)
    n_segment = sum(map(len, streams))
    hidden = None if ranks.is_main else True  # None: where there is a terminal
    with tqdm(total=n_segment, desc=f"{split} mem_len {context.mem_len}", leave=False, disable=hidden) as bar:
        shares = [
            evaluate(model, ticking(stream, bar), seen, predictor=predictor, sizes=vocab.sizes) for stream in streams
        ]
    return Row(split, context, Score.total(shares).over(ranks), time.perf_counter() - start, additions.name)


def prepared(
    additions: Additions,
    model: TransformerXL,
    checkpoint: Checkpoint,
    corpus: Corpus,
    context: Context,
    config: EvalConfig,
    ranks: Ranks,
) -> Predictor:
    """The model and what is added to it, made from the training text where it needs that."""
    mean_square = store = None
    if additions.dynamic.dynamic == "rms":
        n_token = additions.dynamic.dynamic_segments * config.batch_size * context.tgt_len
        ids = corpus.split("train")[: n_token + 1]
        stream = ScoringStream(ids, batch_size=config.batch_size, tgt_len=context.tgt_len, ext_len=context.ext_len)
        mean_square = gradient_statistics(model, tqdm(stream, "gradients", leave=False, disable=None), context)
    if additions.knn.knn_store is not None:
        store = ranks.main_first(lambda: stored(additions.knn, model, checkpoint, corpus, batch_size=config.batch_size))
    return additions.predictor(model, mean_square=mean_square, store=store)


def stored(
    config: KnnConfig, model: TransformerXL, checkpoint: Checkpoint, corpus: Corpus, *, batch_size: int
) -> Store:
    """The hidden states of the training text under the look-back of the training, read once and then found."""
    ids = corpus.split("train")
    ids = ids[: None if config.knn_tokens is None else config.knn_tokens + 1]
    source = {
        "checkpoint": checkpoint.fingerprint(),
        "training_text": corpus.fingerprint("train"),
        "vocabulary": corpus.vocab.fingerprint(),
        "number_of_tokens": len(ids) - 1,
    }
    folder, seen = Path(config.knn_store or ""), within(checkpoint.context, len(ids))
    store = open_store(folder, source)
    if store is None:
        n_warmup = warmup_segments(model.config.n_layer, seen)
        lengths = {"tgt_len": seen.tgt_len, "ext_len": seen.ext_len}
        stream = ScoringStream(ids, batch_size=batch_size, n_warmup=n_warmup, **lengths)
        bar = tqdm(stream, f"{folder.name}", leave=False, disable=None)
        build_store(folder, model, bar, seen, n_pair=len(ids) - 1, source=source)
        store = open_store(folder, source)
        assert store is not None, f"{folder} was just written"
    return store


def cut(
    ids: np.ndarray, vocab: Vocab, context: Context, n_warmup: int, config: EvalConfig, ranks: Ranks
) -> list[RowStream]:
    """This process's share of a split: streams, each to be read with a memory of its own."""
    lengths = {"batch_size": config.batch_size, "tgt_len": context.tgt_len, "ext_len": context.ext_len}
    share = {"rank": ranks.rank, "world": ranks.world}
    if config.reset == "document":
        return document_streams(ids, article_starts(ids, vocab), **lengths, **share)
    if config.convention == "txl":
        return [ScoringStream(ids, n_warmup=n_warmup, **lengths, **share)]
    return [equal_streams(ids, n_warmup=n_warmup, **lengths, **share)]


def ticking(stream: RowStream, bar: tqdm) -> Iterator[Segment]:
    """The segments of a stream, each a tick of a progress bar."""
    for segment in stream:
        yield segment
        bar.update()


if __name__ == "__main__":
    run(main, DataError)
