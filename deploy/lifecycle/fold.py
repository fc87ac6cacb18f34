"""What a journal says about a deployment: a fold over its events. Pure.

`Observed` is what was true at the last record. Whether the supervisor and the engine still live is asked elsewhere.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from deploy.lifecycle.events import Event
from deploy.lifecycle.states import FAILED, READY, STARTING, STATES, STOPPED


@dataclass
class Observed:
    """One launch as its journal tells it. `seconds` of phases and `at` stamps come from the records."""

    state: str = STARTING
    phase: str | None = None
    launch: str = ""
    boot_id: str = ""
    supervisor: tuple[int, int] | None = None
    leader: tuple[int, int] | None = None
    spawning: bool = False
    cgroup: str | None = None
    members: dict[tuple[int, int], str] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)  # shared memory and sockets of the engine
    started_at: str | None = None
    ready_at: str | None = None
    ended_at: str | None = None
    phases: list[dict[str, Any]] = field(default_factory=list)
    load: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    prewarm: dict[str, Any] = field(default_factory=dict)
    remembered: dict[str, Any] = field(default_factory=dict)  # what this load took, as the history keeps it
    restarts: list[float] = field(default_factory=list)
    failures: list[list[Any]] = field(default_factory=list)  # of the attempts before, as the restart policy keeps them
    exit: dict[str, Any] | None = None
    diagnosis: dict[str, Any] | None = None
    retry: dict[str, Any] | None = None
    incomplete: bool = False
    gpu_memory: list[dict[str, Any]] = field(default_factory=list)  # before and after the end, for each GPU
    memory_unproven: str | None = None
    patches: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)  # by name, then by pid
    restarting: bool = False  # the stop that was asked for is the first half of a restart
    over: bool = False
    last_at: str | None = None
    last_progress_at: str | None = None
    records_lost: int = 0


def fold(events: Iterable[Event]) -> Observed:
    """The state after all of `events`."""
    observed = Observed()
    for event in events:
        apply(observed, event)
    return observed


def apply(observed: Observed, event: Event) -> None:
    """Take one more event into account."""
    data = event.data
    observed.last_at = event.at
    observed.records_lost += int(data.get("records_lost", 0))
    if data.get("state") in STATES:
        observed.state = data["state"]
    handler = _HANDLERS.get(event.kind)
    if handler is not None:
        handler(observed, event.at, data)


def seconds_between(earlier: str, later: str) -> float:
    """Seconds between two journal stamps."""
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


def _launch(observed: Observed, at: str, data: dict[str, Any]) -> None:
    observed.launch = data.get("launch", "")
    observed.boot_id = data.get("boot_id", "")
    observed.supervisor = _pair(data.get("supervisor"))
    observed.restarts = list(data.get("restarts", []))
    observed.failures = list(data.get("failures", []))
    observed.started_at = at
    _enter(observed, at, "spawn")


def _spawning(observed: Observed, at: str, data: dict[str, Any]) -> None:
    observed.spawning = True
    observed.cgroup = data.get("cgroup")
    _files(observed, at, data)  # where its sockets will lie


def _spawned(observed: Observed, at: str, data: dict[str, Any]) -> None:
    observed.leader = _pair(data.get("identity"))


def _adopted(observed: Observed, at: str, data: dict[str, Any]) -> None:
    observed.supervisor = _pair(data.get("supervisor"))
    observed.incomplete = False  # whoever adopts tries again to end what is left


def _members(observed: Observed, at: str, data: dict[str, Any]) -> None:
    for pid, ticks, title in data.get("members", ()):
        observed.members[(pid, ticks)] = title


def _files(observed: Observed, at: str, data: dict[str, Any]) -> None:
    observed.files.update(data.get("files", ()))


def _phase(observed: Observed, at: str, data: dict[str, Any]) -> None:
    _enter(observed, at, data.get("phase"), data.get("seconds"))


def _enter(observed: Observed, at: str, phase: str | None, seconds: float | None = None) -> None:
    """End the running phase after `seconds` by the supervisor's own clock (else by the stamps) and begin the next."""
    if observed.phases and observed.phases[-1]["seconds"] is None:
        last = observed.phases[-1]
        last["seconds"] = round(seconds_between(last["started_at"], at), 3) if seconds is None else seconds
    observed.phase = phase
    if phase is not None:
        observed.phases.append({"phase": phase, "started_at": at, "seconds": None})


