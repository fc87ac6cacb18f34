"""The readiness gate: health, the right listener, the right model, the canary. Driven by answers, pure of I/O.

`next_ask` says what to send, `take` digests the answer. During a load the port is bound but nobody listens, so a
refused connection is the normal case, and an answer from a process that is not the engine's is somebody else's.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from deploy.engine.http import Answer
from deploy.plan.launch_plan import LaunchPlan
from deploy.supervise.canary import Canary


class Request(NamedTuple):
    """What to send next: method, path, body, and how many seconds it may take."""

    method: str
    path: str
    body: bytes
    timeout_s: float


def canary_of(plan: LaunchPlan, expected: float | None, max_model_len: int | None = None) -> Canary:
    """The canary as a plan wants it. `expected`: the likelihood recorded for its checkpoint; the profile's own wins."""
    settings = plan.canary
    own = settings.get("expected_likelihood")
    return Canary(
        plan.served_names[0],
        timeout_s=float(settings["timeout_s"]),
        coherence=bool(settings["coherence"]),
        max_model_len=settings.get("max_model_len") or max_model_len,
        ask_likelihood=bool(settings.get("likelihood", True)),
        expected=expected if own is None else float(own),
    )


def offered(body: bytes) -> list[tuple[str, int | None]]:
    """The models of a /v1/models answer, each with its longest context where told."""
    try:
        entries = json.loads(body)["data"]
        return [(str(entry["id"]), _length(entry)) for entry in entries]
    except (ValueError, KeyError, TypeError):
        return []


def _length(entry: Mapping[str, Any]) -> int | None:
    value = entry.get("max_model_len")
    return value if isinstance(value, int) else None


class Gate:
    """Where the gate stands. `verdict` is None while it is open, then "passed" or a diagnosis.

    Args:
        expected: the likelihood recorded for the plan's checkpoint, where there is one.
        forget: the file that it is recorded in.
    """

    def __init__(self, plan: LaunchPlan, expected: float | None = None, forget: str = "") -> None:
        self.plan = plan
        self.stage = "health"
        self.verdict: dict[str, Any] | str | None = None
        self.canary: Canary | None = None
        self.reduced: str | None = None
        self._expected = expected
        self._forget = forget

    def next_ask(self, now: float) -> Request:
        """The request of the current stage, at monotonic second `now`."""
        patience = float(self.plan.health["timeout_s"])
        if self.stage == "health":
            return Request("GET", "/health", b"", patience)
        if self.stage == "models":
            return Request("GET", "/v1/models", b"", patience)
        assert self.canary is not None
        ask = self.canary.next_ask(now)
        return Request("POST", ask.path, ask.body, ask.timeout_s)

    def take(self, answer: Answer, now: float) -> None:
        """Digest the answer to `next_ask`."""
        if self.stage == "health":
            if answer.status == 200:
                self.stage = "models"
        elif self.stage == "models":
            self._take_models(answer)
        else:
            self._take_canary(answer, now)

    def _take_models(self, answer: Answer) -> None:
        if answer.status in (401, 403):
            # alive, but it wants a key that we were not given: nothing more can be asked
            self.reduced = f"/v1/models answered {answer.status}: the model was not checked, the canary not asked"
            self.verdict = "passed"
            return
        if answer.status != 200:
            self.stage = "health"
            return
        served = dict(offered(answer.body))
        wanted = self.plan.served_names
        if not set(wanted) & set(served):
            self.verdict = {
                "cause": "wrong-model",
                "summary": f"the server offers {', '.join(served) or 'no model'}, not {', '.join(wanted)}",
                "evidence": [],
                "fix": ["--set model.served_name=NAME"],
                "retryable": False,
            }
            return
        if self.plan.canary["enabled"]:
            self.stage = "canary"
            self.canary = canary_of(self.plan, self._expected, served.get(wanted[0]))
        else:
            self.verdict = "passed"

    def _take_canary(self, answer: Answer, now: float) -> None:
        assert self.canary is not None
        self.canary.take(answer, now)
        if self.canary.problem is not None:
            self.verdict = self.canary.diagnosis(self.plan.canary, self._forget)
        elif self.canary.done:
            self.verdict = "passed"
