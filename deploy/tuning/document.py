"""What a tune came to, as one document. Pure."""

from typing import Any

from deploy.tuning.budget import Estimate, whole
from deploy.tuning.candidates import BASELINE, Candidate
from deploy.tuning.changes import overlay
from deploy.tuning.course import Progress, Setup, collective_gain, finalists, judged, median_of, next_step, winner

NOT_TRIED, LEFT_OUT, OUT, NO_FINALIST, WAITING = "not tried", "left out", "out", "no finalist", "not measured"
KEPT, CHANGE, OPEN = "kept", "change", "open"


def document(setup: Setup, progress: Progress, found: Estimate, id: str | None) -> dict[str, Any]:
    """The document of a tune: before it began (`id` None), under way, or ended."""
    best = winner(setup, progress)
    open_still = progress.ended is None and next_step(setup, progress) is not None
    decision = OPEN if open_still else KEPT if best is None else CHANGE
    return {
        "schema": 1,
        "id": id,
        "name": setup.name,
        "profile": setup.profile,
        "metric": setup.metric,
        "concurrency": setup.concurrency,
        "margin": setup.margin,
        "rounds": setup.rounds,
        "ended": progress.ended,
        "baseline": {"tok_s": median_of(progress.cells, BASELINE), "launches": _launches(progress, BASELINE)},
        "canary": {"coherence": setup.coherence},
        "collective": {"asked": setup.no_collective is None, "why_not": setup.no_collective},
        "candidates": [_candidate(setup, progress, one) for one in setup.candidates],
        "verdict": {"decision": decision, "candidate": best, "why": _why(setup, progress, decision, best)},
        "overlay": overlay(setup.candidate(best)) if best and decision == CHANGE else None,
        "estimate": {**found._asdict(), "whole_s": whole(setup, found), "budget_s": setup.budget_s},
        "spent_s": round(progress.spent_s, 1),
    }


def _launches(progress: Progress, name: str) -> list[dict[str, Any]]:
    return [cell._asdict() for cell in progress.cells if cell.name == name]


def _candidate(setup: Setup, progress: Progress, one: Candidate) -> dict[str, Any]:
    result = judged(setup, progress, one.name)
    status, why = _status(setup, progress, one.name)
    gain = collective_gain(setup, progress, one.name)
    return {
        "name": one.name,
        "env": one.env,
        "args": one.args,
        "why": one.why,
        "source": one.source,
        "status": status,
        "reason": why,
        "collective_gain": None if gain is None else round(gain, 4),
        "tok_s": median_of(progress.cells, one.name),
        "change": None if result is None else round(result.change, 4),
        "low": None if result is None or result.low is None else round(result.low, 4),
        "high": None if result is None or result.high is None else round(result.high, 4),
        "pairs": 0 if result is None else result.n,
        "launches": _launches(progress, one.name),
    }


def _status(setup: Setup, progress: Progress, name: str) -> tuple[str, str | None]:
    if name in setup.objections:
        return NOT_TRIED, setup.objections[name]
    if name in setup.left_out:
        return LEFT_OUT, "the budget has no room for it"
    if name in progress.out:
        return OUT, progress.out[name]
    result = judged(setup, progress, name)
    if result is not None:
        return result.verdict, None
    if name not in finalists(setup, progress):
        gain = collective_gain(setup, progress, name)
        return NO_FINALIST, None if gain is None else f"its all-reduce: {gain:+.1%}"
    return WAITING, None


def _why(setup: Setup, progress: Progress, decision: str, best: str | None) -> str:
    if decision == OPEN:
        return "not decided yet"
    if best is not None:
        result = judged(setup, progress, best)
        assert result is not None
        assert result.low is not None
        assert result.high is not None
        return (
            f"{best} is faster by {result.change:+.1%} [{result.low:+.1%}, {result.high:+.1%}] "
            f"over {result.n} pairs of launches"
        )
    if not any(cell.name != BASELINE for cell in progress.cells):
        return "no candidate was measured"
    return f"no candidate is proven to be faster by more than {setup.margin:.0%}"
