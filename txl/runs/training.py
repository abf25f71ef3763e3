"""A training from its settings to its last line: text, model, state, loop, what is printed first."""

import functools
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from txl.attention_rules import attention_path, use_attention
from txl.checkpoint import (
    Background,
    Checkpoint,
    CheckpointWriter,
    load_model,
    load_snapshot,
    load_weights,
)
from txl.config import Context, ModelConfig, as_dict, build, require
from txl.data_utils.corpus import Corpus
from txl.data_utils.lm1b import SentenceStream
from txl.data_utils.segments import SegmentStream
from txl.data_utils.tokens import Tokenizer
from txl.language.model import LanguageModel
from txl.language.sources import tokenizer_in
from txl.memory import unbounded
from txl.model.transformer import TransformerXL
from txl.positions import require_serves
from txl.runs.resolve import Settings, cluster_shares, resolve_training
from txl.runs.scoring import evaluate_best, sample_text, validation_of
from txl.runtime.clock import Clock
from txl.runtime.distributed import Ranks, process_group
from txl.runtime.log import print_line, transcript
from txl.runtime.recording import recorded
from txl.runtime.resources import keep_freed_memory
from txl.settings.layers import Asked
from txl.training import loop
from txl.training.budget import Budget
from txl.training.config import TrainConfig
from txl.training.estimate import require_memory, require_room_for_weights, training_bytes
from txl.training.folder import locked_run_directory, prepare_resume, start_new_run
from txl.training.init import init_weights
from txl.training.learning import freeze
from txl.training.loop import Outcome
from txl.training.metrics import LOG, LOG_BEGINS, Metrics, provenance
from txl.training.repeated import why_no_graph
from txl.training.run import conclude, describe, describe_bytes, device_name, require_disk, sizes
from txl.training.sharding import drawn_in_shards, in_shards, model_in_shards, require_shards, shard
from txl.training.step import TrainState, autocast_dtype

MANY_READINGS = 100
"""Of a text in a training, from which on it is said how many there are."""
_NEW_RUN = "bring the text back, or start a new run in another --work_dir"


def train(
    asked: Asked,
    clock: Clock | None = None,
    after_s: Callable[[float], float] | None = None,
    at_end: Callable[[Outcome], object] | None = None,
) -> int:
    """Train, from a checkpoint or from the beginning; returns the exit status.

    Args:
        asked: settings of `DataConfig`, `TrainConfig`, `ModelConfig` and `Context` by name, those
            that are not at their defaults; what a checkpoint says gives way to them.
        clock: of --minutes; None: one from the start of the program.
        after_s: seconds of them to leave when the training ends, given those of an evaluation on
            the valid split.
        at_end: told how the training ended.
    Raises:
        UsageError: if they contradict each other, the text or the run folder.
    """
    clock = clock or Clock()
    alone: TrainConfig = build(TrainConfig, asked)  # refused before anything is opened
    keep_freed_memory()
    run_folder = Path(alone.work_dir)
    with (
        transcript() as log,
        process_group(timeout_s=alone.timeout_s, device=alone.device) as ranks,
        locked_run_directory(run_folder, ranks) as restarted,
    ):
        settings = resolve_training(asked, ranks, run_folder, restarted=restarted)
        config = settings.train
        context = settings.context
        corpus = open_text(settings, ranks)
        model = model_of(settings, corpus, ranks)

        # what the loop reads and writes
        stream = training_stream(corpus, config, context, ranks)
        validation = validation_of(corpus, config, context, model.config, ranks)
        record = record_of(config, corpus)
        checkpoints = checkpoint_writer(run_folder, context, config, ranks, record, corpus.vocab)
        needed = require_resources(model, corpus, settings, ranks, run_folder)

        # the state of the training, new or restored; nothing of an old run is removed before this
        # point
        state = TrainState(model, config, context, ranks)
        if config.cuda_graph:
            repeat_updates(state, corpus)
        resumed_from = begin(state, settings, record["texts"], stream.columns, run_folder)
        state.budget = budget_of(state, clock, after_s)

        with metrics_of(state, run_folder, resumed_from) as metrics:
            if ranks.is_main:
                log.write_to(run_folder / LOG, title_of_start())
                print_beginning(state, len(stream), needed, corpus.vocab.unit)
                note_beginning(metrics, state, record, resumed_from)
            if config.sample_length:
                sample = functools.partial(sample_text, model, corpus, context, config)
            else:
                sample = None
            before_s = clock.seconds()
            outcome = loop.train(
                state, stream, validation, checkpoints, metrics, sample, before_s=before_s
            )
            if config.eval_test and outcome.reason is None:
                evaluate_best(run_folder, corpus, config, context, ranks, metrics)
            if at_end is not None:
                at_end(outcome)
        return conclude(outcome, config, run_folder, ranks)


