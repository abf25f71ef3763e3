"""A study file: what is trained, with which seeds, and how it is evaluated."""

import itertools
import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from txl.config import SEED, UsageError, refusal, require
from txl.files import typed_content
from txl.runtime.records import fits, require_fields

Flags = dict[str, Any]
"""Values by the names of flags: true and false are --x and --no_x, a list is several words."""
OURS = {
    "runs": ("work_dir", "seed", "resume", "overwrite"),
    "evaluations": ("work_dir", "json", "token_losses"),
    "search.train": ("work_dir", "seed", "resume", "overwrite"),
}
"""Flags of train.py and of eval.py that the runner sets."""
METRICS = {
    "perplexity": "nats per token",
    "word_perplexity": "nats per word",
    "bits_per_character": "bits per character",
    "bits_per_byte": "bits per byte",
}
"""Figures of eval.py, and the unit of differences in each."""


class Contrast(NamedTuple):
    """A difference that a study asks for: the sum of the losses of some readings less that of as
    many others. A reading is the name of a run and of a column.
    """

    of: tuple[tuple[str, str], ...]
    against: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Search:
    """How a flag of each variant is chosen before its trainings, by the last validation loss of
    short ones.

    Attributes:
        of: the flag, of which each variant gives the first value.
        factor: between two values that are tried.
        seed: of all short trainings.
        flags: theirs, over those of the variant.
        share: how long they are, of the variant's own training; None: `flags` say how long.
        like: variants that take the value found for another, by their names.
    """

    of: str
    factor: float
    seed: int
    flags: Flags
    share: float | None = None
    like: Mapping[str, str] = field(default_factory=dict)

    def shortened(self, flags: Flags) -> Flags:
        """The flags of the short trainings of a variant, but for the value that is tried."""
        lengths: Flags = {}
        if self.share is not None:
            for name in ("max_step", "warmup_step"):
                if name in flags:
                    lengths[name] = max(1, round(self.share * flags[name]))
            lengths["eval_interval"] = lengths["max_step"]
        return {**flags, **lengths, **self.flags}


@dataclass(frozen=True)
class Study:
    """What a study file asks for.

    Attributes:
        variants: flags of train.py by the name of the variant, which is trained once with each
            seed.
        evaluations: flags of eval.py by name; each row of eval.py is a column of the table.
        baseline: the variant that the others are compared with.
        contrasts: what is compared in their place, by name.
        exploratory: contrasts that were chosen with figures in sight, which have no verdict.
        own_seeds: the seeds of variants that do not have those of the study.
        own_flags: flags over those of an evaluation, by variant and evaluation.
        reruns: seeds of variants that are trained a second time, last of all: how far a training is
            the same again.
        search: None: the flags are as given.
        best: columns by the name of an evaluation of valid and test: what test has at the lengths
            that are best on valid, chosen for each training.
    """

    name: str
    title: str
    seeds: tuple[int, ...]
    variants: Mapping[str, Flags]
    evaluations: Mapping[str, Flags]
    baseline: str
    metric: str = "perplexity"
    contrasts: Mapping[str, Contrast] = field(default_factory=dict)
    own_seeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    own_flags: Mapping[str, Mapping[str, Flags]] = field(default_factory=dict)
    reruns: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    search: Search | None = None
    best: Mapping[str, str] = field(default_factory=dict)
    exploratory: tuple[str, ...] = ()

    def evaluation_of(self, column: str) -> str | None:
        """The name of the evaluation that gives a column; None: none does."""
        return evaluation_of(column, self.evaluations, self.best)

    def seeds_of(self, variant: str) -> tuple[int, ...]:
        """The seeds that a variant is trained with."""
        return self.own_seeds.get(variant, self.seeds)

    def evaluations_of(self, variant: str) -> dict[str, Flags]:
        """The flags of each evaluation as a variant is read, with the file of parts that it has."""
        own = self.own_flags.get(variant, {})
        parts = {}
        if "plugin" in self.variants[variant]:
            parts["plugin"] = self.variants[variant]["plugin"]
        found = {}
        for name, flags in self.evaluations.items():
            found[name] = {**flags, **own.get(name, {}), **parts}
        return found


