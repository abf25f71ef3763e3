"""Any text is scored with a trained model from its first token on."""

import io
import itertools
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from txl.config import require
from txl.data_utils.corpus import DataConfig
from txl.data_utils.documents import documents_of
from txl.data_utils.free_text import FreeText, encode_after, encode_text, has_tokens, read_text
from txl.data_utils.tokens import UNK, Tokenizer
from txl.evaluation.config import ScoreConfig
from txl.evaluation.reading import Reading, within
from txl.evaluation.report import (
    SCORE as SCORE_FILE,
)
from txl.evaluation.report import (
    Part,
    Token,
    as_tsv,
    print_parts,
    print_table,
    tokens_kind,
    write_results,
    write_tokens,
)
from txl.evaluation.rows import Row, row_of_texts
from txl.evaluation.test_time import Additions, prepared
from txl.inference.cuda_graph import frozen
from txl.inference.kept import Begun
from txl.inference.reader import reading_context
from txl.language.model import TOO_SHORT, LanguageModel
from txl.runs.models import begun_in, require_words
from txl.runs.scoring import open_for_scoring, training_text
from txl.runtime.distributed import Ranks, process_group
from txl.runtime.log import print_line
from txl.runtime.outputs import STANDARD, inputs_of, require_outputs
from txl.settings.flags import refuse_idle_flags
from txl.settings.layers import Asked


def score_text(asked: Asked) -> None:
    """Score a file with a trained model, print and write what is found.

    Args:
        asked: settings of `SCORE` and `DataConfig` by name.
    Raises:
        UsageError: if settings do not go together, or the model or the file cannot be read.
    """
    with process_group(timeout_s=3600, device=asked.get("device", "auto")) as ranks:
        if ranks.is_main:  # it is one stream
            _score_file(*_resolve(asked, ranks), ranks)


def _resolve(
    typed: Asked, ranks: Ranks
) -> tuple[LanguageModel, DataConfig | None, ScoreConfig, Additions]:
    """The model, the text of its training if that is read, and how the file is scored. Raises
    `UsageError` on flags that do not go together.
    """
    config, additions, lm = open_for_scoring(ScoreConfig, typed, ranks)
    require(
        config.memory_file is None or not additions.name,
        f"--memory_file: {additions.name} adapts to a text from its first token on; leave one of"
        " the two out",
    )
    if additions.dynamic.reads_training_text:
        data = lm.data_config(typed)
    else:
        data = None
    refuse_idle_flags(typed, config, *additions, lm.model_config)
    of_text = []
    for f in fields(DataConfig):
        if f.name != "dataset" or lm.run is not None:
            of_text.append(f.name)
    idle = ", ".join(f"--{name}" for name in of_text if name in typed and data is None)
    require(
        not idle, f"{idle}: no effect with --text, which is one stream of its own; leave it out"
    )
    outputs = {"--json": (config.json, SCORE_FILE)}
    if config.per_token not in (None, STANDARD):
        outputs["--per_token"] = (config.per_token, tokens_kind(config.per_token))
    require_outputs(outputs, inputs_of(typed, "json", "per_token"))
    return lm, data, config, additions


def _score_file(
    lm: LanguageModel,
    data: DataConfig | None,
    config: ScoreConfig,
    additions: Additions,
    ranks: Ranks,
) -> None:
    """Score a text, or each part of it alone, as the beginning of a line or as the continuation of
    --memory_file and --context.
    """
    vocab = lm.tokenizer
    require_words(lm, config.tokenise)
    begun = begun_in(lm, config.memory_file)
    how: dict[str, Any] = {"running": config.tokenise}
    if not config.tokenise:
        how["advice"] = "; for running text there is --tokenise"
    begins: Sequence[int] = vocab.begins
    if begun is not None:
        begins = begun.ids
    context = ""
    if config.context is not None:
        context = read_text(config.context, vocab)
        how["of_context"] = config.context
        if not context:
            encode_text(context, vocab, name=config.context)  # which refuses it
    texts = texts_of(read_text(config.text, vocab), context, begins, config, lm, how)
    if additions.dynamic.reads_training_text:
        training = training_text(lm.corpus(data), ranks)
    else:
        training = None
    counts = {}
    for name in texts[0].tokens.sizes:
        counts[name] = sum(int(one.tokens.sizes[name].sum()) for one in texts)
    ids = [np.array([*one.before, *one.tokens.ids]) for one in texts]
    firsts = [len(one.before) for one in texts]
    rows = []
    nats_of = []
    with lm.used_as(config) as model:
        for plain in readings_of(lm, config, begun, max(map(len, ids))):
            readings = [plain]
            if additions.name:
                added = prepared(additions, model, training, plain.asked, batch_size=1, ranks=ranks)
                readings.append(replace(plain, predictor=added, added=additions.name))
            for reading in readings:
                row, nats_of = row_of_texts(
                    ids, reading, model, ranks, firsts=firsts, counts=counts
                )
                rows.append(row)  # the tokens are those of the last row
    parts = []
    for one, nats_N in zip(texts, nats_of, strict=True):
        parts.append(part_of(one, nats_N.tolist(), vocab))
    report(lm, config, rows, parts)