def _progress(observed: Observed, at: str, data: dict[str, Any]) -> None:
    before, before_at = observed.load, observed.last_progress_at
    observed.load = dict(data)
    observed.last_progress_at = at
    if "bytes_per_s" in data:  # the supervisor's own reckoning
        return
    gained = (data.get("bytes_done") or 0) - (before.get("bytes_done") or 0)
    elapsed = seconds_between(before_at, at) if before_at else 0.0
    if gained > 0 and elapsed > 0:
        # an average that follows: shards come in lumps
        rate = gained / elapsed
        old = before.get("bytes_per_s")
        observed.load["bytes_per_s"] = rate if old is None else 0.6 * old + 0.4 * rate
    elif "bytes_per_s" in before:
        observed.load["bytes_per_s"] = before["bytes_per_s"]


def _prewarm(observed: Observed, at: str, data: dict[str, Any]) -> None:
    observed.prewarm = dict(data)


def _load_remembered(observed: Observed, at: str, data: dict[str, Any]) -> None:
    observed.remembered = dict(data)


def _fact(observed: Observed, at: str, data: dict[str, Any]) -> None:
    observed.facts.update({key: value for key, value in data.items() if key != "records_lost"})


def _patch(observed: Observed, at: str, data: dict[str, Any]) -> None:
    entry = {key: data.get(key) for key in ("outcome", "why", "process")}
    observed.patches.setdefault(str(data.get("patch")), {})[int(data.get("pid", 0))] = entry


def _ready(observed: Observed, at: str, data: dict[str, Any]) -> None:
    _enter(observed, at, None, data.get("seconds"))
    observed.ready_at = at


def _exited(observed: Observed, at: str, data: dict[str, Any]) -> None:
    observed.exit = {key: data.get(key) for key in ("exit_code", "signal", "asked")}
    _failed(observed, at, data)


def _failed(observed: Observed, at: str, data: dict[str, Any]) -> None:
    if data.get("diagnosis"):
        observed.diagnosis = data["diagnosis"]
        observed.ended_at = at
        failed_in = observed.phase
        _enter(observed, at, None)
        observed.phase = failed_in


def _incomplete(observed: Observed, at: str, data: dict[str, Any]) -> None:
    _failed(observed, at, data)
    _memory(observed, at, data)
    observed.incomplete = True


def _memory(observed: Observed, at: str, data: dict[str, Any]) -> None:
    observed.gpu_memory = data.get("gpu_memory", observed.gpu_memory)
    observed.memory_unproven = data.get("memory_unproven", observed.memory_unproven)


def _retry(observed: Observed, at: str, data: dict[str, Any]) -> None:
    observed.retry = {"at": at, "in_s": data.get("in_s"), "reason": data.get("reason")}


def _gave_up(observed: Observed, at: str, data: dict[str, Any]) -> None:
    observed.over = True
    observed.restarting = False
    observed.diagnosis = data.get("diagnosis") or observed.diagnosis


def _stop_asked(observed: Observed, at: str, data: dict[str, Any]) -> None:
    _enter(observed, at, None)
    observed.retry = None
    observed.restarting = bool(data.get("restart"))


def _stopped(observed: Observed, at: str, data: dict[str, Any]) -> None:
    _memory(observed, at, data)
    observed.over = True
    observed.ended_at = at
    observed.phase = None


def _pair(value: Any) -> tuple[int, int] | None:
    return (int(value[0]), int(value[1])) if value else None


_HANDLERS = {
    "launch": _launch,
    "spawning": _spawning,
    "spawned": _spawned,
    "adopted": _adopted,
    "members": _members,
    "files": _files,
    "phase": _phase,
    "progress": _progress,
    "prewarm": _prewarm,
    "load-remembered": _load_remembered,
    "fact": _fact,
    "patch": _patch,
    "ready": _ready,
    "exited": _exited,
    "failed": _failed,
    "teardown-incomplete": _incomplete,
    "retry": _retry,
    "gave-up": _gave_up,
    "stop-asked": _stop_asked,
    "stopped": _stopped,
    "tree-gone": _memory,
    "gpu-memory": _memory,
}

FINAL = (FAILED, STOPPED)


def is_settled(observed: Observed) -> bool:
    """Whether nothing more will happen by itself: ready, stopped, or failed with no restart to come."""
    if observed.state == READY:
        return True
    return observed.state in FINAL and (observed.over or observed.incomplete)
