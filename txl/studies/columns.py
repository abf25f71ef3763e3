"""The columns of a study: one for each row that its evaluations give."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from txl.cli.flags import read_flags
from txl.config import build
from txl.evaluation.config import ADDED, EVAL, SCORE
from txl.evaluation.test_time import Additions
from txl.studies.plan import Flags, words

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
    from txl.data_utils.datasets import DataConfig

    classes = (*(SCORE if "text" in flags else EVAL), DataConfig)
    typed = read_flags(words(flags, Path("run")), *classes, description="")
    if "text" in flags:
        split = "text"
    else:
        split = typed.get("split", "all")
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
