"""Train a Transformer-XL on a folder of text, in one process or in many:

python train.py --data FOLDER ...           torchrun --nproc_per_node=4 train.py --data FOLDER ...
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from txl.attention_rules.paths import attention_path, use_attention
from txl.checkpoint import Background, Checkpoint, CheckpointWriter, load_model, load_snapshot, load_weights
from txl.cli.flags import read_flags
from txl.commands.evaluations import evaluate_best, sample_text, validation_of
from txl.commands.settings import Settings, resolved
from txl.config import Context, ModelConfig, as_dict, build, require
from txl.data_utils.corpus import Corpus, DataConfig
from txl.data_utils.lm1b import SentenceStream
from txl.data_utils.segments import SegmentStream
from txl.data_utils.tokenizer import Tokenizer
from txl.evaluation.reading import within
from txl.language.model import LanguageModel
from txl.language.sources import tokenizer_in
from txl.memory import unbounded
from txl.model.transformer import TransformerXL
from txl.positions import require_serves
from txl.runtime.allocator import keep_freed_memory
from txl.runtime.distributed import Ranks, process_group
from txl.runtime.log import print_line
from txl.training.config import TrainConfig
from txl.training.estimate import require_memory, require_room_for_weights, training_bytes
from txl.training.folder import locked_run_directory, prepare_resume, start_new_run
from txl.training.init import init_weights
from txl.training.loop import train
from txl.training.metrics import Metrics, provenance
from txl.training.run import conclude, describe, describe_bytes, device_name, require_disk, sizes
from txl.training.sharding import drawn_in_shards, in_shards, model_in_shards, require_shards, shard
from txl.training.step import TrainState, autocast_dtype

MOST_USED = (
    *("data", "dataset", "work_dir", "resume", "overwrite", "max_step", "batch_size", "lr", "tgt_len", "mem_len"),
    *("n_layer", "d_model", "n_head", "d_head", "d_inner", "dropout", "adaptive"),
)
_NEW_RUN = "bring the text back, or start a new run in another --work_dir"


def main(argv: Sequence[str]) -> int:
    configs = (DataConfig, TrainConfig, ModelConfig, Context)
    typed = read_flags(argv, *configs, description=__doc__ or "", first=MOST_USED)
    asked = build(TrainConfig, typed)  # bad values are refused before anything is opened
    keep_freed_memory()
    with process_group(timeout_s=asked.timeout_s, device=asked.device) as ranks:
        run_folder = Path(asked.work_dir)
        with locked_run_directory(run_folder, ranks) as restarted:
            return run(resolved(typed, ranks, run_folder, restarted=restarted), ranks, run_folder)


def run(settings: Settings, ranks: Ranks, run_folder: Path) -> int:
    """Train, from a checkpoint or from the beginning; returns the exit status."""
    config, context, checkpoint, start = settings.train, settings.context, settings.checkpoint, settings.initial

    # the text and the model
    splits = ("train", "valid", "test") if config.eval_test else ("train", "valid")
    is_given = bool(config.init_from or settings.data.tokenizer)  # not made of the text
    words = start.tokenizer if start else tokenizer_in(checkpoint) if checkpoint and is_given else None
    corpus = ranks.main_first(lambda: Corpus(settings.data, words, needed=splits))
    if ranks.is_main and corpus.note:
        print_line(f"| {corpus.note}")
    shape = settings.shape if isinstance(settings.shape, ModelConfig) else settings.shape.of_text(corpus, ranks)
    require_shards(shape, config, ranks)
    require_room_for_weights(shape, config, ranks)
    model = resumed_model(checkpoint, corpus, config, ranks) if checkpoint else new_model(shape, config, start, ranks)
    require_serves(model.layers[0].attn.pos, context, can_change=checkpoint is None and start is None)
    model.to(ranks.device)
    use_attention(model, config.attn_impl, keep_mib=config.attn_keep_mib)

    # what the loop reads and writes
    stream = training_stream(corpus, config, context, ranks)
    validation = validation_of(corpus, config, context, shape, ranks)
    texts = {split: corpus.fingerprint(split) for split in ("train", "valid")}
    record = {"train": as_dict(config), "data": as_dict(corpus.config), "texts": texts}
    checkpoints = checkpoint_writer(run_folder, context, config, ranks, record, corpus.vocab)
    sample = functools.partial(sample_text, model, corpus, context, config) if config.sample_length else None
    needed = require_resources(model, corpus, config, context, ranks, run_folder, checkpoint)

    # the state of the training, new or restored; nothing of an old run is removed before this point
    state = TrainState(model, config, context, ranks)
    if checkpoint:
        require_same_texts(checkpoint, texts)
        state.restore(load_snapshot(checkpoint, stream.columns, model))
        prepare_resume(run_folder, checkpoint, state.progress, ranks)
    else:
        start_new_run(run_folder, ranks, overwrite=config.overwrite)
        torch.manual_seed(config.seed + ranks.rank)  # dropout differs between ranks, the initial weights do not

    resumed_from = state.progress.step if checkpoint else None
    with Metrics(
        run_folder if ranks.is_main else None, resumed_from, owes_evaluation=state.progress.owes_evaluation
    ) as metrics:
        if ranks.is_main:
            print_beginning(state, len(stream), needed)
            metrics.start(
                **provenance(),
                device=device_name(ranks.device),
                world_size=ranks.world,
                **sizes(model, context),
                resumed_from_step=resumed_from,
                model=as_dict(shape),
                context=as_dict(context),
                **record,
            )
        outcome = train(state, stream, validation, checkpoints, metrics, sample)
        if config.eval_test and outcome.reason is None:
            evaluate_best(run_folder, corpus, config, validation.context, ranks, metrics)
    return conclude(outcome, config, run_folder, ranks)


def require_resources(
    model: TransformerXL,
    corpus: Corpus,
    config: TrainConfig,
    context: Context,
    ranks: Ranks,
    run_folder: Path,
    checkpoint: Checkpoint | None,
) -> dict[str, int]:
    """The bytes that a process needs, see `training_bytes`. Raises `UsageError` if memory or disk is too small."""
    of_a_stream = within(context, len(corpus.split("train")) // config.batch_size)
    needed = training_bytes(model, config, of_a_stream, ranks, autocast_dtype(config, ranks.device))
    require_memory(needed, ranks)
    n_done = checkpoint.record["step"] if checkpoint else 0
    require_disk(run_folder, config, needed, config.max_step - n_done, ranks)
    return needed


def checkpoint_writer(
    run_folder: Path, context: Context, config: TrainConfig, ranks: Ranks, record: dict[str, Any], vocab: Tokenizer
) -> CheckpointWriter:
    """What writes the checkpoints of this process's streams, with --async_save in the background."""
    background = Background() if config.async_save else None
    ranks = ranks.with_own_group(config.timeout_s) if background else ranks
    columns = ranks.columns(config.batch_size)
    return CheckpointWriter(run_folder, context, ranks, columns, record, vocab.files(), config.keep_last, background)


