#!/usr/bin/env python
"""Evaluate a trained Transformer-XL, with contexts of one length or of several, in one process or in many; or score any
text:

python eval.py --work_dir RUN ...           torchrun --nproc_per_node=4 eval.py --work_dir RUN ...
python eval.py --work_dir RUN --text FILE --per_token FILE.tsv
python eval.py --recl RUN RUN ... --split test
"""

import dataclasses
import functools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data_utils.corpus import Corpus, DataConfig
from data_utils.files import DataError
from data_utils.free_text import encode_text, read_text
from data_utils.stream import RowStream, ScoringStream, Segment, document_streams, equal_streams, window_streams
from data_utils.vocabulary import EOS, UNK, Vocab
from data_utils.wikitext import article_starts
from txl.checkpoint import Checkpoint, damaged, load_model, open_checkpoint
from txl.cli import Typed, build, read_flags, run
from txl.config import (
    CacheConfig,
    Context,
    DynamicConfig,
    EvalConfig,
    KnnConfig,
    StudyConfig,
    UsageError,
    require,
)
from txl.conventions import context_of, n_warmup_of, predictor_of
from txl.distributed import Ranks, joined
from txl.evaluate import Predictor, Score, evaluate, score_text, warmup_segments, within
from txl.log import perplexity, say
from txl.model import TransformerXL
from txl.pictures import pictures_of, plot_recl, write_pictures
from txl.report import Row, as_tsv, require_outputs, show, tokens_of, write_results, write_text, write_tokens
from txl.study import recl
from txl.study.attention_by_distance import attention_by_distance
from txl.study.loss_by_position import LossByPosition
from txl.study.peak_memory import PeakMemory
from txl.testtime import Additions, gradient_statistics
from txl.testtime.store import Store, build_store, open_store

NOTHING, NO_STUDY = Additions(), StudyConfig()


def main(argv: Sequence[str]) -> None:
    configs = (EvalConfig, StudyConfig, DynamicConfig, CacheConfig, KnnConfig, DataConfig)
    typed = read_flags(argv, *configs, description=__doc__ or "")
    with joined(timeout_s=3600) as ranks:
        if typed.get("recl"):
            compare_context_lengths(typed, ranks)
        else:
            run_evaluation(typed, ranks)


def run_evaluation(typed: Typed, ranks: Ranks) -> None:
    """Score splits or a text at the look-backs asked for."""
    additions = Additions(*(build(cls, typed) for cls in (DynamicConfig, CacheConfig, KnnConfig)))
    one_stream = {"batch_size": 1} if additions.dynamic.dynamic != "off" else {}
    config, study = build(EvalConfig, typed, **one_stream), build(StudyConfig, typed)
    additions.require_sense(typed, config, ranks.world)
    checkpoint = open_checkpoint(Path(config.work_dir))
    contexts = look_backs(config, checkpoint.context)
    if config.text is None:
        score_splits(typed, config, study, additions, checkpoint, contexts, ranks)
        return
    require(not additions.name, f"--text: {additions.name} reads splits only; drop one of the two")
    for name in ("loss_by_position", "attention_by_distance"):
        require(not getattr(study, name), f"--{name} and --text: it is measured on splits; drop one of the two")
    if ranks.is_main:  # it is one stream
        score_file(config.text, config, checkpoint, contexts, ranks)


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
    if ranks.is_main:
        require_outputs(config, pictures_of(config, study))
    model = loaded(checkpoint, config, ranks)

    @functools.lru_cache(maxsize=1)  # one is made from the training text, and large
    def with_additions(context: Context) -> Predictor:
        return prepared(additions, model, checkpoint, corpus, context, config, ranks)

    rows = []
    for split in splits:
        ids = ranks.main_first(lambda split=split: corpus.split(split))
        for context in contexts:
            text = (model, corpus.vocab, ids, split, context, config, ranks)
            if not additions.name:
                new = [score(*text, study)]
            else:  # the predictor first: what is wrong with a store is known before the text is read
                predictor = with_additions(context if additions.dynamic.dynamic == "rms" else contexts[0])
                new = [score(*text, study), score(*text, additions=additions, predictor=predictor)]
            rows += new
            if ranks.is_main:
                for row in new:
                    tell_one(row)
    if ranks.is_main:
        show(rows)
        write_results(rows, config, checkpoint=str(checkpoint.folder))
        write_pictures(rows, pictures_of(config, study))


