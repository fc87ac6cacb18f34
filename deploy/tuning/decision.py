"""What pairs of measurements allow to be said: a paired interval that stays true although it is looked at often. Pure.

The unit is a launch, not a request: two launches of the same settings differ by more than two requests of one launch.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from deploy.measure.statistics import BETTER, EQUAL, UNDECIDED, WORSE

NO_GAIN = "no gain"  # it may be worse or equal, but not better by more than the margin
ERROR = 0.05  # of all looks at all candidates together
LEAST = 3  # pairs: two launches agree by chance too often for their scatter to mean anything


class Paired(NamedTuple):
    """A candidate against the baseline over `n` pairs: change - 1 as a ratio, its interval (None below three pairs)."""

    verdict: str
    change: float
    low: float | None
    high: float | None
    n: int

    @property
    def decided(self) -> bool:
        """Whether more pairs would change nothing."""
        return self.verdict != UNDECIDED


def compare(pairs: Sequence[tuple[float, float]], *, margin: float, looks: int) -> Paired | None:
    """The verdict on (baseline, candidate) pairs, larger being better; None without a pair.

    Student's interval of the mean log ratio, at 1 - 0.05 / looks: `looks` is how often a verdict may be asked for in
    the whole tune (rounds times candidates), so that trying many and stopping early does not make chance a gain.
    """
    ratios = [math.log(after / before) for before, after in pairs if before > 0 and after > 0]
    if not ratios:
        return None
    mean = statistics.fmean(ratios)
    change = math.expm1(mean)
    if len(ratios) < LEAST:
        return Paired(UNDECIDED, change, None, None, len(ratios))
    half = quantile(1 - ERROR / max(1, looks), len(ratios) - 1) * statistics.stdev(ratios) / math.sqrt(len(ratios))
    # far beyond any speed a figure would only be noise
    low, high = math.expm1(max(mean - half, -7.0)), math.expm1(min(mean + half, 7.0))
    return Paired(_verdict(change, low, high, margin), change, low, high, len(ratios))


def _verdict(change: float, low: float, high: float, margin: float) -> str:
    if low > 0 and change > margin:
        return BETTER
    if high < 0 and change < -margin:
        return WORSE
    if high <= margin:
        return EQUAL if low >= -margin else NO_GAIN
    return UNDECIDED


def quantile(confidence: float, df: int) -> float:
    """The t beyond which, on both sides together, 1 - confidence of Student's distribution lies."""
    below, above = 0.0, math.pi / 2
    for _ in range(200):
        middle = (below + above) / 2
        below, above = (middle, above) if _within(middle, df) < confidence else (below, middle)
    return math.tan((below + above) / 2) * math.sqrt(df)


def _within(theta: float, df: int) -> float:
    """Probability of |t| <= tan(theta) * sqrt(df); Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    cosine, sine = math.cos(theta), math.sin(theta)
    odd = df % 2 == 1
    term = cosine if odd else 1.0
    total = 0.0 if df == 1 else term
    for step in range(2 if odd else 1, df - 1, 2):
        term *= step / (step + 1) * cosine**2
        total += term
    return 2 / math.pi * (theta + sine * total) if odd else sine * total
