"""eval.py --recl: the relative effective context length of several runs."""

import functools
from collections.abc import Collection, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch

from txl.cli import Typed
from txl.config import Context, ModelConfig, build, require
from txl.data_utils.rows import RowStream, window_streams
from txl.evaluation.config import CacheConfig, DynamicConfig, EvalConfig, KnnConfig, StudyConfig
from txl.evaluation.plots import drawable, picture_folder, plot_recl
from txl.evaluation.report import require_outputs, write_json
from txl.evaluation.score import require_finite
from txl.evaluation.study import recl
from txl.language.model import LanguageModel
from txl.model.autocast import require_in_range
from txl.model.settings import require_read_by_one
from txl.model.transformer import TransformerXL
from txl.runtime.distributed import Ranks
from txl.runtime.log import print_line, progress, ticking


def compare_context_lengths(typed: Typed, ranks: Ranks) -> None:
    """The relative effective context length of several runs, on one split; rank 0 reports."""
    config, study = build(EvalConfig, typed), build(StudyConfig, typed)
    _require_nothing_else(typed, config)

    def opened(run: str) -> LanguageModel:
        return LanguageModel.open(run, vocabulary=config.vocabulary, dataset=typed.get("dataset"), device="cpu")

    first = opened(study.recl[0])
    shapes = [require_same_vocabulary(opened(run), first) for run in study.recl]  # one model in RAM at a time
    require_read_by_one(typed, shapes)
    corpus = ranks.main_first(lambda: first.corpus(typed))
    ids = ranks.main_first(lambda: corpus.split(config.split))
    longest = study.context_lengths[-1]
    short = f"no token of the {config.split} split ({len(ids)} tokens) has {longest} before it"
    advice = f"use at most {len(ids) - 1}, or a longer text"
    require(len(ids) > longest, f"--recl_longest {study.recl_longest}: {short}; {advice}")
    pictures = []
    if ranks.is_main:
        require_outputs(config)
        pictures = drawable([picture_folder(config, first.run or Path()) / "recl.png"], config)
    nats_MCP = [context_losses(opened(run), ids, config, study, ranks) for run in study.recl]
    if ranks.is_main:
        result = recl.recl(np.stack(nats_MCP), study.context_lengths)
        print_line(recl.table(result, study.recl))
        for picture in pictures:
            plot_recl(picture, result, study.recl)
            print_line(f"| picture: {picture}")
        if config.json:
            content = {"split": config.split, "dtype": config.dtype, "recl": result.as_dict(study.recl)}
            write_json(Path(config.json), content)


def require_same_vocabulary(lm: LanguageModel, first: LanguageModel) -> ModelConfig:
    """The shape of a model. Raises `UsageError` if it has another vocabulary than the first."""
    same = lm.tokenizer.fingerprint() == first.tokenizer.fingerprint()
    require(same, f"--recl {lm.folder}: its vocabulary is not that of {first.folder}; leave out one of the two")
    return lm.model_config


def _require_nothing_else(typed: Collection[str], config: EvalConfig) -> None:
    require("work_dir" not in typed, "--work_dir and --recl: the runs are those of --recl; drop --work_dir")
    require(config.split != "all", "--recl: is measured on one split; give --split valid or --split test")
    additions = [f.name for cls in (DynamicConfig, CacheConfig, KnnConfig) for f in fields(cls)]
    for name in ("convention", "reset", "text", "loss_by_position", "attention_by_distance", *additions):
        require(name not in typed, f"--{name} and --recl do not go together; drop one of them")
    for name in ("tgt_len", "mem_len"):
        lengths = getattr(config, name)
        given = f"--{name} {' '.join(map(str, lengths))}"
        require(len(lengths) < 2, f"{given}: --recl tries contexts of its own lengths; give one value at most")


def context_losses(
    lm: LanguageModel, ids: np.ndarray, config: EvalConfig, study: StudyConfig, ranks: Ranks
) -> np.ndarray:
    """Nats by context length and position of one run; the windows are shared out over processes."""
    (context,) = config.look_backs(lm.context)
    windows = window_streams(
        ids,
        length=study.context_lengths[-1],
        every=study.recl_every,
        batch_size=config.batch_size,
        tgt_len=context.tgt_len,
        ext_len=context.ext_len,
    )[ranks.rank :: ranks.world]
    with lm.used_as(config, ranks.device) as model:
        return losses_of(lm.folder.name, model, windows, context, study, ranks, n_token=len(ids))


def losses_of(
    name: str,
    model: TransformerXL,
    windows: Sequence[RowStream],
    context: Context,
    study: StudyConfig,
    ranks: Ranks,
    *,
    n_token: int,
) -> np.ndarray:
    """Nats of one run by context length and position, see `recl.losses_by_context`, over all processes, whose windows
    together cover every position. Raises `UsageError` on all of them if one has a loss that is not finite."""
    with progress(name, sum(map(len, windows)), shown=ranks.is_main) as bar:
        nats_CP = recl.losses_by_context(
            model,
            ((stream.first_B, ticking(stream, bar)) for stream in windows),
            context,
            lengths=study.context_lengths,
            every=study.recl_every,
            n_token=n_token,
        )
    nats_CP = functools.reduce(np.fmax, ranks.gathered(nats_CP))  # positions of other processes are NaN
    require_in_range(torch.from_numpy(nats_CP), ranks.device)  # after `gathered`, or other processes would hang
    require_finite(float(nats_CP.sum(dtype=np.float64)), name)
    return nats_CP
