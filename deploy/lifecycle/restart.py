"""The restart policy: whether a failed launch is tried again, when, and what is to blame when it is not. Pure."""

from collections.abc import Sequence
from typing import Any, NamedTuple

BACKOFF_CAP_S = 600.0
FIXES = ("fix", "settings")  # of a diagnosis: in words, and for `--set`
FAILURES_KEPT = 8  # the first, and the last ones


class RestartPolicy(NamedTuple):
    """`restart:` of the profile. `attempts` counts starts after the first within `window_s` seconds."""

    policy: str
    attempts: int
    window_s: float
    backoff_s: float


class Verdict(NamedTuple):
    """`delay_s` seconds until the next start, or None for none, and the reason in words."""

    delay_s: float | None
    reason: str


def judge(policy: RestartPolicy, earlier: Sequence[float], now: float, *, retryable: bool) -> Verdict:
    """Whether to start again after a failure.

    Args:
        policy: what the profile says.
        earlier: wall-clock seconds of the restarts already made for this `up`.
        now: wall-clock seconds.
        retryable: False for a configuration that would fail the same way again.
    """
    if policy.policy == "never":
        return Verdict(None, "restart.policy is never")
    if not retryable:
        return Verdict(None, "the same configuration would fail again")
    # a clock that went back must not refill the budget: a time to come counts as recent
    recent = sum(1 for at in earlier if now - at <= policy.window_s)
    if recent >= policy.attempts:
        return Verdict(None, f"{recent} restarts within {policy.window_s:g} s used up restart.attempts")
    delay = min(policy.backoff_s * 2.0 ** min(recent, 60), max(BACKOFF_CAP_S, policy.backoff_s))
    return Verdict(delay, f"restart {recent + 1} of {policy.attempts}")


class Failure(NamedTuple):
    """An attempt that failed and was followed by another: wall-clock second of the next start, diagnosis, and the log
    that its evidence is from."""

    at: float
    diagnosis: dict[str, Any]
    log: str = ""


def remember(failures: Sequence[Failure], failure: Failure, window_s: float) -> tuple[Failure, ...]:
    """`failures` with one more, without those that are older than the window."""
    recent = [one for one in failures if failure.at - one.at <= window_s]
    return (*recent[:1], *recent[1:][-(FAILURES_KEPT - 2) :], failure)


def blame(failures: Sequence[Failure], last: dict[str, Any], now: float, window_s: float) -> dict[str, Any]:
    """The diagnosis to show when no further attempt is made: the first failure's, which the later ones may only have
    followed from.

    Args:
        failures: the attempts before.
        last: the diagnosis of the last attempt; it is shown as it is where every attempt failed for the same cause.
        now: wall-clock seconds.
        window_s: earlier failures are a story of their own.
    """
    recent = [one for one in failures if now - one.at <= window_s]
    if all(one.diagnosis["cause"] == last["cause"] for one in recent):
        return last
    first = recent[0]
    later = [*(one.diagnosis for one in recent[1:]), last]
    told = list(dict.fromkeys(f"{one['cause']}: {one['summary']}" for one in later))
    named = [{**item, "log": first.log} if first.log else item for item in first.diagnosis["evidence"]]
    by_weight = (first.diagnosis, *reversed(later))  # of what came after, the last one stands in the way
    merged = {key: list(dict.fromkeys(each for one in by_weight for each in one.get(key, ()))) for key in FIXES}
    return {
        **first.diagnosis,
        "summary": f"{first.diagnosis['summary']}; started again, it failed otherwise: {'; '.join(told)}",
        "evidence": [*named, *last["evidence"]],
        **merged,
    }
