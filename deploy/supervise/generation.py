"""Whether an engine that answers /health also generates. Pure: readings of /metrics go in, a verdict comes out.

vLLM's /health only tells that no process of it has died. An engine whose ranks wait for each other for ever answers 200
while requests run and no counter moves. So two questions are asked beside it: do the counters move while requests run,
and, where there is no traffic, is one token generated.
"""

import json
import re
from typing import NamedTuple

from deploy.engine.http import Answer

# What changes with every step of an engine that works. A long prompt moves only the cache in use and the steps.
MOVING = re.compile(
    rb"^vllm:(?:prompt_tokens_total|generation_tokens_total|request_success_total|iteration_tokens_total_(?:sum|count)"
    rb"|kv_cache_usage_perc|gpu_cache_usage_perc)(?:\{[^}]*\})?\s+(\S+)",
    re.MULTILINE,
)
GENERATED = re.compile(rb"^vllm:generation_tokens_total(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)
BUSY = re.compile(rb"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})?\s+([0-9.e+]+)", re.MULTILINE)
POLL_S = 15.0


class Counters(NamedTuple):
    """One reading: requests that run or wait, every number that moves with work, tokens generated so far."""

    busy: float
    moving: tuple[bytes, ...]
    generated: float


def read_counters(answer: Answer) -> Counters | None:
    """The counters of a /metrics answer; None when it has none."""
    busy = [float(text) for text in BUSY.findall(answer.body)] if answer.status == 200 else []
    if not busy:
        return None
    generated = sum(float(text) for text in GENERATED.findall(answer.body))
    return Counters(sum(busy), tuple(MOVING.findall(answer.body)), generated)


class Generation:
    """What is known about the engine's generating. Times are monotonic seconds.

    Args:
        stuck_s: requests that run this long without any counter moving are stuck; 0 never.
        probe_s: without a generated token for this long, one is asked for; 0 never.
        now: the moment it became ready.
    """

    def __init__(self, stuck_s: float, probe_s: float, now: float) -> None:
        self.stuck_s = stuck_s
        self.probe_s = probe_s
        self.before: Counters | None = None
        self.moved_at = self.proven_at = now
        self.idle = True

    @property
    def poll_s(self) -> float:
        """Seconds between two readings."""
        waits = [wait / 4 for wait in (self.stuck_s, self.probe_s) if wait > 0]
        return min([POLL_S, *waits])

    def take(self, counters: Counters, now: float) -> str | None:
        """One reading: "generating" when tokens came, "stuck" once for each `stuck_s` without any movement."""
        before, self.before = self.before, counters
        self.idle = counters.busy == 0
        if before is not None and counters.generated > before.generated:
            self.moved_at = self.proven_at = now
            return "generating"
        if before is None or self.idle or before.busy == 0 or counters.moving != before.moving:
            self.moved_at = now
            return None
        if self.stuck_s > 0 and now - self.moved_at >= self.stuck_s:
            self.moved_at = now
            return "stuck"
        return None

    def probe_due(self, now: float) -> bool:
        """Whether it is time to ask for a token: nothing runs, and nothing was generated for long."""
        return self.probe_s > 0 and self.idle and now - self.proven_at >= self.probe_s

    def take_probe(self, answer: Answer, now: float) -> str | None:
        """The answer to the request for one token: "generating", "stuck", or None when the server does not take it."""
        if answer.status is not None and 400 <= answer.status < 500 and answer.status != 429:
            self.probe_s = 0.0  # no such endpoint for this model, or a key that we do not have
            return None
        self.proven_at = self.moved_at = now
        return "generating" if answer.status == 200 else "stuck"


def one_token(model: str) -> bytes:
    """The body of the request for one token, to /v1/completions."""
    return json.dumps({"model": model, "prompt": "1 2 3", "max_tokens": 1, "temperature": 0}).encode()