def evaluation_of(column: str, evaluations: Iterable[str], best: Mapping[str, str]) -> str | None:
    """See `Study.evaluation_of`."""
    names = []
    for name in evaluations:
        if f"{column}, ".startswith(f"{name}, "):
            names.append(name)
    return best.get(column) or max(names, key=len, default=None)


@dataclass(frozen=True)
class Task:
    """One training of a study with its evaluations.

    Attributes:
        is_rerun: a second training with the same flags.
    """

    variant: str
    seed: int
    flags: Flags
    folder: Path
    is_rerun: bool = False

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.variant}, seed {self.seed}{', again' if self.is_rerun else ''}"


def read_study(path: Path) -> Study:
    """The study of a TOML file.

        title = "Is memory worth its cost?"     seeds = [1, 2, 3]     baseline = "memory 64"
        [train]                   flags of train.py that all runs have
        [runs."memory 64"]        flags of one variant, over those of [train]
        [runs."memory 64".evaluations.test]     flags over those of the evaluation, for this variant
        [grid]                    lists of values: every combination is a variant (of each of [runs], if there are any)
        [evaluations.test]        flags of eval.py; {run} in one is the run directory
        [contrasts.NAME]          of = [["run", "column"], ...] and as many in against: what is compared
                                  exploratory = true: it was chosen with figures in sight
        [search]                  of = "lr"     factor = 2     seed = 101     [search.train]: flags of short trainings
        [search.like]             "longer" = "memory 64": takes the value found for that variant
        [reruns]                  "memory 64" = [1]: seeds that are trained once more
        [best]                    COLUMN = "test": the lengths of that evaluation that are best on valid, read on test

    Raises:
        UsageError: if it is missing, not TOML, or a part is missing, unknown or of the wrong kind.
    """
    content = _content_of(path)
    seeds = _seeds(f"{path}: seeds", content.get("seeds", [1]))
    metric = content.get("metric", "perplexity")
    require(metric in METRICS, f"{path}: metric: there are {', '.join(METRICS)}")
    evaluations = content.get("evaluations", {"valid": {"split": "valid"}})
    own_seeds: dict[str, tuple[int, ...]] = {}
    own_flags: dict[str, dict[str, Flags]] = {}
    variants = _variants(path, content, own_seeds, own_flags)
    evaluations = {name: _flags(path, flags) for name, flags in evaluations.items()}
    _require_names(path, variants, evaluations, own_flags)
    baseline = content.get("baseline", next(iter(variants)))
    require(
        baseline in variants,
        f"{path}: baseline {baseline!r}: no such run; there are {', '.join(variants)}",
    )
    best = _best(path, content.get("best", {}), evaluations)
    contrasts = {}
    exploratory = []
    for name, table in content.get("contrasts", {}).items():
        place = f"{path}: contrasts.{name}"
        if isinstance(table, dict):
            is_late = table.pop("exploratory", False)
            require(isinstance(is_late, bool), f"{place}: exploratory: must be true or false")
            exploratory += [name] * is_late
        contrasts[name] = _contrast(place, table, variants, evaluations, best)
    search = _search(path, content["search"], variants) if "search" in content else None
    title = content.get("title", path.stem)
    study = Study(
        path.stem,
        title,
        seeds,
        variants,
        evaluations,
        baseline,
        metric,
        contrasts,
        own_seeds,
        own_flags,
        {},
        search,
        best,
        tuple(exploratory),
    )
    _require_common_seeds(path, study)
    return replace(study, reruns=_reruns(path, content.get("reruns", {}), study))


def _content_of(path: Path) -> dict[str, Any]:
    """The parts of a study file, each of its kind. Raises `UsageError` if one is not."""
    try:
        content = tomllib.loads(typed_content(path).decode())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; name the TOML file of a study") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None
    known = {"title": str, "seeds": list, "baseline": str, "metric": str}
    known |= dict.fromkeys(
        ("train", "runs", "grid", "evaluations", "contrasts", "search", "reruns", "best"), dict
    )
    for name, value in content.items():
        require(name in known, f"{path}: {name}: no such part; there are {', '.join(known)}")
        require(isinstance(value, known[name]), f"{path}: {name}: must be a {known[name].__name__}")
    for part in ("runs", "evaluations"):
        tables = content.get(part, {}).values()
        require(
            all(isinstance(flags, dict) for flags in tables),
            f"{path}: {part}: give tables of flags",
        )
    return content


