"""What the files in studies/results say of differences follows from the losses that they hold."""

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.studies.plan import Contrast, Study
from lab.studies.report import Findings, as_json
from lab.studies.results import Row, RunFigures, compared
from lab.tests.studies.test_statistics import asking, row
from tests.forks import ROOT
from txl.runtime.records import json_text

FILES = []
for path in sorted((ROOT / "lab" / "results").glob("*.json")):
    if '"comparisons"' in path.read_text():
        FILES.append(path)


def recomputed(content: dict[str, Any]) -> dict[tuple[str, str], list[Any]]:
    """Difference, interval, p and corrected p of each comparison, by the model of all arms and seeds."""
    study = Study(**content["study"])
    contrasts = {name: Contrast(*sides) for name, sides in study.contrasts.items()}
    late = [one["name"] for one in content.get("contrasts", {}).get("noted", ()) if one["readings"]]
    study = replace(study, contrasts=contrasts, exploratory=(*study.exploratory, *late))
    rows = []
    for name, runs in content["runs"].items():
        variant = name if name in study.variants else name.rpartition(" (")[0]
        figures = [RunFigures(**run) for run in runs]
        rows.append(Row(name, variant, figures[0].source if figures else "", figures))
    found = {}
    for one in compared(study, rows):
        found[one.run, one.column] = [one.difference, one.low, one.high, one.p, one.p_holm]
    return found


def by_pairs(content: dict[str, Any], one: dict[str, Any]) -> list[float]:
    """Difference, interval and p of a comparison by a t-test of pairs of seeds, as before version 0.3."""
    from scipy.stats import t, ttest_1samp  # here: it takes a second to import

    study = content["study"]
    own = [[[one["run"], one["column"]]], [[study["baseline"], one["column"]]]]
    of, against = study["contrasts"].get(one["run"], own)
    losses = {
        name: {run["seed"]: run["nats"] for run in runs} for name, runs in content["runs"].items()
    }
    seeds = set.intersection(*(set(losses[name]) for name, _ in of + against))
    differences = []
    for seed in sorted(seeds):
        sides = [[losses[name][seed][column] for name, column in side] for side in (of, against)]
        differences.append(sum(sides[0]) - sum(sides[1]))
    mean = statistics.fmean(differences)
    if len(differences) == 1:
        return [mean]
    half = t.ppf(0.975, len(seeds) - 1) * statistics.stdev(differences) / len(seeds) ** 0.5
    return [mean, mean - half, mean + half, float(ttest_1samp(differences, 0).pvalue)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_comparisons_follow_from_the_losses(path: Path) -> None:
    content = json.loads(path.read_text())
    pooled = recomputed(content) if "contrasts" in content else {}
    for one in content["comparisons"]:
        stored = [one[key] for key in ("difference", "low", "high", "p", "p_holm")]
        if "contrasts" in content:
            expected = pooled[one["run"], one["column"]]
            n_known = (
                expected.index(None) if None in expected else len(expected)
            )  # of one seed, or none
            assert stored[n_known:] == expected[n_known:]
            expected = expected[:n_known]
        else:
            expected = by_pairs(content, one)
        assert stored[: len(expected)] == pytest.approx(expected, rel=1e-6, abs=1e-9), one["run"]


def test_a_study_json_has_all_that_its_comparisons_need() -> None:
    rows = [row("base", {1: 4.0, 2: 4.2, 3: 4.3}), row("other", {1: 3.9, 2: 4.0, 3: 4.25})]
    contrast = Contrast((("other", "a"),), (("base", "a"),))
    for study in (asking(), asking(gain=contrast)):
        comparisons = compared(study, rows)
        content = json.loads(json_text(as_json(study, Findings(rows, comparisons))))
        (numbers,) = recomputed(content).values()
        assert numbers[0] == pytest.approx(-0.35 / 3)
        assert numbers == [
            content["comparisons"][0][key] for key in ("difference", "low", "high", "p", "p_holm")
        ]
