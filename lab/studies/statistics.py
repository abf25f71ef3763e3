"""What differs from chance: contrasts in one model of arms and seeds, with intervals, and a
correction for their number.
"""

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd  # pyright: ignore[reportMissingImports]

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
    """A difference with its standard error, 95 % interval and two-sided p-value, by Student's t;
    see `estimate`.

    All but the difference are None without degrees of freedom.
    """

    difference: float
    freedom: int
    error: float | None = None
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None


def estimate(cells: Cells, weights: Mapping[str, float]) -> Estimate | None:
    """The sum of the arms' means, times their weights, by ordinary least squares.

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
    import statsmodels.api as sm  # pyright: ignore[reportMissingImports]  # takes a second

    rows = [(*cell, statistics.fmean(losses)) for cell, losses in cells.items()]
    frame: Any = pd.DataFrame(rows, columns=["arm", "seed", "loss"])
    if not set(weights) <= set(frame["arm"]):
        return None
    design = pd.get_dummies(frame["arm"], dtype=float)
    if abs(math.fsum(weights.values())) < 1e-9:
        seeds = pd.get_dummies(frame["seed"], dtype=float)
        first, *others = seeds.columns
        design = design.join(seeds[others].sub(seeds[first], axis=0))
    w = np.array([weights.get(column, 0.0) for column in design.columns])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is not determined is looked for below
        fit = sm.OLS(frame["loss"].to_numpy(), design.to_numpy()).fit()
    if not np.allclose(w @ np.linalg.pinv(design) @ design, w, atol=1e-8):
        return None
    difference = float(w @ fit.params)
    freedom = int(fit.df_resid)
    if not freedom:
        return Estimate(difference, freedom)
    found = fit.t_test(w)
    error = found.sd.item()
    if error:
        p = found.pvalue.item()
    else:
        p = float(difference == 0)
    interval: Any = found.conf_int(ALPHA)
    low, high = interval[0].tolist()
    return Estimate(difference, freedom, error, math.sqrt(fit.scale), low, high, p)


def comparison(run: str, column: str, seeds: int, found: Estimate | None) -> Comparison:
    """The comparison of an estimate; `p_holm` and `detectable` are left out, see `corrected`."""
    if found is None or not seeds:
        return Comparison(run, column, 0)
    if not found.freedom:
        return Comparison(run, column, seeds, found.difference)
    return Comparison(run, column, seeds, **asdict(found))


def corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons with `p_holm`, by the step-down method of Holm (1979). Exploratory ones are
    left out. `detectable` is at the level of its first step, ALPHA / the number of p-values.
    """
    from statsmodels.stats.multitest import multipletests  # pyright: ignore[reportMissingImports]

    found = list(comparisons)
    tested = [i for i, one in enumerate(found) if one.p is not None and one.is_fixed]
    if tested:
        p_holm: Any = multipletests([found[i].p for i in tested], method="holm")[1]
        for i, p in zip(tested, p_holm.tolist(), strict=True):
            one = found[i]
            assert one.error is not None
            assert one.freedom is not None
            smallest = detectable(one.error, one.freedom, level=ALPHA / len(tested))
            found[i] = replace(one, p_holm=p, detectable=smallest)
    return found


def detectable(error: float, freedom: int, *, level: float) -> float:
    """The smallest difference that a two-sided t-test at this level shows with probability `POWER`,
    given its standard error: the noncentral t distribution says how often t exceeds its critical
    value, on the side of the difference.
    """
    from scipy.optimize import brentq  # pyright: ignore[reportMissingImports]
    from scipy.stats import nct, t  # pyright: ignore[reportMissingImports]

    critical = t.ppf(1 - level / 2, freedom)
    size: Any = brentq(lambda size: nct.sf(critical, freedom, size) - POWER, 1e-6, 1e4)
    return error * size
