"""What an engine is asked while it serves and while it drains: is it well, do its counters move, does it generate, and
does anybody wait for an answer."""

import time
from collections.abc import Callable
from typing import Any

from deploy.engine.http import Answer
from deploy.plan.launch_plan import LaunchPlan
from deploy.supervise.exchanges import OnAnswer
from deploy.supervise.gate import Request
from deploy.supervise.generation import Generation, one_token, read_counters

DRAIN_POLL_S = 0.25

Send = Callable[[str, Request, OnAnswer], None]
Tell = Callable[[str, dict[str, Any]], None]
Again = Callable[[str, float], None]


class Serving:
    """The questions of one launch, from ready to its end.

    Args:
        send: begins a request for a purpose; its answer comes to the callback. A busy purpose is not asked twice.
        tell: takes an event for the lifecycle.
        again: asks for one of our three questions (probe, counters, drain) after so many seconds.
    """

    def __init__(self, plan: LaunchPlan, send: Send, tell: Tell, again: Again) -> None:
        self.plan = plan
        self._send, self._tell, self._again = send, tell, again
        self.patience = float(plan.health["timeout_s"])
        self.generation: Generation | None = None
        self.over = False
        self.quiet_readings = self.blind_readings = 0

    def end(self) -> None:
        """It is being ended: only draining is asked about from now on."""
        self.over = True

    def probe(self) -> None:
        """Ask after its health, and, where it has just begun to serve, begin to follow its counters."""
        if self.generation is None:  # just ready, or adopted while it serves
            health = self.plan.health
            self.generation = Generation(
                float(health.get("stuck_s", 0)), float(health.get("probe_s", 0)), time.monotonic()
            )
            self._again("counters", self.generation.poll_s)
        self._send("probe", Request("GET", "/health", b"", self.patience), self._health_answered)

    def _health_answered(self, answer: Answer) -> None:
        if answer.status == 200:
            self._tell("health_good", {})
        else:
            self._tell("health_bad", {"why": answer.why or f"HTTP {answer.status}"})
        if not self.over:
            self._again("probe", float(self.plan.health["interval_s"]))

    def counters(self) -> None:
        """Do its counters move, and if nothing runs, does it still generate a token?"""
        if self.generation is not None:
            self._send("counters", Request("GET", "/metrics", b"", self.patience), self._counters_answered)

    def _counters_answered(self, answer: Answer) -> None:
        generation = self.generation
        assert generation is not None
        now = time.monotonic()
        counters = read_counters(answer)
        if counters is not None:
            verdict = generation.take(counters, now)
            self._judged(verdict, f"{counters.busy:g} request(s) run and no counter of the engine moves")
        if generation.probe_due(now) and not self.over:
            body = one_token(self.plan.served_names[0])
            ask = Request("POST", "/v1/completions", body, float(self.plan.canary["timeout_s"]))
            self._send("counters", ask, self._token_answered)
            return
        self._again("counters", generation.poll_s)

    def _token_answered(self, answer: Answer) -> None:
        assert self.generation is not None
        why = answer.why or f"HTTP {answer.status}"
        verdict = self.generation.take_probe(answer, time.monotonic())
        self._judged(verdict, f"asked for one token: {why}")
        self._again("counters", self.generation.poll_s)

    def _judged(self, verdict: str | None, why: str) -> None:
        if verdict is not None:
            self._tell(verdict, {"why": why} if verdict == "stuck" else {})

    def drain(self) -> None:
        """Does anybody still wait for an answer?"""
        self._send("drain", Request("GET", "/metrics", b"", self.patience), self._drain_answered)

    def _drain_answered(self, answer: Answer) -> None:
        counters = read_counters(answer)
        # a request may be between the server and its counters, hence two quiet readings
        self.quiet_readings = self.quiet_readings + 1 if counters and counters.busy == 0 else 0
        self.blind_readings = self.blind_readings + 1 if counters is None else 0
        if self.quiet_readings == 2:
            self._tell("drained", {})
        elif self.blind_readings == 2 and answer.status is not None:
            self._tell("drained", {"why": "the engine does not tell its running requests"})
        elif self.blind_readings == 2:
            self._tell("drained", {"why": f"the engine does not answer: {answer.why}"})
        else:
            self._again("drain", DRAIN_POLL_S)
