"""What a training is to be: flags over a checkpoint's settings over the defaults, resolved once. The
architecture of a new model is in the flags and follows from the text, its cutoffs from the
frequencies of the words.
"""

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from txl.checkpoint import Checkpoint
from txl.config import Context, ModelConfig, UsageError, as_dict, build, names_of, require
from txl.convert.kimiyoung_arguments import PUBLISHED, Published
from txl.data_utils.corpus import Corpus, DataConfig
from txl.language.model import LanguageModel
from txl.language.texts import data_settings
from txl.memory import lengths_with, parts_by_default, positions_by_default
from txl.model.parts import require_masks_documents, require_works
from txl.model.rule import MemoryRule
from txl.positions.base import TableSettings
from txl.registry import MEMORIES, is_read
from txl.runtime.distributed import Ranks
from txl.runtime.log import print_line
from txl.settings.flags import refuse_idle_flags
from txl.settings.layers import Asked
from txl.training.config import TrainConfig
from txl.training.folder import open_run, saved_settings
from txl.training.init import init_weights
from txl.training.repeated import why_no_graph
from txl.training.run import require_shares
from txl.training.schedules import schedule_of
from txl.usage import MemoryUse

AUTO = ("auto",)
CUTOFF_SHARES = (0.075, 0.15, 0.75)  # WikiText-103's, for vocabularies of other sizes
_AT_A_TIME = 1 << 24


@dataclass(frozen=True)
class Shape:
    """An architecture before its text is known.

    Attributes:
        model: all of it but words and clusters.
        cutoffs: as asked for; None: nothing is.
    """

    model: ModelConfig
    cutoffs: tuple[int, ...] | tuple[str, ...] | None

    def of_text(self, corpus: Corpus, ranks: Ranks) -> ModelConfig:
        """The model for a text. --cutoffs auto asks for the cheapest ones for its frequencies."""
        n_token = len(corpus.vocab)
        if self.cutoffs != AUTO:
            return self.of_words(n_token, corpus.config.dataset)
        plain = replace(self.model, n_token=n_token)
        counts_V = word_counts(corpus)
        found = best_cutoffs(counts_V, plain)
        if ranks.is_main:
            chosen = products_per_token(counts_V, found, plain)
            whole = products_per_token(counts_V, (), plain)
            print_line(
                f"| --cutoffs auto: {' '.join(map(str, found)) or 'none'}: {chosen:,.0f} products"
                f" per token in the softmax, {whole:,.0f} without cutoffs"
            )
        plain = replace(self.model, adaptive=bool(found))
        return replace(self, model=plain, cutoffs=found).of_words(n_token, corpus.config.dataset)

    def of_words(self, n_token: int, dataset: str) -> ModelConfig:
        """The model of as many words, with what follows from the data set: cutoffs, tied
        projections. Raises `UsageError` if there are too few words for clusters, or a cluster's
        embeddings get no width.
        """
        published = PUBLISHED.get(dataset, Published(()))
        cutoffs = self.cutoffs or ()
        if self.model.adaptive and self.cutoffs is None:
            cutoffs = published.cutoffs
            if not cutoffs or cutoffs[-1] >= n_token:
                cutoffs = tuple(int(share * n_token) for share in CUTOFF_SHARES)
                few = (
                    f"--adaptive: a vocabulary of {n_token} words is too small for clusters; drop"
                    " the flag"
                )
                require(0 < cutoffs[0] < cutoffs[1] < cutoffs[2] < n_token, few)
        tied = (False,) + (published.ties_projections,) * len(cutoffs)
        config = replace(self.model, n_token=n_token, cutoffs=cutoffs, tie_projs=tied)
        widths = " ".join(map(str, config.cluster_widths))
        none = (
            f"--div_val {config.div_val}: embeddings of the clusters get widths {widths}; raise"
            " --d_embed"
        )
        require(0 not in config.cluster_widths, none)
        return config


def word_counts(corpus: Corpus) -> np.ndarray:
    """How often the text has each word, (V,)."""
    ids = corpus.split("train")
    counts_V = np.zeros(len(corpus.vocab), dtype=np.int64)
    for begin in range(0, len(ids), _AT_A_TIME):
        part = ids[begin : begin + _AT_A_TIME].astype(np.int64)
        counts_V += np.bincount(part, minlength=len(counts_V))
    return counts_V


def cluster_shares(corpus: Corpus, sizes: Sequence[int]) -> list[float]:
    """The share of each cluster of the vocabulary, of these sizes, in the text."""
    counts_V = word_counts(corpus)
    begin_C = np.cumsum([0, *sizes[:-1]])
    return (np.add.reduceat(counts_V, begin_C) / counts_V.sum()).tolist()