def open_text(settings: Settings, ranks: Ranks) -> Corpus:
    """The text of the training in tokens. Rank 0 makes and writes them, the others find them."""
    config = settings.train
    start = settings.initial
    checkpoint = settings.checkpoint
    if config.eval_test:
        splits = ("train", "valid", "test")
    else:
        splits = ("train", "valid")
    is_given = bool(config.init_from or settings.data.tokenizer)  # not made of the text
    words = None
    if start:
        words = start.tokenizer
    elif checkpoint and is_given:
        words = tokenizer_in(checkpoint)
    corpus = ranks.main_first(lambda: Corpus(settings.data, words, needed=splits))
    if ranks.is_main and corpus.note:
        print_line(f"| {corpus.note}")
    return corpus


def model_of(settings: Settings, corpus: Corpus, ranks: Ranks) -> TransformerXL:
    """The model on its device, new or that of the checkpoint. Raises `UsageError` if it does not
    fit the processes or the memory, before it is built.
    """
    config = settings.train
    checkpoint = settings.checkpoint
    start = settings.initial
    if isinstance(settings.shape, ModelConfig):
        shape = settings.shape
    else:
        shape = settings.shape.of_text(corpus, ranks)
    require_shards(shape, config, ranks)
    require_room_for_weights(shape, config, ranks)
    if checkpoint:
        model = resumed_model(checkpoint, corpus, config, ranks)
    else:
        model = new_model(shape, config, start, ranks)
    can_change = checkpoint is None and start is None
    require_serves(model.layers[0].attn.pos, settings.context, can_change=can_change)
    model.to(ranks.device)
    use_attention(model, config.attn_impl, keep_mib=config.attn_keep_mib)
    return model


def new_model(
    shape: ModelConfig, config: TrainConfig, start: LanguageModel | None, ranks: Ranks
) -> TransformerXL:
    """A model with weights drawn from the seed, the same on all ranks, or those of `start`, as
    float32.
    """
    if in_shards(config, ranks) and start is None:
        return drawn_in_shards(shape, config, ranks)
    torch.manual_seed(config.seed)
    model = TransformerXL(shape, dropout=config.dropout, dropatt=config.dropatt)
    if start is None:
        init_weights(model, config)
    else:
        model.load_state_dict(start.model.state_dict())
    freeze(model, config.train)
    if in_shards(config, ranks):
        shard(model, ranks)
    return model


def resumed_model(
    checkpoint: Checkpoint, corpus: Corpus, config: TrainConfig, ranks: Ranks
) -> TransformerXL:
    """The model of a checkpoint. Raises `UsageError` if the text has another vocabulary."""
    same = all(
        checkpoint.attachment(name) == content for name, content in corpus.vocab.files().items()
    )
    changed = f"its vocabulary is no longer the one {checkpoint.folder} was trained with"
    require(same, f"{corpus.folder}: {changed}; {_NEW_RUN}")
    if in_shards(config, ranks):
        model = model_in_shards(checkpoint.model_config, config, ranks)
        load_weights(checkpoint, model)
        return model
    model = load_model(checkpoint, dropout=config.dropout, dropatt=config.dropatt)
    freeze(model, config.train)
    return model


