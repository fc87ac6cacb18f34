"""What samples allow to be said. Pure and repeatable: resampling has a fixed seed."""

import random
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

RESAMPLES = 2000
FEW = 5  # below this many samples a bootstrap interval is too narrow to be believed
MARGIN = 0.03
BETTER, WORSE, EQUAL, UNDECIDED = "better", "worse", "practically equal", "undecided"


class Estimate(NamedTuple):
    """A median, the 95 % interval of it, and how many samples it stands on."""

    median: float
    low: float
    high: float
    n: int


class Comparison(NamedTuple):
    """B against A. `change` is B/A - 1 with its 95 % interval; `verdict` about B."""

    verdict: str
    change: float
    low: float
    high: float


def estimate(samples: Sequence[float]) -> Estimate | None:
    """Median and interval: percentile bootstrap, or the whole range where samples are few; None without samples."""
    if not samples:
        return None
    middle = statistics.median(samples)
    if len(samples) < FEW:
        return Estimate(middle, min(samples), max(samples), len(samples))
    low, high = _interval(lambda draw: statistics.median(draw(samples)))
    return Estimate(middle, low, high, len(samples))


def compare(
    before: Sequence[float], after: Sequence[float], *, higher_is_better: bool = True, margin: float = MARGIN
) -> Comparison | None:
    """The verdict about `after`; None when either has no sample or `before` has a median of zero.

    Practically equal: the whole interval lies within ±margin. Better or worse: the interval excludes no change, and
    the change itself is beyond the margin. Everything else is undecided: more runs are needed.
    """
    if not before or not after or not statistics.median(before):
        return None
    change = statistics.median(after) / statistics.median(before) - 1
    if min(len(before), len(after)) < FEW:
        low, high = min(after) / max(before) - 1, max(after) / min(before) - 1
    else:
        low, high = _interval(lambda draw: statistics.median(draw(after)) / statistics.median(draw(before)) - 1)
    if low >= -margin and high <= margin:
        verdict = EQUAL
    elif (low > 0 and change > margin) or (high < 0 and change < -margin):
        verdict = BETTER if (change > 0) == higher_is_better else WORSE
    else:
        verdict = UNDECIDED
    return Comparison(verdict, change, low, high)


def _interval(of: Callable[[Callable[[Sequence[float]], list[float]]], float]) -> tuple[float, float]:
    generator = random.Random(20261201)
    values = sorted(of(lambda samples: generator.choices(samples, k=len(samples))) for _ in range(RESAMPLES))
    return values[int(RESAMPLES * 0.025)], values[int(RESAMPLES * 0.975) - 1]