def shape_of(typed: Asked, context: Context) -> Shape:
    """What flags ask for; `context` says how many positions a learned table has.

    Raises `UsageError`.
    """
    cutoffs = typed.get("cutoffs")
    given = f"--cutoffs {' '.join(map(str, cutoffs or ()))}"
    mixed = cutoffs is not None and cutoffs != AUTO and AUTO[0] in cutoffs
    require(not mixed, f"{given}: give ranks, or auto alone")
    both = f"--no_adaptive and {given}: drop one of them"
    require(not cutoffs or typed.get("adaptive") is not False, both)
    asked = {}
    for name, value in typed.items():
        if name != "cutoffs":
            asked[name] = value
    model = build(ModelConfig, asked)
    has_table = is_read("n_position", model)
    if has_table and model.settings(TableSettings).n_position is None:
        model = replace(model, n_position=positions_by_default(model, context))
    return Shape(model, cutoffs)


_LOG = logging.getLogger(__name__)
_CONVENTIONS = (
    ("warmup_convention", "train", TrainConfig.warmup_convention),
    ("data_convention", "data", DataConfig.data_convention),
)
"""What a run keeps as it began: flag, its place in the record, what an older record leaves out."""
ENDLESS = 2**53 - 1
"""Updates that no training makes; JSON holds it exactly."""


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


def resolve_training(typed: Asked, ranks: Ranks, run_folder: Path, *, restarted: bool) -> Settings:
    """The settings of a training in a folder, see `open_run`. Raises `UsageError` if flags
    contradict each other, or contradict the run that is resumed or the model of --init_from.
    """
    typed = without_last_update(with_batch_size(typed, ranks))
    free = {name for name, _, _ in _CONVENTIONS}
    # what asks for clusters contradicts no model's cutoffs, where these were to be found
    if typed.get("cutoffs") == AUTO:
        free |= {"cutoffs", "adaptive"}
    fixed = {}
    for name, value in typed.items():
        if name not in free:
            fixed[name] = value
    checkpoint = open_run(run_folder, fixed, ranks, restarted=restarted)
    if checkpoint is None:
        return new_settings(typed, ranks, _initial_model(fixed))
    typed = _with_its_conventions(typed, checkpoint)
    train = build(TrainConfig, typed, **saved_settings(checkpoint))
    data = build(DataConfig, typed, **data_settings(checkpoint.record, checkpoint.folder, typed))
    context = build(Context, typed, **as_dict(checkpoint.context))
    return _checked(
        Settings(train, context, data, checkpoint.model_config, checkpoint), typed, ranks
    )


def _with_its_conventions(typed: Asked, checkpoint: Checkpoint) -> Asked:
    """The flags without conventions other than those that a run began with, which a preset may name
    since: a notice says which it keeps.
    """
    kept = dict(typed)
    for name, section, default in _CONVENTIONS:
        recorded = checkpoint.record.get(section, {}).get(name, default)
        asked = kept.pop(name, recorded)
        if asked != recorded:
            _LOG.warning("--%s %s: the run goes on with %s, as it began", name, asked, recorded)
    return kept


def new_settings(typed: Asked, ranks: Ranks, initial: LanguageModel | None = None) -> Settings:
    """Those of a new training. Raises `UsageError` if flags contradict each other."""
    if initial:
        memory = initial.model_config.memory
    else:
        memory = typed.get("memory", ModelConfig.memory)
    of_context = SimpleNamespace(**{f.name: typed.get(f.name) for f in dataclasses.fields(Context)})
    # before its lengths are judged without it
    require_works(memory, of_context, can_change=initial is None)
    context = build(Context, typed, **_lengths_of(initial))
    train = build(TrainConfig, typed)
    length = train.eval_tgt_len or context.tgt_len
    longer = f"--eval_tgt_len {length}: longer than --tgt_len {context.tgt_len}; lower it"
    require("eval_tgt_len" not in typed or length <= context.tgt_len, longer)
    if initial:
        shape = initial.model_config
    else:
        shape = shape_of(typed, context)
    data = build(DataConfig, typed, **_text_of(initial))
    settings = Settings(train, context, data, shape, initial=initial)
    return _checked(_with_memory(settings, typed, ranks), typed, ranks)


def _lengths_of(initial: LanguageModel | None) -> dict[str, Any]:
    """Those of --init_from, but for what its memory, which --memory may have exchanged, cannot
    have.
    """
    if initial is None:
        return {}
    return as_dict(lengths_with(initial.model_config.memory, initial.context))


def _text_of(initial: LanguageModel | None) -> dict[str, str]:
    """What --init_from says of the text: one in a pretrained tokenizer is read as it stands."""
    if initial is None or not initial.tokenizer.encodes_in_one:
        return {}
    return {"dataset": initial.record["data"]["dataset"]}


def with_batch_size(typed: Asked, ranks: Ranks) -> Asked:
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


def without_last_update(typed: Asked) -> Asked:
    """The flags; with --minutes and without --max_step, those of a training that no number of
    updates ends.
    """
    if "minutes" not in typed or "max_step" in typed:
        return typed
    return {"max_step_scheduler": ENDLESS, **typed, "max_step": ENDLESS}