def readings_of(
    lm: LanguageModel, config: ScoreConfig, begun: Begun | None, n_token: int
) -> list[Reading]:
    """How texts are read by the model alone, once for each of the lengths that are asked for.

    Args:
        n_token: of the longest text, with what is read before it.
    """
    if begun is not None:
        context = within(lm.model_config, begun.context, begun.n_token + n_token)
        predictor = frozen(lm.model, begun.memory)
        return [Reading(begun.context, context, 0, predictor, n_again=len(begun.again))]
    readings = []
    for context in config.look_backs(lm.context):
        if config.ext_len is None:
            context = reading_context(lm.model_config, context)
        seen = within(lm.model_config, context, n_token)
        readings.append(Reading(context, seen, 0, frozen(lm.model)))
    return readings


class _Text(NamedTuple):
    """A text that is read alone.

    Attributes:
        number: in the file.
        begin: characters before it.
        before: ids that are read before those that are scored.
        tokens: that are scored.
    """

    number: int
    begin: int
    before: list[int]
    tokens: FreeText


def texts_of(
    text: str,
    context: str,
    first_ids: Sequence[int],
    config: ScoreConfig,
    lm: LanguageModel,
    how: dict[str, Any],
) -> list[_Text]:
    """What of the file is read alone: the file, or those of its lines or documents that have
    tokens to score.

    Args:
        context: what each of them continues.
        first_ids: that are read before it.
        how: arguments of `encode_after`.
    Raises:
        UsageError: if there are no such tokens.
    """
    # the notices are of all of it
    before, tokens = encode_after(context, text, lm.tokenizer, name=config.text, **how)
    if config.each == "file":
        return [_Text(1, 0, *_scored(([*first_ids, *before], tokens), config.text))]
    contents = list(io.StringIO(text, newline=""))
    if config.each == "document":
        contents, rule = documents_of(text, lm.known_data.get("documents", "auto"))
        if config.per_token != "-":
            print_line(f"| {config.text}: {len(contents):,} documents by {rule}")
    begins = itertools.accumulate(map(len, contents), initial=0)
    texts = []
    for n, (begin, content) in enumerate(zip(begins, contents, strict=False), 1):
        if has_tokens(content, lm.tokenizer):
            before, tokens = encode_after(
                context, content, lm.tokenizer, name=config.text, **how, is_noticed=True
            )
            before = [*first_ids, *before]
            if len(before) + len(tokens.ids) > 1:
                texts.append(_Text(n, begin, *_scored((before, tokens), config.text)))
    require(bool(texts), f"{config.text}: {TOO_SHORT}")
    return texts


def _scored(found: tuple[list[int], FreeText], name: str) -> tuple[list[int], FreeText]:
    """The same with at least one token before those that are scored."""
    before, tokens = found
    if before:
        return found
    require(len(tokens.ids) > 1, f"{name}: {TOO_SHORT}")
    return tokens.ids[:1], tokens.from_token(1)


def part_of(text: _Text, nats: Sequence[float], vocab: Tokenizer) -> Part:
    """The tokens of a text with their nats."""
    ids, offsets, surfaces, _ = text.tokens
    columns = zip(vocab.decode(ids), ids, nats, offsets, surfaces, strict=True)
    unknown = vocab.index.get(UNK)
    tokens = []
    for position, (word, i, nat, offset, surface) in enumerate(columns):
        tokens.append(Token(position, word, i, nat, i == unknown, text.begin + offset, surface))
    return Part(text.number, tokens)


def report(lm: LanguageModel, config: ScoreConfig, rows: list[Row], parts: list[Part]) -> None:
    """Print and write what was found."""
    if config.per_token == "-":
        sys.stdout.write(as_tsv(parts, config.each))
    else:
        if config.each != "file":
            print_parts(parts, config.each)
        print_table(rows)
    if config.per_token not in (None, "-"):
        path = Path(config.per_token)
        write_tokens(path, parts, config.each, checkpoint=str(lm.folder), text=config.text)
    if config.json:
        which: dict[str, Any] = {
            "checkpoint": str(lm.folder),
            "weights": lm.fingerprint(),
            "text": config.text,
            **lm.read_with,
        }
        if config.memory_file is not None:
            which |= {"memory_file": config.memory_file}
        if config.each != "file":
            which |= {"each": [part.as_dict(config.each) for part in parts]}
        write_results(Path(config.json), rows, SCORE_FILE, **which, dtype=config.dtype)
