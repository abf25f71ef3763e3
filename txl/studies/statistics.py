"""What differs from chance: paired comparisons over seeds, with intervals and a correction for their number."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

ALPHA = 0.05


@dataclass(frozen=True)
class Comparison:
    """A variant against the baseline in one column, or a contrast of the study, paired by seed.

    Attributes:
        run: the variant, or the name of the contrast.
        column: empty for a contrast.
        seeds: pairs.
        difference: mean difference in the unit of the study's metric, None without a pair; below 0: better than the
            other side.
        low, high: its 95 % confidence interval, by Student's t; None with fewer than two seeds.
        p: of Student's paired t-test, two-sided.
        p_holm: the same, corrected for the number of comparisons; see `corrected`.
    """

    run: str
    column: str
    seeds: int
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None

    @property
    def verdict(self) -> str:
        """In words. A large p does not say that two variants are alike: few seeds show large differences only."""
        if self.p_holm is None or self.difference is None:
            return "one seed" if self.seeds else "no figures"
        return "not shown" if self.p_holm >= ALPHA else "better" if self.difference < 0 else "worse"


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation over seeds; None for one value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def paired(run: str, column: str, differences: Sequence[float]) -> Comparison:
    """The comparison of these differences, one for each seed; `p_holm` is left out.

    With n differences of mean m and standard deviation s, t = m sqrt(n) / s has n - 1 degrees of freedom.
    """
    mean, spread = mean_and_spread(differences)
    if spread is None:
        return Comparison(run, column, 1, mean)
    from scipy.stats import t  # an extra

    n = len(differences)
    error = spread / math.sqrt(n)
    half = float(t.ppf(1 - ALPHA / 2, n - 1)) * error
    p = float(2 * t.sf(abs(mean) / error, n - 1)) if error else float(mean == 0)
    return Comparison(run, column, n, mean, mean - half, mean + half, p)


def corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons with `p_holm`, by the step-down method of Holm (1979): with m p-values in ascending order, the
    i-th, counted from 0, becomes the largest of (m - j) p_j over j <= i, at most 1."""
    tested = sorted((c.p, i) for i, c in enumerate(comparisons) if c.p is not None)
    found, highest = list(comparisons), 0.0
    for rank, (p, i) in enumerate(tested):
        highest = min(1.0, max(highest, (len(tested) - rank) * p))
        found[i] = replace(found[i], p_holm=highest)
    return found