def _with_memory(settings: Settings, typed: Asked, ranks: Ranks) -> Settings:
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
        n_part = parts_by_default(shape.memory, context)
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


def _checked(settings: Settings, typed: Asked, ranks: Ranks) -> Settings:
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
    why = why_no_graph(config, ranks)
    require(config.cuda_graph is not True or not why, f"--cuda_graph: {why}; give --no_cuda_graph")
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


def _initial_model(typed: Asked) -> LanguageModel | None:
    """The model of --init_from, with the memory that flags ask for. Raises `UsageError` if a flag
    asks for another architecture.
    """
    if typed.get("init_from") is None:
        return None
    source = typed["init_from"]
    found = LanguageModel.open(
        source, vocabulary=typed.get("vocabulary"), dataset=typed.get("dataset"), device="cpu"
    )
    shape = found.model_config
    of_memory = MemoryUse.asked(typed)
    for name in names_of(ModelConfig):
        if name in of_memory or name not in typed or not hasattr(shape, name):
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
    if of_memory:
        _exchange_memory(found, of_memory, typed)
    return found


def _exchange_memory(lm: LanguageModel, of_memory: Asked, typed: Asked) -> None:
    """Give a model the memory that flags ask for. Its new weights are drawn as those of a new
    model.
    """
    memory = of_memory.get("memory", lm.model_config.memory)
    settings = {}
    for name, value in of_memory.items():
        if name in MEMORIES.own(memory):  # the others are refused as those of a new model are
            settings[name] = value
    if not lm.model.remember(memory, **settings):
        return
    config = build(TrainConfig, typed)
    rules = nn.ModuleList([layer.memory for layer in lm.model.layers])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        init_weights(rules, config)


MOST_CUTOFFS = 3
_N_CANDIDATE = 200
_NARROWEST = 8
"""The smallest width of a cluster's embedding; narrower ones tell too few words apart."""


def products_per_token(counts_V: np.ndarray, cutoffs: Sequence[int], config: ModelConfig) -> float:
    """Expected multiplications per token of the softmax, projections included, with these cutoffs.

    Every token needs the head: the shortlist and an entry per tail cluster. A token of a tail
    cluster needs that too.

    Args:
        counts_V: how often each word of the vocabulary occurs.
    """
    sum_V1 = np.append(0, np.cumsum(counts_V)) / max(1, int(counts_V.sum()))
    costs = []
    for i, (begin, end) in enumerate(pairwise((0, *cutoffs, len(counts_V)))):
        costs.append(
            _cost(config, i, np.array(end - begin + len(cutoffs) * (i == 0)))
            * (1.0 if i == 0 else sum_V1[end] - sum_V1[begin])
        )
    return float(sum(costs))


def best_cutoffs(counts_V: np.ndarray, config: ModelConfig) -> tuple[int, ...]:
    """The cutoffs, at most three and none for small vocabularies, with the fewest products per
    token.

    Ranks are looked at on a grid that is finer at the frequent end.
    """
    n_token = len(counts_V)
    grid = np.unique(np.geomspace(min(100, n_token), n_token, _N_CANDIDATE).round(-1).astype(int))
    grid = grid[(grid > 0) & (grid < n_token)]
    sum_G = np.append(np.append(0, np.cumsum(counts_V))[grid] / max(1, int(counts_V.sum())), 1.0)
    rank_G = np.append(grid, n_token)
    best = products_per_token(counts_V, (), config)
    found = ()
    for n_cutoff in range(1, MOST_CUTOFFS + 1):
        if config.d_embed // config.div_val**n_cutoff < _NARROWEST:
            break
        # cost_G[g]: least cost of the clusters so far, the last of which ends at rank_G[g]
        cost_G = _cost(config, 0, rank_G + n_cutoff)
        paths = []
        for i in range(1, n_cutoff + 1):
            share_GG = sum_G[None] - sum_G[:, None]
            step_GG = cost_G[:, None] + share_GG * _cost(config, i, rank_G[None] - rank_G[:, None])
            step_GG[np.tril_indices(len(rank_G))] = np.inf
            paths.append(step_GG.argmin(0))
            cost_G = step_GG.min(0)
        if cost_G[-1] < best:
            g = len(rank_G) - 1
            places = []
            for path in reversed(paths):
                places.append(g := int(path[g]))
            best = float(cost_G[-1])
            found = tuple(int(rank_G[g]) for g in reversed(places))
    return found


def _cost(config: ModelConfig, i: int, n_class: np.ndarray) -> np.ndarray:
    """Products of one token in cluster i of `n_class` classes."""
    width = config.d_embed // config.div_val**i
    has_projection = config.div_val > 1 or config.d_embed != config.d_model
    return width * n_class + (width * config.d_model if has_projection else 0)