def _require_names(
    path: Path,
    variants: Mapping[str, Flags],
    evaluations: Mapping[str, Flags],
    own_flags: Mapping[str, Mapping[str, Flags]],
) -> None:
    """Raise `UsageError` if names collide or are not there, or flags are the runner's."""
    _require_known(path, own_flags, evaluations)
    of_evaluations = [*evaluations.values()]
    for by_name in own_flags.values():
        of_evaluations += by_name.values()
    for part, names, all_flags in (
        ("runs", variants, [*variants.values()]),
        ("evaluations", evaluations, of_evaluations),
    ):
        _require_own_folders(path, part, names)
        ours = [key for key in OURS[part] if any(key in flags for flags in all_flags)]
        require(not ours, f"{path}: {part}: {', '.join(ours)}: the runner sets this; leave it out")


def _require_common_seeds(path: Path, study: Study) -> None:
    for name, contrast in study.contrasts.items():
        sides = set()
        for run, _ in (*contrast.of, *contrast.against):
            sides.add(run)
        common = set.intersection(*(set(study.seeds_of(run)) for run in sides))
        require(
            bool(common),
            f"{path}: contrasts.{name}: {', '.join(sorted(sides))}: have no seed in common",
        )


def _seeds(place: str, seeds: Any) -> tuple[int, ...]:
    good = isinstance(seeds, list) and bool(seeds) and all(type(seed) is int for seed in seeds)
    require(good, f"{place}: give whole numbers")
    for seed in seeds:
        require_seed(place, seed)
    require(len(set(seeds)) == len(seeds), f"{place}: one is there twice")
    return tuple(seeds)


def require_seed(place: str, seed: int) -> None:
    """Raise `UsageError` unless train.py takes a number for a seed."""
    wrong = refusal(seed, SEED)
    require(not wrong, f"{place}: {seed}: a seed is {wrong}")


def _search(path: Path, table: Mapping[str, Any], variants: Mapping[str, Flags]) -> Search:
    place = f"{path}: search"
    kinds = {
        "of": str,
        "factor": float,
        "seed": int,
        "share": float,
        "train": dict[str, Any],
        "like": dict[str, str],
    }
    fields = {"of": "lr", "factor": 2.0, "seed": 101, "train": {}, "like": {}, **table}
    for key, value in fields.items():
        require(key in kinds, f"{place}.{key}: no such part; there are {', '.join(kinds)}")
        require(
            fits(value, kinds[key]),
            f"{place}.{key}: {value!r}: must be of type {kinds[key].__name__}",
        )
    require_seed(f"{place}.seed", fields["seed"])
    of = fields["of"].replace("-", "_")
    factor = float(fields["factor"])
    require(factor > 1, f"{place}.factor {factor:g}: must be above 1")
    flags = _flags(path, fields["train"])
    ours = [key for key in OURS["search.train"] if key in flags]
    require(not ours, f"{place}.train: {', '.join(ours)}: the runner sets this; leave it out")
    for name, own in variants.items():
        is_number = (
            isinstance(own.get(of), int | float) and not isinstance(own[of], bool) and own[of] > 0
        )
        require(
            is_number,
            f"{path}: runs: {name}: {of}: give the first value of the search, a number above 0",
        )
    share = fields.get("share")
    if share is not None:
        require(0 < share <= 1, f"{place}.share {share:g}: must be above 0 and at most 1")
        for name, own in variants.items():
            require(
                type(own.get("max_step")) is int,
                f"{path}: runs: {name}: max_step: give it; share is of it",
            )
        require(
            "max_step" not in flags,
            f"{place}.train: max_step: beside share {share:g}; drop one of them",
        )
    like = dict(fields["like"])
    for name, other in like.items():
        for row in (name, other):
            require(
                row in variants,
                f"{place}.like: {row!r}: no such run; there are {', '.join(variants)}",
            )
        require(
            other not in like,
            f"{place}.like: {name}: {other} takes the value of another too; name that one",
        )
    return Search(of, factor, fields["seed"], flags, share, like)


