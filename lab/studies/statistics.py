"""What differs from chance: contrasts in one model of arms and seeds, with intervals, and a
correction for their number.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

ALPHA = 0.05
POWER = 0.8
"""Share of studies like this in which a difference of the size `Comparison.detectable` is shown."""

Cells = Mapping[tuple[str, int], Sequence[float]]
"""Losses by arm and seed; several where a training was run again."""


@dataclass(frozen=True)
class Comparison:
    """A variant against the baseline in one column, or a contrast of the study.

    Attributes:
        run: the variant, or the name of the contrast.
        column: empty for a contrast.
        seeds: those that all sides have.
        difference: in the unit of the study's metric, None without such a seed; below 0: better
        than the other side. low, high: its 95 % confidence interval, by Student's t; None without
        degrees of freedom.
        p: of Student's t-test, two-sided.
        p_holm: the same, corrected for the number of comparisons; see `corrected`.
        spread: the residual deviation of a loss around arm and seed, pooled over all arms; see
            `estimate`.
        freedom: its degrees of freedom.
        error: the standard error of the difference.
        detectable: the difference that four of five studies like this would show; see `corrected`.
        is_fixed: it was asked before its readings; else it is exploratory, and has no corrected
            p-value.
    """

    run: str
    column: str
    seeds: int
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    spread: float | None = None
    freedom: int | None = None
    error: float | None = None
    detectable: float | None = None
    is_fixed: bool = True

    @property
    def verdict(self) -> str:
        """In words.

        A large p does not say that two variants are alike: few seeds show large differences only.
        """
        if self.difference is None:
            return "no figures"
        if self.p is None:
            return "one seed"
        if not self.is_fixed:
            return "exploratory"
        assert self.p_holm is not None
        if self.p_holm >= ALPHA:
            return "not shown"
        if self.difference < 0:
            return "better"
        return "worse"


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard deviation over seeds; None for one value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


@dataclass(frozen=True)
class Estimate:
    """A difference with its standard error; see `estimate`.

    `error` and `spread` are NaN without degrees of freedom.
    """

    difference: float
    error: float
    spread: float
    freedom: int


def estimate(cells: Cells, weights: Mapping[str, float]) -> Estimate | None:
    """The sum of the arms' means, times their weights, by least squares.

        loss of an arm and a seed = mean of the arm + effect of the seed + residual

    The residual deviation is pooled over all arms of `cells`, those without a weight too. Effects
    of seeds, which sum to 0, are estimated only if the weights do: they then cancel, and a
    comparison is paired by seed. Else, as for the difference of two readings of one training, they
    are a part of the residual. With two arms this is Student's paired t-test. A training that was
    run again is no further seed: the mean of the two is the loss of its arm and seed.

    Args:
        cells: losses by arm and seed; an arm may lack seeds.
        weights: of arms.
    Returns:
        None if an arm with a weight has no loss, or the seeds of two such arms have no connection.
    """
    arms = list(dict.fromkeys(arm for arm, _ in cells))
    if any(arm not in arms for arm in weights):
        return None
    seeds = sorted({seed for _, seed in cells})
    is_paired = abs(math.fsum(weights.values())) < 1e-9
    if is_paired:
        effects = seeds[1:]
    else:
        effects = []
    rows = []
    losses = []
    for (arm, seed), values in cells.items():
        row = [float(arm == one) for one in arms]
        for one in effects:
            row.append(float(seed == one) - float(seed == seeds[0]))
        rows.append(row)
        losses.append(statistics.fmean(values))
    design = np.array(rows)
    y = np.array(losses)
    w = np.array([weights.get(arm, 0.0) for arm in arms] + [0.0] * len(effects))
    inverse = np.linalg.pinv(design)
    through = w @ inverse  # the difference is through @ y
    if not np.allclose(through @ design, w, atol=1e-8):
        return None
    freedom = len(y) - int(np.linalg.matrix_rank(design))
    residual = y - design @ (inverse @ y)
    if freedom:
        spread = math.sqrt(float(residual @ residual) / freedom)
    else:
        spread = math.nan
    return Estimate(float(through @ y), spread * float(np.linalg.norm(through)), spread, freedom)


def comparison(run: str, column: str, seeds: int, found: Estimate | None) -> Comparison:
    """The comparison of an estimate; `p_holm` and `detectable` are left out, see `corrected`."""
    if found is None or not seeds:
        return Comparison(run, column, 0)
    if not found.freedom:
        return Comparison(run, column, seeds, found.difference)
    from scipy.stats import t  # an extra

    half = half_width(found.error, found.freedom)
    if found.error:
        p = float(2 * t.sf(abs(found.difference) / found.error, found.freedom))
    else:
        p = 0.0
    return Comparison(
        run,
        column,
        seeds,
        found.difference,
        found.difference - half,
        found.difference + half,
        p if found.error or found.difference else 1.0,
        spread=found.spread,
        freedom=found.freedom,
        error=found.error,
    )


def half_width(error: float, freedom: int) -> float:
    """Half of the interval, by Student's t, of what has this standard error."""
    from scipy.stats import t  # an extra

    return float(t.ppf(1 - ALPHA / 2, freedom)) * error


def corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons with `p_holm`, by the step-down method of Holm (1979): with m p-values in
    ascending order, the i-th, counted from 0, becomes the largest of (m - j) p_j over j <= i, at
    most 1. Exploratory ones are left out. `detectable` is at
    the level of the first step, ALPHA / m.
    """
    tested = sorted((c.p, i) for i, c in enumerate(comparisons) if c.p is not None and c.is_fixed)
    found = list(comparisons)
    highest = 0.0
    for rank, (p, i) in enumerate(tested):
        highest = min(1.0, max(highest, (len(tested) - rank) * p))
        one = found[i]
        assert one.error is not None
        assert one.freedom is not None
        smallest = detectable(one.error, one.freedom, level=ALPHA / len(tested))
        found[i] = replace(one, p_holm=highest, detectable=smallest)
    return found


def detectable(error: float, freedom: int, *, level: float) -> float:
    """The smallest difference that a two-sided t-test at this level shows with probability `POWER`,
    given its standard error: the noncentral t distribution says how often t exceeds its critical
    value, on the side of the difference.
    """
    from scipy.stats import nct, t  # an extra

    critical = float(t.ppf(1 - level / 2, freedom))

    def power(noncentrality: float) -> float:
        return float(nct.sf(critical, freedom, noncentrality))

    low = 0.0
    high = 2.0
    while power(high) < POWER:
        low = high
        high = 2 * high
    for _ in range(40):  # to a share of 1e-12
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle) < POWER else (low, middle)
    return error * high
