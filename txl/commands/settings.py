"""What a training is to be: flags over a checkpoint's settings over the defaults, resolved once."""

import dataclasses
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from txl.checkpoint import Checkpoint
from txl.cli.flags import Typed, refuse_idle_flags
from txl.commands.shape import AUTO, Shape, shape_of
from txl.config import Context, ModelConfig, UsageError, as_dict, build, fields_of, require
from txl.data_utils.corpus import DataConfig
from txl.data_utils.remote import remember_typed
from txl.language.model import LanguageModel
from txl.language.texts import data_settings
from txl.model.refusals import require_masks_documents, require_works
from txl.model.rule import MemoryRule
from txl.registry import MEMORIES
from txl.runtime.distributed import Ranks
from txl.training.config import TrainConfig
from txl.training.folder import open_run, saved_settings
from txl.training.run import require_shares
from txl.training.schedules import schedule_of

_LOG = logging.getLogger(__name__)
ENDLESS = 2**53 - 1
"""Updates that no training makes; JSON holds it exactly."""
_PARTS = 4
"""Of a segment, where a memory learns from later ones what to write in earlier ones."""


class Settings(NamedTuple):
    """The configurations of a training, which go together.

    Attributes:
        shape: the model's architecture; of a new one, before its text is known.
        checkpoint: what it goes on from.
        initial: the model of --init_from, if it does not go on.
    """

    train: TrainConfig
    context: Context
    data: DataConfig
    shape: ModelConfig | Shape
    checkpoint: Checkpoint | None = None
    initial: LanguageModel | None = None


def resolved(typed: Typed, ranks: Ranks, run_folder: Path, *, restarted: bool) -> Settings:
    """The settings of a training in a folder, see `open_run`. Raises `UsageError` if flags
    contradict each other, or the model or run that is gone on from.
    """
    typed = without_last_update(with_batch_size(typed, ranks))
    remember_typed(typed.get("data"))
    # what asks for clusters contradicts no model's cutoffs, where these were to be found
    if typed.get("cutoffs") == AUTO:
        free = {"cutoffs", "adaptive"}
    else:
        free = set()
    fixed = {}
    for name, value in typed.items():
        if name not in free:
            fixed[name] = value
    checkpoint = open_run(run_folder, fixed, ranks, restarted=restarted)
    if checkpoint is None:
        return new_settings(typed, ranks, _initial_model(fixed))
    train = build(TrainConfig, typed, **saved_settings(checkpoint))
    data = build(DataConfig, typed, **data_settings(checkpoint.record, checkpoint.folder, typed))
    context = build(Context, typed, **as_dict(checkpoint.context))
    return _checked(
        Settings(train, context, data, checkpoint.model_config, checkpoint), typed, ranks
    )


def new_settings(typed: Typed, ranks: Ranks, initial: LanguageModel | None = None) -> Settings:
    """Those of a new training. Raises `UsageError` if flags contradict each other."""
    if initial:
        memory = initial.model_config.memory
    else:
        memory = typed.get("memory", ModelConfig.memory)
    of_context = SimpleNamespace(**{f.name: typed.get(f.name) for f in dataclasses.fields(Context)})
    # before its lengths are judged without it
    require_works(memory, of_context, can_change=initial is None)
    context = build(Context, typed, **(as_dict(initial.context) if initial else {}))
    train = build(TrainConfig, typed)
    length = train.eval_tgt_len or context.tgt_len
    longer = f"--eval_tgt_len {length}: longer than --tgt_len {context.tgt_len}; lower it"
    require("eval_tgt_len" not in typed or length <= context.tgt_len, longer)
    if initial:
        shape = initial.model_config
    else:
        shape = shape_of(typed, context)
    settings = Settings(train, context, build(DataConfig, typed), shape, initial=initial)
    return _checked(_with_memory(settings, typed, ranks), typed, ranks)


def with_batch_size(typed: Typed, ranks: Ranks) -> Typed:
    """The flags with the `batch_size` that follows from --local_batch_size, if that is given."""
    if "local_batch_size" not in typed:
        return typed
    batch_size = typed["local_batch_size"] * ranks.world
    asked = typed.get("batch_size", batch_size)
    both = f"--batch_size {asked} and --local_batch_size {typed['local_batch_size']}"
    require(
        asked == batch_size, f"{both}: over {ranks.world} process(es) they differ; drop one of them"
    )
    return {**typed, "batch_size": batch_size}