def _reruns(path: Path, table: Mapping[str, Any], study: Study) -> dict[str, tuple[int, ...]]:
    found = {}
    for name, seeds in table.items():
        place = f"{path}: reruns: {name}"
        require(
            name in study.variants, f"{place}: no such run; there are {', '.join(study.variants)}"
        )
        found[name] = _seeds(place, seeds)
        others = []
        for seed in found[name]:
            if seed not in study.seeds_of(name):
                others.append(str(seed))
        require(
            not others,
            f"{place}: {', '.join(others)}: none of its seeds; only what was trained is trained"
            " again",
        )
    return found


def _best(path: Path, table: Mapping[str, Any], evaluations: Mapping[str, Flags]) -> dict[str, str]:
    for column, name in table.items():
        place = f"{path}: best: {column}"
        require(
            isinstance(name, str) and name in evaluations,
            f"{place}: {name!r}: no such evaluation; there are {', '.join(evaluations)}",
        )
        require(
            column not in evaluations,
            f"{place}: is the name of an evaluation too; rename one of them",
        )
        both = evaluations[name].get("split", "all") == "all" and "text" not in evaluations[name]
        require(
            both,
            f"{place}: {name}: the best on valid is read on test; evaluate both, without split",
        )
    return dict(table)


def _contrast(
    place: str, table: Any, runs: Iterable[str], evaluations: Iterable[str], best: Mapping[str, str]
) -> Contrast:
    hints = dict.fromkeys(Contrast._fields, list[list[str]])
    try:
        fields = require_fields(table, hints)
        of = fields["of"]
        against = fields["against"]
        good = len(of) == len(against) > 0 and all(len(reading) == 2 for reading in (*of, *against))
    except (ValueError, KeyError):
        of = []
        against = []
        good = False
    require(good, f'{place}: give of = [["run", "column"], ...], and against with as many')
    for run, column in (*of, *against):
        require(run in runs, f"{place}: {run!r}: no such run; there are {', '.join(runs)}")
        is_there = evaluation_of(column, evaluations, best) is not None
        known = ", ".join([*evaluations, *best])
        require(is_there, f"{place}: {column!r}: no such column; it begins with one of {known}")
    _require_one_kind(place, of, against)
    return Contrast(pairs(of), pairs(against))


def _require_one_kind(
    place: str, of: Sequence[Sequence[str]], against: Sequence[Sequence[str]]
) -> None:
    """Raise `UsageError` if nothing is compared, or differences of readings of one training
    together with single readings, which differ much more from seed to seed: no spread is that of
    both.
    """
    times: dict[str, Counter[str]] = {}
    for sign, side in ((1, of), (-1, against)):
        for run, column in side:
            times.setdefault(run, Counter())[column] += sign
    within = []
    single = []
    for run, counts in times.items():
        if counts.total():
            single.append(run)
        elif any(counts.values()):
            within.append(run)
    require(bool(within or single), f"{place}: both sides are of the same readings")
    require(
        not (within and single),
        f"{place}: {', '.join(within)}: as often on both sides, {', '.join(single)}: not: their"
        " spreads are not alike; ask two contrasts",
    )


