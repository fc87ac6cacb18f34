"""The restart policy: whether a failed launch is tried again, and when. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

BACKOFF_CAP_S = 600.0


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
