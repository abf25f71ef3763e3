"""Score any text with a trained Transformer-XL, from its first token on:

txl score FILE --work_dir RUN --per_token FILE.tsv           python eval.py --text FILE --work_dir RUN ...
"""

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from txl.cli.flags import Typed, named, read_flags, refuse_idle_flags
from txl.commands.scoring import opened, training_text
from txl.config import require
from txl.data_utils.corpus import DataConfig
from txl.data_utils.free_text import encode_text, read_text
from txl.data_utils.tokenizers.base import UNK
from txl.evaluation.config import EVAL, SCORE, ScoreConfig
from txl.evaluation.reading import Predictor, Reading, within
from txl.evaluation.report import Token, as_tsv, print_table, require_outputs, write_results, write_tokens
from txl.evaluation.rows import row_of_text
from txl.evaluation.test_time import Additions, prepared
from txl.inference.reader import reading_context
from txl.language.model import LanguageModel
from txl.runtime.distributed import Ranks, process_group

MOST_USED = ("text", "work_dir", "context", "tokenise", "per_token", "mem_len", "json")


def main(argv: Sequence[str]) -> None:
    argv = named(argv, "text")
    elsewhere = {"has no effect with --text": EVAL}
    typed = read_flags(argv, *SCORE, DataConfig, description=__doc__ or "", first=MOST_USED, elsewhere=elsewhere)
    require("text" in typed, "name the file of the text: txl score FILE (-: standard input)")
    with process_group(timeout_s=3600, device=typed.get("device", "auto")) as ranks:
        if ranks.is_main:  # it is one stream
            score_file(*resolved(typed, ranks), ranks)


def resolved(typed: Typed, ranks: Ranks) -> tuple[LanguageModel, DataConfig | None, ScoreConfig, Additions]:
    """The model, the text of its training if that is read, and how the file is scored. Raises `UsageError` on flags
    that do not go together."""
    config, additions, lm = opened(ScoreConfig, typed, ranks)
    data = lm.data_config(typed) if additions.read_training_text else None
    refuse_idle_flags(typed, config, *additions, lm.model_config)
    of_text = [f.name for f in fields(DataConfig) if f.name != "dataset" or lm.run is not None]
    idle = ", ".join(f"--{name}" for name in of_text if name in typed and data is None)
    require(not idle, f"{idle}: no effect with --text, which is one stream of its own; leave it out")
    return lm, data, config, additions


def score_file(
    lm: LanguageModel, data: DataConfig | None, config: ScoreConfig, additions: Additions, ranks: Ranks
) -> None:
    """Score a text from its first token on, as the beginning of a line or as the continuation of --context."""
    vocab = lm.tokenizer
    how: dict[str, Any] = {"running": config.tokenise}
    if not config.tokenise:
        how["advice"] = "; for running text there is --tokenise"
    before = [vocab.eos_id]
    if config.context is not None:
        before += encode_text(read_text(config.context, vocab), vocab, name=config.context, **how).ids
    text = encode_text(read_text(config.text, vocab), vocab, name=config.text, **how)
    require_outputs(config.json, config.per_token)
    training = training_text(lm, lm.corpus(data), ranks) if additions.read_training_text else None
    counts = {name: int(size_N.sum()) for name, size_N in text.sizes.items()}
    ids = np.array(before + text.ids)
    rows, nats = [], []
    with lm.used_as(config) as model:
        for asked in config.look_backs(lm.context):
            context = asked if config.ext_len is not None else reading_context(lm.model_config, asked)
            predictors: list[tuple[str, Predictor]] = [("", model)]
            if additions.name:
                added = prepared(additions, model, training, context, batch_size=1, ranks=ranks)
                predictors.append((additions.name, added))
            for name_of_added, predictor in predictors:
                reading = Reading(context, within(context, len(ids)), 0, predictor, name_of_added)
                row, nll_N = row_of_text(ids, reading, model, ranks, first=len(before), counts=counts)
                rows.append(row)
                nats = nll_N.tolist()  # --per_token writes those of the last row
    columns = zip(vocab.decode(text.ids), text.ids, nats, text.offsets, text.surfaces, strict=True)
    tokens = [
        Token(position, word, i, nat, i == vocab.index.get(UNK), offset, surface)
        for position, (word, i, nat, offset, surface) in enumerate(columns)
    ]
    if config.per_token == "-":
        sys.stdout.write(as_tsv(tokens))
    else:
        print_table(rows)
    if config.per_token not in (None, "-"):
        write_tokens(Path(config.per_token), tokens, checkpoint=str(lm.folder), text=config.text)
    if config.json:
        which = {"checkpoint": str(lm.folder), "weights": lm.fingerprint(), "text": config.text}
        write_results(Path(config.json), rows, **which, dtype=config.dtype)