def training_stream(
    corpus: Corpus, config: TrainConfig, context: Context, ranks: Ranks
) -> SegmentStream | SentenceStream:
    """This process's streams of the train split."""
    ids = corpus.split("train")
    by_document = config.reset == "document"
    shared: dict[str, Any] = {
        "batch_size": config.batch_size,
        "tgt_len": context.tgt_len,
        "ext_len": context.ext_len,
    }
    shared |= {"columns": ranks.columns(config.batch_size), "seed": config.seed}
    if corpus.kind.has_sentences:
        for name in ("varlen", "roll"):
            require(
                not getattr(config, name),
                f"--{name}: the sentences of {corpus.config.dataset} are shuffled already; leave"
                " it out",
            )
        files = corpus.file_starts("train")
        return SentenceStream(
            ids, files, eos_id=corpus.vocab.eos_id, by_sentence=by_document, **shared
        )
    if by_document:
        starts = corpus.document_starts("train")
    else:
        starts = None
    return SegmentStream(ids, varlen=config.varlen, roll=config.roll, starts=starts, **shared)


def record_of(config: TrainConfig, corpus: Corpus) -> dict[str, Any]:
    """What checkpoints and metrics.jsonl say of the training besides its model."""
    texts = {}
    for split in ("train", "valid"):
        texts[split] = corpus.fingerprint(split)
    return {"train": config.record(), "data": as_dict(corpus.config), "texts": texts}


def checkpoint_writer(
    run_folder: Path,
    context: Context,
    config: TrainConfig,
    ranks: Ranks,
    record: dict[str, Any],
    vocab: Tokenizer,
) -> CheckpointWriter:
    """What writes the checkpoints of this process's streams, with --async_save
    in the background.
    """
    if config.async_save:
        background = Background()
    else:
        background = None
    if background:
        ranks = ranks.with_own_group(config.timeout_s)
    columns = ranks.columns(config.batch_size)
    return CheckpointWriter(
        run_folder, context, ranks, columns, record, vocab.files(), config.keep_last, background
    )


def require_resources(
    model: TransformerXL, corpus: Corpus, settings: Settings, ranks: Ranks, run_folder: Path
) -> dict[str, int]:
    """The bytes that a process needs, see `training_bytes`.

    Raises `UsageError` if memory or disk is too small.
    """
    config = settings.train
    checkpoint = settings.checkpoint
    n_step = len(corpus.split("train")) // config.batch_size
    of_a_stream = settings.context.at_most(n_step, "tgt_len", "ext_len")
    needed = training_bytes(model, config, of_a_stream, ranks, autocast_dtype(config, ranks.device))
    require_memory(needed, ranks)
    if checkpoint:
        n_done = checkpoint.record["step"]
    else:
        n_done = 0
    require_disk(run_folder, config, needed, config.max_step - n_done, ranks)
    return needed


def repeat_updates(state: TrainState, corpus: Corpus) -> None:
    """Have updates recorded and repeated, with --cuda_graph auto where that can be done, and say so.

    Raises `UsageError` if they must be and cannot.
    """
    if state.config.cuda_graph == "auto":
        why = why_no_graph(state.config, state.ranks) or state.why_not_repeatable()
        said = "on: one process trains on one GPU"
        if why:
            said = f"off: {why}"
        if state.ranks.is_main:
            print_line(f"| --cuda_graph auto: {said}")
        if why:
            return
    state.repeat_update(recorded, cluster_shares(corpus, state.model.config.cluster_sizes))


def begin(
    state: TrainState, settings: Settings, texts: dict[str, str], columns: slice, run_folder: Path
) -> int | None:
    """Restore the state of the checkpoint, or make the folder that of a new run; returns the step
    that is resumed from.

    Args:
        texts: fingerprints of the splits. Raises `UsageError` if one has changed.
        columns: the streams of this process.
    """
    config = settings.train
    checkpoint = settings.checkpoint
    ranks = state.ranks
    if checkpoint is None:
        start_new_run(run_folder, ranks, overwrite=config.overwrite)
        # dropout differs between ranks, the initial weights do not
        torch.manual_seed(config.seed + ranks.rank)
        return None
    require_same_texts(checkpoint, texts)
    state.restore(load_snapshot(checkpoint, columns, state.model))
    prepare_resume(run_folder, checkpoint, state.progress, ranks)
    return state.progress.step