def without_last_update(typed: Typed) -> Typed:
    """The flags; with --minutes and without --max_step, those of a training that no number of
    updates ends.
    """
    if "minutes" not in typed or "max_step" in typed:
        return typed
    return {"max_step_scheduler": ENDLESS, **typed, "max_step": ENDLESS}


def _with_memory(settings: Settings, typed: Typed, ranks: Ranks) -> Settings:
    """The same, with lengths and parts with which the memory remembers and learns to. Raises
    `UsageError` if it remembers nothing; says what else is of no use.
    """
    train = settings.train
    context = settings.context
    found = settings.shape
    if isinstance(found, Shape):
        shape = found.model
    else:
        shape = found
    require_works(shape.memory, context, can_change=isinstance(found, Shape))
    rule = MEMORIES[shape.memory]
    why = rule.traits.idle(context)
    require(not why, why)
    if rule.traits.compresses:
        context = context.overlaid(compressed_len=context.n_compressed)
    if train.memory_parts is None:
        in_parts = rule.traits.learns_to_write and not context.ext_len
        if in_parts:
            n_part = min(_PARTS, context.tgt_len)
        else:
            n_part = 1
        train = dataclasses.replace(train, memory_parts=n_part)
    note = _note_on_parts(rule, shape.memory, train.n_part, context)
    if note and ranks.is_main:
        _LOG.warning("%s", note)
    return settings._replace(train=train, context=context)


def _note_on_parts(rule: type[MemoryRule], name: str, n_part: int, context: Context) -> str:
    """What is of no use in the parts that segments are read in; empty: nothing."""
    if rule.traits.learns_to_write and n_part == 1:
        return (
            f"--memory_parts 1: nothing teaches --memory {name} what to write; give 2 or more,"
            " without --ext_len"
        )
    if n_part > 1 and rule.traits.is_bounded and not context.mem_len:
        seen = (
            f"nothing is remembered, so a token sees {-(-context.tgt_len // n_part)} of"
            f" {context.tgt_len} tokens"
        )
        return f"--memory_parts {n_part}: {seen} at most; leave it out, or use another --memory"
    return ""


def _checked(settings: Settings, typed: Typed, ranks: Ranks) -> Settings:
    """The same, with what follows from other settings.

    Raises `UsageError` unless they go together.
    """
    config, context, data, found, *_ = settings
    if isinstance(found, Shape):
        shape = found.model
    else:
        shape = found
    refuse_idle_flags(typed, config, data, shape)
    if settings.checkpoint is None:
        schedule_of(config).require_fits()
    require_shares(config, ranks)
    if config.reset != "never":
        require_masks_documents(shape)
        fused = (
            f"--reset {config.reset}: --attn_impl fused does not mask the documents of a row; use"
            " auto"
        )
        require(config.attn_impl != "fused", fused)
    can_change = isinstance(found, Shape)
    require_works(shape.memory, config, can_change=can_change)
    require_works(shape.memory, context, can_change=can_change)
    parts = f"--memory_parts {config.n_part}"
    whole = f"--tgt_len {context.tgt_len}"
    require(config.n_part <= context.tgt_len, f"{parts}: more than {whole} has tokens; lower it")
    require(
        config.n_part == 1 or not context.ext_len,
        f"{parts}: works with --ext_len 0 only; drop one of them",
    )
    drawn = (
        f"--draw_mem_len {config.draw_mem_len}: has no effect without --mem_len; give it, or leave"
        " this flag out"
    )
    require(not config.draw_mem_len or context.mem_len > 0, drawn)
    eval_tgt_len = config.eval_tgt_len or context.tgt_len
    config = dataclasses.replace(
        config, max_step_scheduler=config.schedule_length, eval_tgt_len=eval_tgt_len
    )
    return settings._replace(train=config)


def _initial_model(typed: Typed) -> LanguageModel | None:
    """The model of --init_from. Raises `UsageError` if a flag asks for another architecture."""
    if typed.get("init_from") is None:
        return None
    source = typed["init_from"]
    found = LanguageModel.open(
        source, vocabulary=typed.get("vocabulary"), dataset=typed.get("dataset"), device="cpu"
    )
    shape = found.model_config
    for name in fields_of(ModelConfig):
        if name not in typed or not hasattr(shape, name):
            continue
        asked = typed[name]
        if name == "d_embed" and asked == -1:
            asked = shape.d_model
        has = getattr(shape, name)
        if has != asked:
            raise UsageError(
                f"--{name} {typed[name]}: the model of --init_from {source} has {has}; drop the"
                " flag"
            )
    return found
