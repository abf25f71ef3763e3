#!/usr/bin/env python
"""Evaluate a trained Transformer-XL, at one memory length or at several, in one process or in many; or score any text:

python eval.py --work_dir RUN ...           torchrun --nproc_per_node=4 eval.py --work_dir RUN ...
python eval.py --work_dir RUN --text FILE --per_token FILE.tsv
"""

import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data_utils.corpus import Corpus, DataConfig
from data_utils.files import DataError
from data_utils.free_text import encode_text, read_text
from data_utils.stream import RowStream, ScoringStream, Segment, document_streams, equal_streams
from data_utils.vocabulary import EOS, UNK, Vocab
from data_utils.wikitext import article_starts
from txl.checkpoint import Checkpoint, damaged, load_model, open_checkpoint
from txl.cli import Typed, build, read_flags, run
from txl.config import Context, EvalConfig, UsageError
from txl.conventions import context_of, n_warmup_of, predictor_of
from txl.distributed import Ranks, joined
from txl.evaluate import Score, evaluate, score_text, within
from txl.log import perplexity, say
from txl.model import TransformerXL
from txl.report import Row, as_tsv, require_outputs, show, tokens_of, write_results, write_tokens


def main(argv: Sequence[str]) -> None:
    typed = read_flags(argv, EvalConfig, DataConfig, description=__doc__ or "")
    with joined(timeout_s=3600) as ranks:
        run_evaluation(typed, ranks)


def run_evaluation(typed: Typed, ranks: Ranks) -> None:
    """Score splits or a text at the look-backs asked for."""
    config = build(EvalConfig, typed)
    checkpoint = open_checkpoint(Path(config.work_dir))
    contexts = look_backs(config, checkpoint.context)
    if config.text is None:
        score_splits(typed, config, checkpoint, contexts, ranks)
    elif ranks.is_main:  # it is one stream
        score_file(config.text, config, checkpoint, contexts, ranks)


def score_splits(
    typed: Typed, config: EvalConfig, checkpoint: Checkpoint, contexts: Sequence[Context], ranks: Ranks
) -> None:
    """Score the splits, the streams shared out over processes; rank 0 tells."""
    corpus = ranks.main_first(lambda: open_corpus(typed, checkpoint))
    splits = ("valid", "test") if config.split == "all" else (config.split,)
    corpus.require_splits(*splits)
    if ranks.is_main:
        require_outputs(config)
    model = load_model(checkpoint).to(ranks.device)
    model.use_attention(config.attn_impl)

    rows = []
    for split in splits:
        ids = ranks.main_first(lambda split=split: corpus.split(split))
        for context in contexts:
            row = score(model, corpus.vocab, ids, split, context, config, ranks)
            rows.append(row)
            if ranks.is_main:
                nats = row.score.nats_per_token
                say(f"| {split} | mem_len {context.mem_len:5d} | loss {nats:5.2f} | ppl {perplexity(nats):9.3f}")
    if ranks.is_main:
        show(rows)
        write_results(rows, config, checkpoint=str(checkpoint.folder))


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
    model = load_model(checkpoint).to(ranks.device)

    rows, nats = [], []
    for context in contexts:
        start = time.perf_counter()
        nll_N = score_text(model, before + ids, within(context, len(before + ids)), first=len(before))
        seconds = time.perf_counter() - start
        rows.append(Row("text", context, Score.of(nll_N, np.array(ids), vocab.sizes), seconds))
        nats = nll_N.tolist()
    tokens = tokens_of(vocab.decode(ids), ids, nats, unk=vocab.index.get(UNK))
    if config.per_token == "-":
        sys.stdout.write(as_tsv(tokens))
    else:
        show(rows)
    if config.per_token not in (None, "-"):
        write_tokens(Path(config.per_token), tokens, checkpoint=str(checkpoint.folder), text=name)
    write_results(rows, config, checkpoint=str(checkpoint.folder))


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
) -> Row:
    """A split with one look-back, the streams shared out over processes."""
    start = time.perf_counter()
    seen = context_of(config.convention, context)
    predictor = predictor_of(config.convention, model, seen)
    if config.convention != "huggingface":  # whose memory begins full, so that its length makes a difference
        seen = within(seen, len(ids))
    n_warmup = n_warmup_of(config.convention, context, seen, n_layer=model.config.n_layer)
    streams = cut(ids, vocab, seen, n_warmup, config, ranks)
    n_segment = sum(map(len, streams))
    hidden = None if ranks.is_main else True  # None: where there is a terminal
    with tqdm(total=n_segment, desc=f"{split} mem_len {context.mem_len}", leave=False, disable=hidden) as bar:
        shares = [
            evaluate(model, ticking(stream, bar), seen, predictor=predictor, sizes=vocab.sizes) for stream in streams
        ]
    return Row(split, context, Score.total(shares).over(ranks), time.perf_counter() - start)


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