def budget_of(
    state: TrainState, clock: Clock, after_s: Callable[[float], float] | None
) -> Budget | None:
    """The time of the training, with --minutes; of one that goes on, what is left of it.

    Says so if it is used up.
    """
    if state.config.minutes is None:
        return None
    trained_s = state.progress.seconds
    budget = Budget(
        state.config.minutes, clock.seconds, state.ranks, trained_s=trained_s, after_s=after_s
    )
    if budget.is_over and state.progress.step and state.ranks.is_main:
        used = f"{trained_s / 60:.1f} minutes of training are done"
        print_line(
            f"| --minutes {state.config.minutes:g}: {used}, none are left; raise --minutes to go on"
        )
    return budget


def require_same_texts(checkpoint: Checkpoint, texts: dict[str, str]) -> None:
    """Raise `UsageError` if a text has changed since the checkpoint was saved."""
    for split, fingerprint in checkpoint.record.get("texts", {}).items():
        same = texts.get(split) == fingerprint
        require(same, f"{split}.txt has changed since {checkpoint.folder} was saved; {_NEW_RUN}")


def metrics_of(state: TrainState, run_folder: Path, resumed_from: int | None) -> Metrics:
    """What rank 0 writes metrics to; the others write none."""
    if state.ranks.is_main:
        work_dir = run_folder
    else:
        work_dir = None
    return Metrics(work_dir, resumed_from, owes_evaluation=state.progress.owes_evaluation)


def print_beginning(state: TrainState, n_segment: int, needed: dict[str, int], unit: str) -> None:
    """Print what is about to be trained, on tokens that are `unit`."""
    model = state.model
    config = state.config
    by_row = config.reset == "document"
    print_line(describe(model, state.ranks, n_segment, unit))
    for line in notices(state, n_segment):
        print_line(f"| {line}")
    path = attention_path(model, state.context, state.dtype, needs_grad=True, by_row=by_row)
    print_line(f"| attention: {path}, products in {str(state.dtype).removeprefix('torch.')}")
    what = unbounded(model.config)
    if what and config.eval_batch_size is None and config.reset == "never":
        print_line(f"| {what}: evaluations read one stream, on whose number the result depends")
    if config.shard and not model.is_sharded:
        print_line("| --shard: one process has nothing to share out; start several with torchrun")
    print_line(describe_bytes(needed))


def title_of_start() -> str:
    """The line in log.txt with which a start begins: the time, and the command line."""
    command = shlex.join(["python", *sys.orig_argv[1:]])
    return f"{LOG_BEGINS}{time.strftime('%Y-%m-%d %H:%M:%S')} {command}"


def notices(state: TrainState, n_segment: int) -> list[str]:
    """What a user may not expect of the length of this training: it is finished already, or reads
    a short text many times.
    """
    max_step = state.config.max_step
    if state.budget is not None:
        return []
    if state.is_over and not state.progress.owes_evaluation:
        return [
            f"this run is finished: its {state.progress.step:,} steps are those of --max_step;"
            " raise --max_step to go on"
        ]
    n_reading = max_step / max(1, n_segment)
    if n_reading < MANY_READINGS:
        return []
    return [
        f"--max_step {max_step} reads this text {n_reading:,.0f} times, and a model learns a text"
        " by heart that it reads often: watch the valid loss, or lower --max_step"
    ]


def note_beginning(
    metrics: Metrics, state: TrainState, record: dict[str, Any], resumed_from: int | None
) -> None:
    """Write the first record of this start: versions, sizes and settings."""
    model = state.model
    context = state.context
    ranks = state.ranks
    metrics.start(
        **provenance(),
        device=device_name(ranks.device),
        world_size=ranks.world,
        **sizes(model, context),
        resumed_from_step=resumed_from,
        model=as_dict(model.config),
        context=as_dict(context),
        **record,
    )
