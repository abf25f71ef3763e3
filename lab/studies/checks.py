"""What is found out of a study before its first training: texts that are not there, contrasts that
never come, the columns of its tables, one for each row that its evaluations give.
"""

import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.perturbed import PerturbConfig
from lab.studies.plan import Flags, Study, words
from lab.studies.runner import TRAINING, reading_by
from txl.config import UsageError, build, names_of, require
from txl.data_utils.cache import Checks
from txl.data_utils.config import DATA_SETS, DataConfig
from txl.data_utils.remote import is_remote, names_in
from txl.data_utils.texts import Texts
from txl.evaluation.config import ADDED
from txl.evaluation.test_time import Additions
from txl.settings.flags import read_flags


def require_texts(study: Study) -> None:
    """Raise `UsageError` if a text that the study reads is not there, as far as that is known
    before a training: not of what is fetched from elsewhere, and not what another model was trained
    on.
    """
    for name, flags in study.variants.items():
        texts = _texts_of(flags, f"{study.name}: runs: {name}")
        if texts is not None:
            _require(texts, ("train", "valid"), f"{study.name}: runs: {name}")
        for evaluation, own in study.evaluations_of(name).items():
            _require_text_of(own, flags, texts, f"{study.name}: evaluations: {evaluation}")


def _require_text_of(own: Flags, of_run: Flags, texts: Texts | None, place: str) -> None:
    """Raise `UsageError` if an evaluation reads a text that is not there."""
    if "text" in own:
        path = Path(str(own["text"]))
        is_there = str(path) == "-" or "{run}" in str(path) or path.is_file()
        require(is_there, f"{place}: {path}: no such file; name the text that is scored")
        return
    if "{run}" in str(own.get("data")):
        return
    if "data" in own:
        of_text = {name: own[name] for name in own.keys() & set(names_of(DataConfig))}
        texts = _texts_of({**of_run, **of_text}, place)
    split = own.get("split", "all")
    if texts is not None and split != "all":
        _require(texts, (split,), place)


def require_columns(study: Study) -> None:
    """Raise `UsageError` if a contrast names a column that no evaluation gives, or two evaluations
    give one of the same name, of which only one would be reported.
    """
    for run in study.variants:
        columns = columns_of_run(study, run)
        for column in columns:
            require(
                columns.count(column) == 1,
                f"{study.name}: {column!r}: is a column of two evaluations of {run!r}; rename one",
            )
    for name, contrast in study.contrasts.items():
        for run, column in (*contrast.of, *contrast.against):
            columns = columns_of_run(study, run)
            there = f"no such column of {run!r}; there are {'; '.join(columns)}"
            require(column in columns, f"{study.name}: contrasts.{name}: {column!r}: {there}")


def columns_of_run(study: Study, run: str) -> list[str]:
    """The columns that a run of the study will have."""
    texts = _texts_of(study.variants[run], f"{study.name}: runs: {run}")

    def held_out() -> Sequence[str]:
        both = ("valid", "test")
        if texts is None:
            return both
        return [split for split in both if texts.is_there(split)]

    evaluations = study.evaluations_of(run).items()
    columns = []
    for name, flags in evaluations:
        for column in expected_columns(name, flags, held_out):
            columns.append(column)
    return [*columns, *study.best]


def _texts_of(flags: Flags, place: str) -> Texts | None:
    """The text of a run; None if what is there cannot be known yet."""
    typed = read_flags(words(flags, Path("run")), *TRAINING, description="")
    config: Any = build(DataConfig, typed)
    is_elsewhere = any(map(is_remote, names_in(config.data)))
    is_of_another = "init_from" in typed and "data" not in typed
    if is_elsewhere or is_of_another or config.dataset == "pydoc":  # which writes its text
        return None
    try:
        with tempfile.TemporaryDirectory() as nowhere:
            return DATA_SETS[config.dataset].texts(config, Checks(Path(nowhere)))
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None


def _require(texts: Texts, splits: Sequence[str], place: str) -> None:
    try:
        for split in splits:
            texts.require(split)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None


_VARIED = ("split", "tgt_len", "mem_len", "added", "borders")


def column_names(evaluation: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The name of each row of an evaluation: that of the evaluation, and what
    differs in its rows.
    """
    rows = [{"borders": "cut", **row} for row in rows]  # older results do not say it
    varied = []
    for key in _VARIED:
        if len({row[key] for row in rows}) > 1:
            varied.append(key)
    names = []
    for row in rows:
        parts = []
        for key in varied:
            parts.append(f"{key} {row[key]}" if key.endswith("_len") else str(row[key] or "plain"))
        names.append(", ".join([evaluation, *parts]))
    return names


def expected_columns(
    evaluation: str, flags: Flags, held_out: Callable[[], Sequence[str]]
) -> list[str]:
    """The names of the rows that eval.py will give with these flags.

    Args:
        held_out: the splits of the text that are evaluated if the flags name none.
    """
    reading = reading_by(flags)
    typed = read_flags(words(reading.flags, Path("run")), *reading.classes, description="")
    if "text" in flags:
        split = "text"
    else:
        split = typed.get("split", "all")
    if PerturbConfig in reading.classes:
        added = build(PerturbConfig, typed).name
    else:
        added = Additions(*(build(cls, typed) for cls in ADDED)).name
    lengths = []
    for name in ("tgt_len", "mem_len"):
        lengths.append(typed.get(name) or (None,))
    if typed.get("borders") == "both":
        borders = ["cut", "aside"]
    else:
        borders = [typed.get("borders", "cut")]
    kinds = [
        held_out() if split == "all" else [split],
        *lengths,
        ["", added] if added else [""],
        borders,
    ]
    rows: list[dict[str, Any]] = []
    for values in itertools.product(*kinds):
        rows.append(dict(zip(_VARIED, values, strict=True)))
    return list(dict.fromkeys(column_names(evaluation, rows)))