def tell_one(row: Row) -> None:
    """A line as soon as there is something to tell."""
    nats, added = row.score.nats_per_token, f" | {row.added}" if row.added else ""
    lengths = f"tgt_len {row.context.tgt_len:5d} | mem_len {row.context.mem_len:5d}"
    say(f"| {row.split} | {lengths} | loss {nats:5.2f} | ppl {perplexity(nats):9.3f}{added}")


def score_file(
    name: str, config: EvalConfig, checkpoint: Checkpoint, contexts: Sequence[Context], ranks: Ranks
) -> None:
    """Score a text from its first token on: it begins a line, or goes on where the text before it ends."""
    vocab = Vocab.from_text(checkpoint.attachment("vocab.txt"))
    before = [vocab.index[EOS]]
    if config.context is not None:
        before += encode_text(read_text(config.context), vocab, name=config.context, running=config.tokenise)
    ids = encode_text(read_text(name), vocab, name=name, running=config.tokenise)
    require_outputs(config)
    model = loaded(checkpoint, config, ranks)

    rows, nats = [], []
    for context in contexts:
        start, peak = time.perf_counter(), PeakMemory(ranks.device)
        nll_N = score_text(model, before + ids, within(context, len(before + ids)), first=len(before))
        seconds = time.perf_counter() - start
        rows.append(Row("text", context, Score.of(nll_N, np.array(ids), vocab.sizes), seconds, peak.bytes()))
        nats = nll_N.tolist()
    tokens = tokens_of(vocab.decode(ids), ids, nats, unk=vocab.index.get(UNK))
    if config.per_token == "-":
        sys.stdout.write(as_tsv(tokens))
    else:
        show(rows)
    if config.per_token not in (None, "-"):
        write_tokens(Path(config.per_token), tokens, checkpoint=str(checkpoint.folder), text=name)
    write_results(rows, config, checkpoint=str(checkpoint.folder))


def loaded(checkpoint: Checkpoint, config: EvalConfig, ranks: Ranks) -> TransformerXL:
    """A checkpoint's model on this process's device, its attention computed as asked for."""
    model = load_model(checkpoint).to(ranks.device)
    model.use_attention(config.attn_impl)
    return model


def look_backs(config: EvalConfig, trained: Context) -> list[Context]:
    """One look-back for each segment and memory length asked for; what was not given is as in training."""
    given = {name: getattr(config, name) for name in ("ext_len", "clamp_len", "same_length")}
    given = {name: value for name, value in given.items() if value is not None}
    return [
        dataclasses.replace(trained, **given, tgt_len=tgt_len, mem_len=mem_len)
        for tgt_len in config.tgt_len or (trained.tgt_len,)
        for mem_len in config.mem_len or (trained.mem_len,)
    ]


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
    study: StudyConfig = NO_STUDY,
    *,
    additions: Additions = NOTHING,
    predictor: Predictor | None = None,
) -> Row:
    """A split with one look-back, the streams shared out over processes.

    Args:
        study: what else is measured of it.
        predictor: the model with `additions`; not given: the model.
    """
    seen = context_of(config.convention, context)
    predictor = predictor or predictor_of(config.convention, model, seen)
    if config.convention != "huggingface":  # whose memory begins full, so that its length makes a difference
        seen = within(seen, len(ids))
    n_warmup = n_warmup_of(config.convention, context, seen, n_layer=model.config.n_layer)
    n_warmup += additions.warmup_segments(seen)
    streams = cut(ids, vocab, seen, n_warmup, config, ranks)
    n_segment = sum(map(len, streams))
    watch = None
    if study.loss_by_position:
        watch = LossByPosition(seen, n_token=len(ids), starts=starts_where_known(ids, vocab))
    start, peak = time.perf_counter(), PeakMemory(ranks.device)
    shares = []
    with progress(f"{split} mem_len {context.mem_len}", n_segment, ranks) as bar:
        for stream in streams:
            segments, observe = ticking(stream, bar), None
            if watch:
                segments, observe = watch.segments(segments, stream.first_B), watch.add
            share = evaluate(model, segments, seen, predictor=predictor, sizes=vocab.sizes, observe=observe)
            shares.append(share)
    result = Score.total(shares).over(ranks)
    seconds = time.perf_counter() - start
    peaks = ranks.gathered(peak.bytes())
    attention = None
    if study.attention_by_distance:
        with progress(f"{split} attention", n_segment, ranks) as bar:
            mine = attention_by_distance(model, (ticking(stream, bar) for stream in streams), seen)
        attention = mine.over(ranks)
    return Row(
        split,
        context,
        result,
        seconds,
        peak_bytes=None if None in peaks else max(peaks),
        losses=watch.over(ranks) if watch else {},
        attention=attention,
        added=additions.name,
    )


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