def print_beginning(state: TrainState, n_segment: int, needed: dict[str, int]) -> None:
    """Print what is about to be trained."""
    model, config = state.model, state.config
    by_row = config.reset == "document"
    print_line(describe(model, state.ranks, n_segment))
    path = attention_path(model, state.context, state.dtype, needs_grad=True, by_row=by_row)
    print_line(f"| attention: {path}, products in {str(state.dtype).removeprefix('torch.')}")
    what = unbounded(model.config)
    if what and config.eval_batch_size is None and config.reset == "never":
        print_line(f"| {what}: evaluations read one stream, on whose number the result depends")
    if config.shard and not model.is_sharded:
        print_line("| --shard: one process has nothing to share out; start several with torchrun")
    print_line(describe_bytes(needed))


def training_stream(
    corpus: Corpus, config: TrainConfig, context: Context, ranks: Ranks
) -> SegmentStream | SentenceStream:
    """This process's streams of the train split."""
    ids, by_document = corpus.split("train"), config.reset == "document"
    shared: dict[str, Any] = {"batch_size": config.batch_size, "tgt_len": context.tgt_len, "ext_len": context.ext_len}
    shared |= {"columns": ranks.columns(config.batch_size), "seed": config.seed}
    if corpus.kind.has_sentences:
        for name in ("varlen", "roll"):
            require(
                not getattr(config, name),
                f"--{name}: the sentences of {corpus.config.dataset} are shuffled already; leave it out",
            )
        files = corpus.file_starts("train")
        return SentenceStream(ids, files, eos_id=corpus.vocab.eos_id, by_sentence=by_document, **shared)
    starts = corpus.document_starts("train") if by_document else None
    return SegmentStream(ids, varlen=config.varlen, roll=config.roll, starts=starts, **shared)


def new_model(shape: ModelConfig, config: TrainConfig, start: LanguageModel | None, ranks: Ranks) -> TransformerXL:
    """A model with weights drawn from the seed, the same on all ranks, or those of `start`, as float32."""
    if in_shards(config, ranks) and start is None:
        return drawn_in_shards(shape, config, ranks)
    torch.manual_seed(config.seed)
    model = TransformerXL(shape, dropout=config.dropout, dropatt=config.dropatt)
    if start is None:
        init_weights(model, config)
    else:
        model.load_state_dict(start.model.state_dict())
    if in_shards(config, ranks):
        shard(model, ranks)
    return model


def resumed_model(checkpoint: Checkpoint, corpus: Corpus, config: TrainConfig, ranks: Ranks) -> TransformerXL:
    """The model of a checkpoint. Raises `UsageError` if the text has another vocabulary."""
    same = all(checkpoint.attachment(name) == content for name, content in corpus.vocab.files().items())
    changed = f"its vocabulary is no longer the one {checkpoint.folder} was trained with"
    require(same, f"{corpus.folder}: {changed}; {_NEW_RUN}")
    if in_shards(config, ranks):
        model = model_in_shards(checkpoint.model_config, config, ranks)
        load_weights(checkpoint, model)
        return model
    return load_model(checkpoint, dropout=config.dropout, dropatt=config.dropatt)


def require_same_texts(checkpoint: Checkpoint, texts: dict[str, str]) -> None:
    """Raise `UsageError` if a text has changed since the checkpoint was saved."""
    for split, fingerprint in checkpoint.record.get("texts", {}).items():
        same = texts.get(split) == fingerprint
        require(same, f"{split}.txt has changed since {checkpoint.folder} was saved; {_NEW_RUN}")
