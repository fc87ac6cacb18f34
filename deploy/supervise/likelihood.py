"""How likely the engine finds a fixed text: one number for a checkpoint, which wrong kernels change at once. Pure.

The mean log-probability of a token of REFERENCE, by the engine's own `prompt_logprobs`. Only compared with what the
same checkpoint gave when it first passed: what is normal differs from model to model.
"""

import json
import math
from typing import Any, NamedTuple

from deploy.engine.http import Answer
from deploy.plan.launch_plan import LaunchPlan

TEXT = "ferry"  # the name of REFERENCE: another text is another expectation
REFERENCE = (
    "In the morning the ferry leaves the harbour at half past six. The captain checks the engine, the crew casts off "
    "the ropes, and the passengers drink their first coffee on deck. After twenty minutes the coast is only a thin "
    "line, and the wind smells of salt. Anyone who travels this way every day knows the lighthouse, the two small "
    "islands, and the moment when the sun comes up behind them."
)
TOLERANCE = (
    0.5  # nats a token below the expected mean; other kernels and other KV cache types move it by a tenth of that
)
LEARNABLE = -8.0  # a model that finds plain English less likely than this gives nothing to compare with
CLAMPED = -9000.0  # the engine writes minus infinity as -9999
FEWEST = 8


class Reading(NamedTuple):
    """One measurement. `mean` is None where the engine gives none, `why` says why; `broken`: what is wrong in it."""

    mean: float | None
    tokens: int
    why: str = ""
    broken: str | None = None


def body(model: str) -> bytes:
    """The body of the request, to /v1/completions."""
    ask = {"model": model, "prompt": REFERENCE, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    return json.dumps(ask).encode()


def read(answer: Answer) -> Reading:
    """What an answer says. An engine that does not offer it is no fault; numbers that are none are."""
    told = answer.body[:300].decode(errors="replace").strip()
    if answer.status is None:
        return Reading(None, 0, broken=f"the likelihood of a text was asked for: {answer.why}")
    if answer.status != 200:
        lowered = told.casefold()
        if "json compliant" in lowered or "out of range float" in lowered:
            return Reading(None, 0, broken=f"the log-probabilities of a plain text are no numbers: {told}")
        if answer.status >= 500 and "enginecore" in lowered:
            return Reading(None, 0, broken=f"HTTP {answer.status}: {told}")
        return Reading(None, 0, why=f"prompt_logprobs was answered with HTTP {answer.status}: {told[:120]}")
    try:
        entries = json.loads(answer.body)["choices"][0]["prompt_logprobs"]
    except (ValueError, KeyError, IndexError, TypeError):
        entries = None
    if not isinstance(entries, list):
        return Reading(None, 0, why="the engine gives no prompt_logprobs")
    return _reading([_value(entry) for entry in entries[1:]])  # nothing comes before the first token


def _value(entry: Any) -> float | None:
    """The log-probability of the token itself: the first of its entry."""
    try:
        return float(next(iter(entry.values()))["logprob"])
    except (AttributeError, StopIteration, KeyError, TypeError, ValueError):
        return None


def _reading(values: list[float | None]) -> Reading:
    known = [value for value in values if value is not None]
    if len(values) < FEWEST:
        return Reading(None, len(values), why=f"only {len(values)} log-probabilities came")
    if len(known) < len(values) or any(math.isnan(value) for value in known):
        bad = len(values) - len(known) + sum(math.isnan(value) for value in known)
        return Reading(
            None, len(values), broken=f"{bad} of {len(values)} log-probabilities of a plain text are no numbers"
        )
    if sum(value < CLAMPED for value in known) * 4 > len(known):
        return Reading(None, len(values), broken="tokens of a plain text have no likelihood at all")
    return Reading(sum(known) / len(known), len(known))


def too_low(mean: float, expected: float | None) -> str | None:
    """In words, that a mean lies far below what is expected of this checkpoint; None when it does not."""
    if expected is None or mean >= expected - TOLERANCE:
        return None
    return (
        f"a plain text has a mean log-probability of {mean:.2f} a token; "
        f"{expected:.2f} is expected of this checkpoint, and at least {expected - TOLERANCE:.2f}"
    )


def key_of(plan: LaunchPlan) -> str | None:
    """What the expectation belongs to: checkpoint and text. None for plans that do not name their checkpoint."""
    checkpoint = plan.canary.get("checkpoint")
    return f"{checkpoint}-{TEXT}" if checkpoint else None