def starts_where_known(ids: np.ndarray, vocab: Vocab) -> np.ndarray | None:
    """Places where documents begin, or None where no heading tells."""
    try:
        return article_starts(ids, vocab)
    except DataError:
        return None


def compare_context_lengths(typed: Typed, ranks: Ranks) -> None:
    """The relative effective context length of several runs, on one split; rank 0 tells."""
    config, study = build(EvalConfig, typed), build(StudyConfig, typed)
    checkpoints = comparable(typed, config, study)
    corpus = ranks.main_first(lambda: open_corpus(typed, checkpoints[0]))
    ids = ranks.main_first(lambda: corpus.split(config.split))
    longest = study.context_lengths[-1]
    require(
        len(ids) > longest,
        f"--recl_longest {study.recl_longest}: no token of the {config.split} split ({len(ids)} tokens) has {longest} "
        f"before it; use at most {len(ids) - 1}, or a longer text",
    )
    picture = Path(study.recl[0]) / "recl.png"
    if ranks.is_main:
        require_outputs(config, [picture])
    nats_MCP = [losses_of(checkpoint, ids, config, study, ranks) for checkpoint in checkpoints]
    if ranks.is_main:
        result = recl.recl(nats_MCP, study.context_lengths)
        say(recl.table(result, study.recl))
        plot_recl(picture, result, study.recl)
        say(f"| picture: {picture}")
        if config.json:
            content = {"split": config.split, "recl": result.as_dict(study.recl)}
            write_text(Path(config.json), json.dumps(content, indent=1) + "\n")


def comparable(typed: Typed, config: EvalConfig, study: StudyConfig) -> list[Checkpoint]:
    """The runs of --recl.

    Raises:
        UsageError: if they cannot be compared, or something else is asked for at the same time.
    """
    require("work_dir" not in typed, "--work_dir and --recl: the runs are those of --recl; drop --work_dir")
    require(config.split != "all", "--recl: is measured on one split; give --split valid or --split test")
    additions = ("dynamic", "cache_size", "knn_store")
    for name in ("convention", "reset", "text", "loss_by_position", "attention_by_distance", *additions):
        require(name not in typed, f"--{name} and --recl do not go together; drop one of them")
    for name in ("tgt_len", "mem_len"):
        lengths = " ".join(map(str, getattr(config, name)))
        require(
            len(getattr(config, name)) < 2,
            f"--{name} {lengths}: --recl tries contexts of its own lengths; give one value at most",
        )
    try:
        checkpoints = [open_checkpoint(Path(run)) for run in study.recl]
    except UsageError as error:
        raise UsageError(str(error).replace("--work_dir", "--recl")) from None
    first, *others = checkpoints
    for other in others:
        require(
            other.attachment("vocab.txt") == first.attachment("vocab.txt"),
            f"--recl {other.folder}: its vocabulary is not that of {first.folder}; losses of the same tokens are "
            f"compared, so leave out one of the two",
        )
    return checkpoints


def losses_of(
    checkpoint: Checkpoint, ids: np.ndarray, config: EvalConfig, study: StudyConfig, ranks: Ranks
) -> np.ndarray:
    """Nats by context length and position, of one run; the windows are shared out over processes."""
    (context,) = look_backs(config, checkpoint.context)
    streams = window_streams(
        ids,
        length=study.context_lengths[-1],
        every=study.recl_every,
        batch_size=config.batch_size,
        tgt_len=context.tgt_len,
        ext_len=context.ext_len,
        rank=ranks.rank,
        world=ranks.world,
    )
    model = loaded(checkpoint, config, ranks)
    with progress(checkpoint.folder.name, sum(map(len, streams)), ranks) as bar:
        nats_CP = recl.losses_by_context(
            model,
            ((stream.first_B, ticking(stream, bar)) for stream in streams),
            context,
            lengths=study.context_lengths,
            every=study.recl_every,
            n_token=len(ids),
        )
    return functools.reduce(np.fmax, ranks.gathered(nats_CP))  # where others have read there is no number


def progress(what: str, n_segment: int, ranks: Ranks) -> tqdm:
    """A progress bar on rank 0, where there is a terminal."""
    return tqdm(total=n_segment, desc=what, unit="segment", leave=False, disable=None if ranks.is_main else True)


def ticking(stream: RowStream, bar: tqdm) -> Iterator[Segment]:
    """The segments of a stream, each a tick of a progress bar."""
    for segment in stream:
        yield segment
        bar.update()


if __name__ == "__main__":
    run(main, DataError)
