"""How long a tune will take, from what this profile's launches took before; and what a budget has room for. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from deploy.tuning.course import CELL, Progress, Setup, Step, finalists, tried
from deploy.tuning.decision import LEAST

COLLECTIVE_S = 40.0  # importing torch in every rank, and the sizes


class Estimate(NamedTuple):
    """Seconds: of a load, of a stop, of one cell. None: not known. `launches`: how many loads that stands on."""

    launch_s: float | None
    stop_s: float | None
    cell_s: float | None
    launches: int

    @property
    def each_s(self) -> float | None:
        """One launch with everything, None when not even the load is known."""
        return None if self.launch_s is None else self.launch_s + (self.stop_s or 0.0) + (self.cell_s or 0.0)


def estimate(loads: Sequence[float], stops: Sequence[float], cell_s: float | None) -> Estimate:
    """Medians of what was seen."""
    return Estimate(
        statistics.median(loads) if loads else None, statistics.median(stops) if stops else None, cell_s, len(loads)
    )


def whole(setup: Setup, found: Estimate, rounds: int | None = None) -> float | None:
    """Seconds of the whole tune if nothing is decided early, the old deployment's return included."""
    if found.each_s is None or found.launch_s is None:
        return None
    rounds = setup.rounds if rounds is None else rounds
    return _collectives(setup) + rounds * (1 + _launched(setup)) * found.each_s + found.launch_s


def _collectives(setup: Setup) -> float:
    reduced = [name for name in tried(setup) if setup.candidate(name).reduces]
    return COLLECTIVE_S * (1 + len(reduced)) if setup.no_collective is None and reduced else 0.0


def _launched(setup: Setup) -> int:
    """How many candidates will be launched in a round, at most."""
    names = tried(setup)
    reduced = [name for name in names if setup.candidate(name).reduces] if setup.no_collective is None else []
    return len(names) - len(reduced) + min(len(reduced), setup.finalists)


def trimmed(setup: Setup, found: Estimate) -> Setup:
    """The setup with so many candidates that the fewest rounds fit the budget; the last ones are left out first. With
    one candidate left it stays as it is: `too_small` says whether that fits."""
    while setup.budget_s is not None and len(names := tried(setup)) > 1:
        least = whole(setup, found, LEAST)
        if least is None or least <= setup.budget_s:
            break
        setup = replace(setup, left_out=[*setup.left_out, names[-1]])
    return setup


def too_small(setup: Setup, found: Estimate) -> float | None:
    """The seconds that the least tune takes, when the budget is below that."""
    least = whole(setup, found, LEAST)
    return least if setup.budget_s is not None and least is not None and least > setup.budget_s else None


def over(setup: Setup, progress: Progress, found: Estimate, step: Step) -> bool:
    """Whether the budget has no room for the round that `step` begins, and the return of what was up before."""
    begins = step.kind == CELL and not any(cell.round == step.round for cell in progress.cells)
    if setup.budget_s is None or not begins:
        return False
    seen = [cell.seconds for cell in progress.cells]
    each = statistics.median(seen) if seen else found.each_s
    if each is None:
        return False
    back = statistics.median([cell.launch_s for cell in progress.cells]) if seen else found.launch_s or 0.0
    round_s = (1 + len(finalists(setup, progress))) * each
    return progress.spent_s + round_s + back > setup.budget_s


def words(seconds: float) -> str:
    """A time for people: 45 s, 12 min, 3 h 5 min."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
