#!/usr/bin/env python
"""Train a Transformer-XL on a folder of text. `python train.py --help` lists the flags."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from data_utils.corpus import Corpus, DataConfig
from data_utils.files import DataError
from data_utils.stream import ScoringStream, SegmentStream
from txl.checkpoint import has_checkpoint, remove_checkpoints, save_checkpoint
from txl.cli import Typed, build, read_flags, run
from txl.config import Context, ModelConfig, TrainConfig, UsageError, as_dict, require
from txl.evaluate import Score, evaluate, evaluation_context, warmup_segments
from txl.init import init_weights
from txl.log import Scalars, say
from txl.model import TransformerXL
from txl.training import train

PUBLISHED_CUTOFFS = {"wt103": (20_000, 40_000, 200_000)}
CUTOFF_SHARES = (0.075, 0.15, 0.75)  # WikiText-103's, for vocabularies of other sizes


def main(argv: Sequence[str]) -> None:
    typed = read_flags(argv, TrainConfig, ModelConfig, Context, DataConfig, description=__doc__ or "")
    config, context = build(TrainConfig, typed), build(Context, typed)
    eval_context = evaluation_context(context, config.eval_tgt_len)
    run_folder = open_run(Path(config.work_dir), overwrite=config.overwrite)
    corpus = Corpus(build(DataConfig, typed))
    corpus.require_splits("train", "valid")
    model_config = shape_of_model(typed, corpus)

    stream = SegmentStream(
        corpus.split("train"), batch_size=config.batch_size, tgt_len=context.tgt_len, ext_len=context.ext_len
    )
    valid_stream = ScoringStream(
        corpus.split("valid"),
        batch_size=config.eval_batch_size,
        tgt_len=eval_context.tgt_len,
        ext_len=eval_context.ext_len,
        n_warmup=warmup_segments(model_config.n_layer, eval_context),
    )
    torch.manual_seed(config.seed)
    model = TransformerXL(model_config, dropout=config.dropout, dropatt=config.dropatt)
    init_weights(model, config)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    say(describe(model, corpus, len(stream)))

    def validate() -> Score:
        limit = config.max_eval_steps if config.max_eval_steps > 0 else len(valid_stream)
        return evaluate(model, (s for _, s in zip(range(limit), valid_stream, strict=False)), eval_context)

    def save(*, step: int, valid_nats: float | None, best: bool) -> Path:
        record = {"train": as_dict(config), "data": as_dict(corpus.config), "valid_nats_per_token": valid_nats}
        attachments = {"vocab.txt": corpus.vocab.to_text()}
        return save_checkpoint(run_folder, model, context, step=step, best=best, record=record, attachments=attachments)

    with Scalars(run_folder) as scalars:
        train(model, stream, validate=validate, save=save, config=config, context=context, scalars=scalars)
    say(f"| End of training | checkpoints in {run_folder}")


def open_run(folder: Path, *, overwrite: bool) -> Path:
    """The run's folder, made where it is missing, known to be writable and to hold no other run."""
    if has_checkpoint(folder):
        require(
            overwrite,
            f"--work_dir {folder}: holds the checkpoints of a run already; name another folder, or add --overwrite to "
            f"lose them",
        )
        remove_checkpoints(folder)
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / ".writable"
    probe.write_bytes(b"")
    probe.unlink()
    return folder


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
    widths = " ".join(map(str, config.cluster_widths))
    if 0 in config.cluster_widths:
        raise UsageError(f"--div_val {config.div_val}: embeddings of the clusters get widths {widths}; raise --d_embed")
    return config


def describe(model: TransformerXL, corpus: Corpus, n_segment: int) -> str:
    """What is about to be trained on what."""
    n_all = sum(p.numel() for p in model.parameters())
    n_layers = sum(p.numel() for p in model.layers.parameters())
    device = next(model.parameters()).device
    return (
        f"| {n_all:,} parameters ({n_layers:,} in the layers) on {device} | {len(corpus.vocab):,} words | "
        f"cutoffs {list(model.config.cutoffs)} | {n_segment:,} segments per epoch"
    )


if __name__ == "__main__":
    run(main, DataError)
