"""How long the steps of a swap take, from what earlier launches of the same deployments took."""

import os
from collections.abc import Callable
from statistics import median

from deploy.lifecycle.fold import seconds_between
from deploy.store import journal
from deploy.store.launches import launches

LAUNCHES = 10  # of the newest are looked at


def start_seconds(name: str) -> float | None:
    """From launch to ready: the median of the launches of `name` that became ready; None when none did."""
    return _median(name, _start)


def stop_seconds(name: str) -> float | None:
    """From the order to stop until every process was gone, drain included; None when `name` was never stopped."""
    return _median(name, _stop)


def _median(name: str, measure: Callable[[str], float | None]) -> float | None:
    found = [measure(launch.events) for launch in launches(name)[-LAUNCHES:] if os.path.exists(launch.events)]
    known = [seconds for seconds in found if seconds is not None]
    return round(median(known), 1) if known else None


def _start(path: str) -> float | None:
    ready = [event.data.get("total_seconds") for event in journal.read(path) if event.kind == "ready"]
    return float(ready[0]) if ready and ready[0] is not None else None


def _stop(path: str) -> float | None:
    asked = ended = None
    for event in journal.read(path):
        if event.kind == "stop-asked":
            asked = asked or event.at
        elif event.kind == "stopped" and asked:
            ended = event.at
    return seconds_between(asked, ended) if asked and ended else None
