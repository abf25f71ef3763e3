#!/usr/bin/env python
"""Train a Transformer-XL on a folder of text, in one process or in many:

python train.py --data FOLDER ...           torchrun --nproc_per_node=4 train.py --data FOLDER ...
"""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from data_utils.corpus import Corpus, DataConfig
from data_utils.files import DataError
from data_utils.stream import ScoringStream, SegmentStream
from txl.checkpoint import (
    Checkpoint,
    Snapshot,
    has_checkpoint,
    last_checkpoint,
    load_model,
    load_snapshot,
    remove_checkpoints,
    save_checkpoint,
)
from txl.cli import Typed, build, read_flags, run
from txl.config import Context, ModelConfig, TrainConfig, UsageError, as_dict, require
from txl.distributed import Ranks, joined
from txl.estimate import training_bytes
from txl.evaluate import Score, evaluate, evaluation_context, warmup_segments
from txl.init import init_weights
from txl.log import Metrics, perplexity, provenance, say
from txl.model import TransformerXL
from txl.training import Outcome, TrainState, train

PUBLISHED_CUTOFFS = {"wt103": (20_000, 40_000, 200_000)}
CUTOFF_SHARES = (0.075, 0.15, 0.75)  # WikiText-103's, for vocabularies of other sizes
FREE_WHEN_RESUMING = {
    *("work_dir", "resume", "overwrite", "max_step", "max_hours", "log_interval", "eval_interval", "save_interval"),
    *("keep_last", "max_eval_steps", "on_nonfinite", "max_nonfinite", "target_perplexity", "target_throughput"),
    *("timeout_s", "swap_mem", "recompute", "compile", "local_batch_size", "data", "cache_dir"),
}


def main(argv: Sequence[str]) -> int:
    typed = read_flags(argv, TrainConfig, ModelConfig, Context, DataConfig, description=__doc__ or "")
    with joined(timeout_s=typed.get("timeout_s", TrainConfig.timeout_s)) as ranks:
        if "local_batch_size" in typed:
            typed["batch_size"] = typed["local_batch_size"] * ranks.world
        run_folder = Path(typed.get("work_dir", TrainConfig.work_dir))
        checkpoint = checkpoint_to_resume(run_folder, typed)
        saved = checkpoint.record if checkpoint else {"train": {}, "context": {}, "data": {}}
        of_the_run = {k: v for k, v in saved["train"].items() if k not in ("work_dir", "resume", "overwrite")}
        config = build(TrainConfig, typed, **of_the_run)
        config = dataclasses.replace(config, max_step_scheduler=config.schedule_length)
        require_shares(config, ranks)
        context = build(Context, typed, **saved["context"])
        ranks.main_first(lambda: open_run(run_folder, config))
        corpus = ranks.main_first(lambda: open_corpus(build(DataConfig, typed, **saved["data"])))
        model = resumed_model(checkpoint, corpus, config) if checkpoint else new_model(typed, corpus, config)
        model.to(ranks.device)
        outcome = run_training(model, corpus, config, context, ranks, run_folder, checkpoint)
        return conclude(outcome, config, run_folder, ranks)