def pairs(readings: Iterable[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    """Readings, each a run and a column, as `Contrast` holds them."""
    return tuple((run, column) for run, column in readings)


def _require_known(
    path: Path, own_flags: Mapping[str, Mapping[str, Flags]], evaluations: Iterable[str]
) -> None:
    """Raise `UsageError` if a variant has flags for an evaluation that is not there."""
    for variant, by_name in own_flags.items():
        for name in by_name:
            known = ", ".join(evaluations)
            require(
                name in evaluations,
                f"{path}: runs: {variant}: evaluations: {name!r}: no such evaluation; there are"
                f" {known}",
            )


def _variants(
    path: Path,
    content: Mapping[str, Any],
    own_seeds: dict[str, tuple[int, ...]],
    own_flags: dict[str, dict[str, Flags]],
) -> dict[str, Flags]:
    """The flags of each variant; `seeds` of those that give them go to `own_seeds`, and flags for
    its evaluations to `own_flags`.
    """
    runs = content.get("runs", {})
    grid = content.get("grid", {})
    require(bool(runs or grid), f"{path}: neither [runs] nor [grid]: nothing to train")
    for name, values in grid.items():
        require(
            isinstance(values, list) and bool(values),
            f"{path}: grid.{name}: must be a list of values",
        )
    variants = {}
    for (run, flags), values in itertools.product(
        (runs or {"": {}}).items(), itertools.product(*grid.values())
    ):
        point = dict(zip(grid, values, strict=True))
        name = ", ".join([run] * bool(run) + [f"{key} {value}" for key, value in point.items()])
        if "seeds" in flags:
            own_seeds[name] = _seeds(f"{path}: runs: {name}: seeds", flags["seeds"])
        if "evaluations" in flags:
            own_flags[name] = _tables(path, f"runs: {name}: evaluations", flags["evaluations"])
        own = {}
        for key, value in flags.items():
            if key not in ("seeds", "evaluations"):
                own[key] = value
        variants[name] = _flags(path, {**content.get("train", {}), **own, **point})
    return variants


def _tables(path: Path, place: str, content: Any) -> dict[str, Flags]:
    """Flags by the names of their tables."""
    good = isinstance(content, dict) and all(isinstance(v, dict) for v in content.values())
    require(good, f"{path}: {place}: give tables of flags")
    return {name: _flags(path, flags) for name, flags in content.items()}


def _flags(path: Path, content: Mapping[str, Any]) -> Flags:
    """Flags by their names with underscores.

    Raises `UsageError` if a value is none of a flag, as a date is.
    """
    for name, value in content.items():
        require(name != "help", f"{path}: help: asks for a text and trains nothing; leave it out")
        for one in value if isinstance(value, list) else [value]:
            good = isinstance(one, str | int) or (isinstance(one, float) and math.isfinite(one))
            require(good, f"{path}: {name}: {one}: give text, a finite number, true or false")
    flags: Flags = {}
    for name, value in content.items():
        key = name.replace("-", "_")
        require(key not in flags, f"{path}: {key}: is there twice, as {name} too; leave one out")
        flags[key] = value
    return flags


def _require_own_folders(path: Path, part: str, names: Iterable[str]) -> None:
    """Raise `UsageError` if two names have one folder, or one has none of its own."""
    by_folder: dict[str, str] = {}
    for name in names:
        folder = slug(name)
        require(
            folder.strip(".") != "", f"{path}: {part}: {name!r} is no name of a folder; use letters"
        )
        other = by_folder.setdefault(folder, name)
        require(
            other == name,
            f"{path}: {part}: {other!r} and {name!r} have one folder, {folder}; rename one of them",
        )


def tasks(study: Study, runs: Path) -> list[Task]:
    """All trainings, seed by seed, so that an unfinished study compares like with like; second ones
    last.

    Studies that share the folder `runs` share the trainings that have the same name and the same
    flags.
    """
    seeds = list(dict.fromkeys(seed for name in study.variants for seed in study.seeds_of(name)))
    first = []
    for seed in sorted(seeds, key=(*study.seeds, *seeds).index):
        for name, flags in study.variants.items():
            if seed in study.seeds_of(name):
                first.append(
                    Task(name, seed, {**flags, "seed": seed}, runs / slug(name) / f"seed_{seed}")
                )
    again = []
    for task in first:
        if task.seed in study.reruns.get(task.variant, ()):
            folder = task.folder.with_name(f"{task.folder.name}_again")
            again.append(replace(task, folder=folder, is_rerun=True))
    return first + again


def slug(name: str) -> str:
    """A name as a file name."""
    return "".join(c if c.isalnum() or c in "-+._" else "_" for c in name)


def words(flags: Flags, run: Path) -> list[str]:
    """Flags as words of a command line; {run} in them is the run directory."""
    line: list[str] = []
    for name, value in flags.items():
        if isinstance(value, bool):
            line.append(f"--{name}" if value else f"--no_{name}")
        else:
            if isinstance(value, list):
                values = value
            else:
                values = [value]
            for one in values:
                is_flag = str(one).startswith("--") and " " not in str(one)
                require(not is_flag, f"{name} = {one}: begins as a flag; give another value")
            line += [f"--{name}", *(str(v).replace("{run}", str(run)) for v in values)]
    return line
