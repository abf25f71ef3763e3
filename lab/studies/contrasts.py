"""The contrasts of a study as they were fixed: noted before the first reading of theirs, with a
digest.

A contrast that is changed or added when readings of it are there was chosen with figures in sight;
it is reported as exploratory. One that is taken out of the study file stays in the notes once
readings of it are there, and is reported and corrected for, too, as long as the study asks for
these.
"""

import hashlib
import json
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.studies.plan import Contrast, Study, evaluation_of, pairs, slug, tasks
from lab.studies.runner import done_in, finished
from txl.config import UsageError
from txl.files import write_whole
from txl.runtime.records import json_text, read_json, require_fields

NOTES = "contrasts.json"
"""In the folder of a study's results."""


@dataclass(frozen=True)
class Noted:
    """A contrast of a study, as it was noted.

    Attributes:
        of, against: its readings, of a run and a column each.
        metric: of the study.
        readings: how many of them had been made when it was noted.
        day: when that was.
        is_asked: it is in the study file still.
    """

    name: str
    of: list[list[str]]
    against: list[list[str]]
    metric: str
    readings: int
    day: str
    is_asked: bool = True

    @property
    def is_fixed(self) -> bool:
        """Whether it was noted before the first of its readings."""
        return self.readings == 0

    @property
    def contrast(self) -> Contrast:
        """What is compared."""
        return Contrast(pairs(self.of), pairs(self.against))

    @property
    def content(self) -> dict[str, Any]:
        """What must not change."""
        return {"name": self.name, "of": self.of, "against": self.against, "metric": self.metric}


def digest_of(noted: Iterable[Noted]) -> str:
    """Of the contrasts that were fixed: SHA-256 of their content as JSON, in hexadecimal digits."""
    content = sorted(json.dumps(one.content, sort_keys=True) for one in noted if one.is_fixed)
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def note_contrasts(study: Study, runs: Path, folder: Path) -> list[Noted]:
    """Note the contrasts of a study in the folder of its results, those that are there already as
    they were noted.

    Raises:
        UsageError: if the notes are damaged.
    """
    before = read_notes(folder)
    noted = []
    known = {}
    for one in before:
        known[json.dumps(one.content, sort_keys=True)] = one
    made = evaluations_made(study, runs)
    for name, contrast in study.contrasts.items():
        of = list(map(list, contrast[0]))
        against = list(map(list, contrast[1]))
        n_reading = readings_made(study, contrast, made)
        new = Noted(name, of, against, study.metric, n_reading, time.strftime("%Y-%m-%d"))
        old = known.pop(json.dumps(new.content, sort_keys=True), None)
        noted.append(new if old is None else Noted(**{**asdict(old), "is_asked": True}))
    for old in known.values():
        if was_read(study, old.contrast, runs):
            noted.append(Noted(**{**asdict(old), "is_asked": False}))
    if noted != before:
        notes = {"digest": digest_of(noted), "contrasts": [asdict(one) for one in noted]}
        write_whole(folder / NOTES, json_text(notes, ensure_ascii=False))
    return noted


def read_notes(folder: Path) -> list[Noted]:
    """The contrasts that were noted in a folder; none where there are no notes."""
    path = folder / NOTES
    try:
        content = read_json(path)
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise _damaged(path, error) from None
    try:
        noted = []
        for one in content["contrasts"]:
            noted.append(Noted(**require_fields(one, Noted)))
        if digest_of(noted) != content["digest"]:
            raise ValueError("its digest is that of other contrasts")
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(path, error) from None
    return noted


def _damaged(path: Path, why: object) -> UsageError:
    return UsageError(f"{path}: damaged or changed ({why}); restore it, or name another --folder")


def evaluations_made(study: Study, runs: Path) -> list[tuple[str, Collection[str]]]:
    """The run of each task, and the names of its evaluations that have been made."""
    return [(task.variant, finished(task).get("evaluations", {})) for task in tasks(study, runs)]


def readings_made(
    study: Study, contrast: Contrast, made: Sequence[tuple[str, Collection[str]]]
) -> int:
    """How many of the readings of a contrast have been made, over all seeds.

    Args:
        made: see `evaluations_made`.
    """
    readings = {*contrast.of, *contrast.against}
    n_made = 0
    for variant, evaluations in made:
        columns = []
        for run, column in readings:
            if run == variant:
                columns.append(column)
        n_made += sum(study.evaluation_of(column) in evaluations for column in columns)
    return n_made


def was_read(study: Study, contrast: Contrast, runs: Path) -> bool:
    """Whether a reading of a contrast has been made, by what lies in `runs`: the study may ask for
    its row, or its evaluation, no longer. A reading that neither the study nor what was made of its
    row has a name for counts as made.
    """
    for variant, column in {*contrast.of, *contrast.against}:
        for folder in (runs / slug(variant)).glob("seed_*"):
            made = done_in(folder).get("evaluations", {})
            name = evaluation_of(column, made, study.best)
            is_of_none = name is None and study.evaluation_of(column) is None
            if name in made or (is_of_none and made):  # of a line of [best] that is gone
                return True
    return False
