"""One request to an engine and its answer, waited for: what commands need, who have no selector loop of their own."""

import selectors
import time

from deploy.engine.http import Answer, Exchange, request
from deploy.host.listeners import probe_host
from deploy.plan.launch_plan import LaunchPlan
from deploy.supervise.spawn import api_key


def talk(plan: LaunchPlan, method: str, path: str, timeout_s: float, body: bytes = b"") -> Answer:
    """The answer of the engine of `plan`; status None when none came within `timeout_s` seconds."""
    host = probe_host(plan.host)
    data = request(method, path, host, body=body, api_key=api_key(plan))
    deadline = time.monotonic() + timeout_s
    exchange = Exchange(host, plan.port, data, deadline=deadline)
    try:
        with selectors.DefaultSelector() as selector:
            while exchange.answer is None:
                mask = selectors.EVENT_WRITE if exchange.wants_write else selectors.EVENT_READ
                selector.register(exchange, mask)
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                selector.unregister(exchange)
                if ready:
                    exchange.advance()
                elif time.monotonic() >= deadline:
                    exchange.expire()
    finally:
        exchange.close()
    return exchange.answer
