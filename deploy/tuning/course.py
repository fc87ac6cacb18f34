"""The course of a tune: what its journal says so far, what comes next, and what it all comes to. Pure.

First every candidate that changes only collectives is checked and ranked by an all-reduce alone; then baseline and
finalists are launched in turn, round by round (A B C A B C), each launch behind its canary; a candidate leaves as soon
as its interval has decided.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from deploy.doctor.verdict import DECODE_BYTES
from deploy.lifecycle.events import Event
from deploy.measure.statistics import BETTER
from deploy.tuning.candidates import BASELINE, Candidate
from deploy.tuning.decision import LEAST, Paired, compare

COLLECTIVE, CELL = "collective", "cell"


@dataclass(frozen=True)
class Setup:
    """What a tune was asked to do. `objections`: why candidates are not tried; `no_collective`: why no all-reduce alone
    is asked, None when it is; `left_out`: those that the budget has no room for;
    `coherence`: whether the canary asks for sense, or only for an answer."""

    name: str
    profile: str
    metric: str
    concurrency: int
    rounds: int
    finalists: int
    margin: float
    runs: int
    input_tokens: int | None
    output_tokens: int | None
    budget_s: float | None
    candidates: list[Candidate]
    objections: dict[str, str]
    no_collective: str | None
    coherence: bool = True
    left_out: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "candidates": [one._asdict() for one in self.candidates]}

    def candidate(self, name: str) -> Candidate:
        """The candidate of that name."""
        return next(one for one in self.candidates if one.name == name)


def setup_from(document: dict[str, Any]) -> Setup:
    """A setup from `to_json`'s form."""
    return Setup(**{**document, "candidates": [Candidate(**one) for one in document["candidates"]]})


class Cell(NamedTuple):
    """One launch that was measured: tokens a second, in which round, seconds of load and of everything."""

    round: int
    name: str
    tok_s: float
    launch_s: float
    seconds: float
    marks: list[str]


@dataclass
class Progress:
    """What the journal says. `out`: candidates that are out and why; `collective`: microseconds by bytes."""

    cells: list[Cell] = field(default_factory=list)
    collective: dict[str, dict[int, float]] = field(default_factory=dict)
    out: dict[str, str] = field(default_factory=dict)
    took_down: dict[str, Any] | None = None
    spent_s: float = 0.0
    ended: str | None = None
    canary: str | None = None


def fold(events: Iterable[Event]) -> Progress:
    """The progress after all of `events`."""
    progress = Progress()
    for event in events:
        data = event.data
        progress.spent_s += float(data.get("seconds", 0.0))
        if event.kind == CELL:
            values = {key: data[key] for key in Cell._fields}
            progress.cells.append(Cell(**values))
        elif event.kind == COLLECTIVE:
            progress.collective[data["name"]] = {int(size): us for size, us in data["us"].items()}
        elif event.kind == "out":
            progress.out[data["name"]] = data["why"]
        elif event.kind == "discarded":
            progress.cells = [cell for cell in progress.cells if cell.round != data["round"]]
        elif event.kind == "took-down":
            progress.took_down = data
        elif event.kind == "brought-back":
            progress.took_down = None
        elif event.kind == "ended":
            progress.ended = data["why"]
    return progress


class Step(NamedTuple):
    """What comes next: an all-reduce alone, or a launch that is measured in `round`."""

    kind: str
    name: str
    round: int = 0


def next_step(setup: Setup, progress: Progress) -> Step | None:
    """The next step; None when everything is decided or done."""
    for name in _reduced(setup):
        if name not in progress.collective and name not in progress.out:
            return Step(COLLECTIVE, name)
    for number in range(1, setup.rounds + 1):
        running = in_the_race(setup, progress, number)
        if not running:
            return None
        measured = {cell.name for cell in progress.cells if cell.round == number}
        for name in (BASELINE, *running):
            if name not in measured:
                return Step(CELL, name, number)
    return None


def tried(setup: Setup) -> list[str]:
    """Candidates that apply and that the budget has room for."""
    return [one.name for one in setup.candidates if one.name not in {*setup.objections, *setup.left_out}]


def _reduced(setup: Setup) -> list[str]:
    """Whom the all-reduce alone is asked about, the baseline first; nobody where it is not asked."""
    if setup.no_collective is not None:
        return []
    names = [name for name in tried(setup) if setup.candidate(name).reduces]
    return [BASELINE, *names] if names else []


def collective_gain(setup: Setup, progress: Progress, name: str) -> float | None:
    """How much less time an all-reduce takes at decode sizes than the baseline's, as a ratio - 1; None if not known."""
    before, after = progress.collective.get(BASELINE, {}), progress.collective.get(name, {})
    both = [before[size] / after[size] for size in DECODE_BYTES if before.get(size) and after.get(size)]
    return statistics.median(both) - 1 if both else None


def finalists(setup: Setup, progress: Progress) -> list[str]:
    """Who is launched with the real model: everything that an all-reduce cannot judge, and the best of the rest, as
    long as it is not slower there."""
    names = [name for name in tried(setup) if name not in progress.out]
    gains = {name: gain for name in names if (gain := collective_gain(setup, progress, name)) is not None}
    best = sorted((name for name in gains if gains[name] > -setup.margin), key=lambda name: -gains[name])
    chosen = {*best[: setup.finalists], *(name for name in names if name not in gains)}
    return [name for name in names if name in chosen]


def in_the_race(setup: Setup, progress: Progress, number: int) -> list[str]:
    """Finalists that are not decided by the rounds before `number`."""
    return [
        name
        for name in finalists(setup, progress)
        if (found := judged(setup, progress, name, before=number)) is None or not found.decided
    ]


def judged(setup: Setup, progress: Progress, name: str, before: int | None = None) -> Paired | None:
    """The candidate against the baseline, over the rounds that have both (only those before `before`)."""
    figures = {(cell.round, cell.name): cell.tok_s for cell in progress.cells if before is None or cell.round < before}
    rounds = sorted(number for number, who in figures if who == name and (number, BASELINE) in figures)
    pairs = [(figures[number, BASELINE], figures[number, name]) for number in rounds]
    candidates = max(1, len(finalists(setup, progress)), len({cell.name for cell in progress.cells} - {BASELINE}))
    return compare(pairs, margin=setup.margin, looks=candidates * max(1, setup.rounds - LEAST + 1))


def unfinished_round(setup: Setup, progress: Progress) -> int | None:
    """The round that was interrupted. Its cells are not to be paired with those of another hour."""
    step = next_step(setup, progress)
    if step is None or step.kind != CELL:
        return None
    return step.round if any(cell.round == step.round for cell in progress.cells) else None


def winner(setup: Setup, progress: Progress) -> str | None:
    """The candidate that is better by the most; None when the old setting is kept."""
    found = {
        name: result.change
        for name in tried(setup)
        if name not in progress.out
        and (result := judged(setup, progress, name)) is not None
        and result.verdict == BETTER
    }
    return max(found, key=lambda name: found[name]) if found else None


def median_of(cells: Sequence[Cell], name: str) -> float | None:
    """Median tokens a second of one name's launches."""
    found = [cell.tok_s for cell in cells if cell.name == name]
    return statistics.median(found) if found else None