def run_training(
    model: TransformerXL,
    corpus: Corpus,
    config: TrainConfig,
    context: Context,
    ranks: Ranks,
    run_folder: Path,
    checkpoint: Checkpoint | None,
) -> Outcome:
    """Join the streams, the evaluation and the checkpoints to the training loop."""
    columns = ranks.columns(config.batch_size)
    stream = SegmentStream(
        corpus.split("train"),
        batch_size=config.batch_size,
        tgt_len=context.tgt_len,
        ext_len=context.ext_len,
        columns=columns,
        varlen=config.varlen,
        roll=config.roll,
        seed=config.seed,
    )
    eval_context = evaluation_context(context, config.eval_tgt_len)
    valid_stream = ScoringStream(
        corpus.split("valid"),
        batch_size=config.eval_batch_size,
        tgt_len=eval_context.tgt_len,
        ext_len=eval_context.ext_len,
        n_warmup=warmup_segments(model.config.n_layer, eval_context),
        rank=ranks.rank,
        world=ranks.world,
    )
    texts = {split: corpus.fingerprint(split) for split in ("train", "valid")}

    def validate() -> Score:
        limit = config.max_eval_steps if config.max_eval_steps > 0 else len(valid_stream)
        return evaluate(model, itertools.islice(valid_stream, limit), eval_context).over(ranks)

    def save(snapshot: Snapshot, *, step: int, valid_nats: float | None, best: bool) -> Path:
        return save_checkpoint(
            run_folder,
            model,
            context,
            step=step,
            best=best,
            record={
                "train": as_dict(config),
                "data": as_dict(corpus.config),
                "texts": texts,
                "valid_nats_per_token": valid_nats,
            },
            attachments={"vocab.txt": corpus.vocab.to_text()},
            snapshot=snapshot,
            streams=columns,
            ranks=ranks,
            keep_last=config.keep_last,
        )

    state = TrainState(model, config, context, ranks)
    if checkpoint:
        require_same_texts(checkpoint, texts)
        state.restore(load_snapshot(checkpoint, columns))
    else:
        torch.manual_seed(config.seed + ranks.rank)  # of dropout; the weights are drawn already, alike on all ranks
    with Metrics(run_folder if ranks.is_main else None) as metrics:
        if ranks.is_main:
            say(describe(model, corpus, ranks, len(stream)))
            say(describe_bytes(training_bytes(model, config, context, n_stream=len_of(columns) // config.batch_chunk)))
            metrics.start(
                **provenance(),
                device=device_name(ranks.device),
                world_size=ranks.world,
                parameters=sum(p.numel() for p in model.parameters()),
                resumed_from_step=state.progress.step if checkpoint else None,
                config={name: as_dict(part) for name, part in (("model", model.config), ("context", context))}
                | {"train": as_dict(config), "data": as_dict(corpus.config)},
            )
        return train(state, stream, validate=validate, save=save, metrics=metrics)


def conclude(outcome: Outcome, config: TrainConfig, run_folder: Path, ranks: Ranks) -> int:
    """Say how the training ended; the exit status."""
    if not ranks.is_main:
        return outcome.status
    if outcome.reason:
        say(f"| {outcome.reason}")
        return outcome.status
    best = perplexity(outcome.best_nats)
    say(f"| End of training | best valid ppl {best:9.3f} | {outcome.tok_per_s:.0f} tok/s | checkpoints in {run_folder}")
    missed = []
    if config.target_perplexity is not None and not best <= config.target_perplexity:
        missed.append(f"valid perplexity {best:.3f} is above --target_perplexity {config.target_perplexity}")
    if config.target_throughput is not None and outcome.tok_per_s < config.target_throughput:
        missed.append(f"{outcome.tok_per_s:.0f} tokens/s are below --target_throughput {config.target_throughput}")
    for line in missed:
        say(f"| missed: {line}")
    return 1 if missed else 0


def checkpoint_to_resume(folder: Path, typed: Typed) -> Checkpoint | None:
    """The last checkpoint if the run is to go on, None if it is new.

    A restart by torchrun goes on, whatever was typed.

    Raises:
        UsageError: if a typed flag contradicts the checkpoint.
    """
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if restarted:
        typed.pop("overwrite", None)
    if not (restarted or typed.get("resume")) or not has_checkpoint(folder):
        return None
    checkpoint = last_checkpoint(folder)
    record = checkpoint.record
    was = {**record["data"], **record["train"], **record["context"], **record["model"]}
    for name, asked in typed.items():
        asked = list(asked) if isinstance(asked, tuple) else asked
        if name not in FREE_WHEN_RESUMING and name in was and was[name] != asked:
            raise UsageError(
                f"--{name} {asked}: the run in {folder} was started with {was[name]}; drop the flag, or start a new "
                f"run in another --work_dir"
            )
    return checkpoint


def require_shares(config: TrainConfig, ranks: Ranks) -> None:
    """Raise `UsageError` unless the streams can be shared out evenly over processes and chunks."""
    parts, streams = ranks.world * config.batch_chunk, config.batch_size
    require(
        streams >= ranks.world,
        f"--batch_size {streams}: fewer streams than the {ranks.world} processes; give at least {ranks.world}",
    )
    near = sorted({max(parts, streams // parts * parts), -(-streams // parts) * parts})
    require(
        streams % parts == 0,
        f"--batch_size {streams}: does not divide into {ranks.world} processes times --batch_chunk "
        f"{config.batch_chunk}; nearest: {' or '.join(map(str, near))}",
    )


def open_run(folder: Path, config: TrainConfig) -> None:
    """Make the run's folder where it is missing; it must be writable and hold no other run."""
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if has_checkpoint(folder) and not config.resume and not restarted:
        require(
            config.overwrite or int(os.environ.get("RANK", "0")) > 0,
            f"--work_dir {folder}: holds the checkpoints of a run already; go on with --resume, name another folder, "
            f"or add --overwrite to lose them",
        )
        remove_checkpoints(folder)
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".writable.{os.getpid()}"
    probe.write_bytes(b"")
    probe.unlink()


def open_corpus(config: DataConfig) -> Corpus:
    """The text as token files, made where they are missing or stale."""
    corpus = Corpus(config)
    corpus.require_splits("train", "valid")
    for split in ("train", "valid"):
        corpus.split(split)
    return corpus


def new_model(typed: Typed, corpus: Corpus, config: TrainConfig) -> TransformerXL:
    """A model with weights drawn from the seed, the same on all ranks."""
    torch.manual_seed(config.seed)
    model = TransformerXL(shape_of_model(typed, corpus), dropout=config.dropout, dropatt=config.dropatt)
    init_weights(model, config)
    return model


def resumed_model(checkpoint: Checkpoint, corpus: Corpus, config: TrainConfig) -> TransformerXL:
    """The model of a checkpoint; its vocabulary must be the text's."""
    require(
        checkpoint.attachment("vocab.txt") == corpus.vocab.to_text(),
        f"{corpus.folder}: its vocabulary is no longer the one {checkpoint.folder} was trained with; bring the text "
        f"back, or start a new run in another --work_dir",
    )
    return load_model(checkpoint, dropout=config.dropout, dropatt=config.dropatt)


def require_same_texts(checkpoint: Checkpoint, texts: dict[str, str]) -> None:
    """Raise `UsageError` if a text is no longer what it was."""
    for split, fingerprint in checkpoint.record["texts"].items():
        require(
            texts[split] == fingerprint,
            f"{split}.txt has changed since {checkpoint.folder} was saved; bring the text back, or start a new run in "
            f"another --work_dir",
        )


def shape_of_model(typed: Typed, corpus: Corpus) -> ModelConfig:
    """The model's configuration with what the data set decides: words, cutoffs, which projections are tied."""
    n_token = len(corpus.vocab)
    decided: dict[str, Any] = {"n_token": n_token}
    if typed.get("adaptive") and "cutoffs" not in typed:
        published = PUBLISHED_CUTOFFS.get(corpus.config.dataset, (n_token,))
        shares = tuple(int(share * n_token) for share in CUTOFF_SHARES)
        decided["cutoffs"] = published if published[-1] < n_token else shares
    n_cluster = len(typed.get("cutoffs", decided.get("cutoffs", ())))
    decided["tie_projs"] = (False,) + (True,) * n_cluster
    config = build(ModelConfig, typed, **decided)
    if 0 in config.cluster_widths:
        widths = " ".join(map(str, config.cluster_widths))
        raise UsageError(f"--div_val {config.div_val}: embeddings of the clusters get widths {widths}; raise --d_embed")
    return config


def describe(model: TransformerXL, corpus: Corpus, ranks: Ranks, n_segment: int) -> str:
    """What is about to be trained on what."""
    n_all = sum(p.numel() for p in model.parameters())
    n_layers = sum(p.numel() for p in model.layers.parameters())
    return (
        f"| {n_all:,} parameters ({n_layers:,} in the layers) on {ranks.world} x {device_name(ranks.device)} | "
        f"{len(corpus.vocab):,} words | cutoffs {list(model.config.cutoffs)} | {n_segment:,} segments per epoch"
    )


def describe_bytes(needed: dict[str, int]) -> str:
    """The estimate of memory, in one line."""
    parts = ", ".join(f"{name} {n / 2**30:.2f}" for name, n in needed.items())
    return f"| about {sum(needed.values()) / 2**30:.2f} GiB per process: {parts}"


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def len_of(columns: slice) -> int:
    return columns.stop - columns.start


if __name__ == "__main__":
    run(main, DataError)
