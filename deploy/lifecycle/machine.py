"""What a supervisor does about what happens: `step(machine, event, limits) -> (machine, records, actions)`.

Pure. The supervisor turns the world into events and carries out the actions; every record is journalled
before the actions are taken. Two values say where a launch stands:

    state    what people see (starting ready unhealthy stopping stopped failed)
    ending   how far the end of the process tree has come: None, "drain", "term", "kill", "done"

so that an engine that failed is shown as failed at once, while its orphans are still being ended.

    starting ── gate_passed ──> ready ── health bad, N times ──> unhealthy ── health good ──> ready
    ready ── stuck (answers, generates nothing) ──> unhealthy ── generating ──> ready, stuck again ──> failed
    starting ready unhealthy ── exited, gate_failed, stalled ──> failed, ending=term
    starting ready unhealthy ── stop_asked ──> stopping, ending=drain (while serving) or term
    stopping ── tree_gone ──> stopped          failed ── tree_gone ──> failed, then a restart or the end
    failed (backing off) ── stop_asked ──> stopped
    ending=term ── term_s ──> ending=kill ── kill_s ──> failed: teardown-incomplete
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from deploy.lifecycle.restart import Failure, RestartPolicy, blame, judge, remember
from deploy.lifecycle.states import (
    FAILED,
    PHASES,
    READY,
    SERVING,
    STARTING,
    STATES,
    STOPPED,
    STOPPING,
    UNHEALTHY,
    is_later,
)

# A first SIGTERM during initialisation is swallowed by vLLM (measured, 5 of 5): it is repeated, and goes to the
# whole tree, which ended a loading engine in 4 s, where repeats to the server alone took 20. A server that has served
# is left to finish by itself for most of term_s.
TERM_REPEAT_S = 2.0
TERM_REPEAT_SERVED_S = 5.0
SERVED_SHARE = 2 / 3
# After a crash nothing is left to be finished politely; the workers that it left get this long.
ORPHAN_TERM_S = 10.0


class Limits(NamedTuple):
    """The profile's times, all in seconds, and its restart policy."""

    stall_s: float
    limit_s: float
    health_failures: int
    drain_s: float
    term_s: float
    kill_s: float
    restart: RestartPolicy


@dataclass(frozen=True, slots=True)
class Machine:
    """Where one launch stands. Times are monotonic seconds, except `restarts` (wall clock)."""

    state: str
    phase: str | None
    started: float
    phase_since: float
    progress_at: float
    ending: str | None = None
    ending_since: float = 0.0
    signalled_at: float = 0.0
    signals: int = 0
    leader_gone: bool = False
    stop_wanted: bool = False
    restart_wanted: bool = False
    served: bool = False
    bad_health: int = 0
    stuck: bool = False  # answers, but generates nothing
    diagnosis: dict[str, Any] | None = None
    retry_at: float | None = None
    restarts: tuple[float, ...] = ()
    failures: tuple[Failure, ...] = ()  # of the attempts before this one


class Input(NamedTuple):
    """Something that happened: its kind, monotonic `now`, wall-clock `wall`, and data."""

    kind: str
    now: float
    wall: float
    data: dict[str, Any]


class Record(NamedTuple):
    """A journal record to be written before the actions of the same step."""

    kind: str
    data: dict[str, Any]


class Action(NamedTuple):
    """Something to do: `signal` (scope leader|tree, signal), `drain`, `relaunch`, `finish`."""

    kind: str
    data: dict[str, Any]


class Step(NamedTuple):
    """The outcome of one event."""

    machine: Machine
    records: tuple[Record, ...] = ()
    actions: tuple[Action, ...] = ()


def start(now: float, *, restarts: tuple[float, ...] = (), failures: tuple[Failure, ...] = ()) -> Machine:
    """A launch whose engine is about to be spawned."""
    return Machine(STARTING, "spawn", now, now, now, restarts=restarts, failures=failures)


def resume(
    state: str,
    phase: str | None,
    now: float,
    *,
    restarts: tuple[float, ...] = (),
    failures: tuple[Failure, ...] = (),
    diagnosis: dict[str, Any] | None = None,
) -> Machine:
    """A launch that another supervisor had begun. Clocks start anew; a stop or a failure goes on ending the tree."""
    ending = state in (STOPPING, FAILED)
    return Machine(
        state=state,
        phase=phase if state == STARTING and phase in PHASES else None,
        started=now,
        phase_since=now,
        progress_at=now,
        ending="term" if ending else None,
        ending_since=now,
        signalled_at=now,
        signals=int(ending),
        stop_wanted=state == STOPPING,
        served=state in (*SERVING, STOPPING),
        diagnosis=diagnosis,
        restarts=restarts,
        failures=failures,
    )


Handler = Callable[[Machine, Input, Limits], Step]


def _ignore(m: Machine, event: Input, limits: Limits) -> Step:
    return Step(m)


def _phase_seen(m: Machine, event: Input, limits: Limits) -> Step:
    phase = event.data["phase"]
    if not is_later(phase, m.phase):
        return Step(replace(m, progress_at=event.now))
    seconds = round(event.now - m.phase_since, 3)
    record = Record("phase", {"state": STARTING, "phase": phase, "after": m.phase, "seconds": seconds})
    return Step(replace(m, phase=phase, phase_since=event.now, progress_at=event.now), (record,))


def _progress(m: Machine, event: Input, limits: Limits) -> Step:
    return Step(replace(m, progress_at=event.now))


def _gate_passed(m: Machine, event: Input, limits: Limits) -> Step:
    record = Record(
        "ready",
        {
            "state": READY,
            "after": m.phase,
            "seconds": round(event.now - m.phase_since, 3),
            "total_seconds": round(event.now - m.started, 3),
            **event.data,
        },
    )
    return Step(replace(m, state=READY, phase=None, bad_health=0, served=True), (record,))


def _fail(m: Machine, event: Input, diagnosis: dict[str, Any], kind: str, data: dict[str, Any]) -> Step:
    """The launch has failed: say so at once, then end whatever is left of the tree."""
    record = Record(kind, {"state": FAILED, "phase": m.phase, "diagnosis": diagnosis, **data})
    failed = replace(
        m,
        state=FAILED,
        diagnosis=diagnosis,
        ending="term",
        ending_since=event.now,
        signalled_at=event.now,
        signals=1,
    )
    return Step(failed, (record,), (Action("signal", {"scope": "tree", "signal": "SIGTERM"}),))


def _failed(m: Machine, event: Input, limits: Limits) -> Step:
    return _fail(m, event, event.data["diagnosis"], "failed", {})


def _exited(m: Machine, event: Input, limits: Limits) -> Step:
    diagnosis = event.data["diagnosis"]
    data = {key: value for key, value in event.data.items() if key != "diagnosis"}
    return _fail(replace(m, leader_gone=True), event, diagnosis, "exited", {"asked": False, **data})


def _exited_while_ending(m: Machine, event: Input, limits: Limits) -> Step:
    data = {key: value for key, value in event.data.items() if key != "diagnosis"}
    record = Record("exited", {"asked": m.signals > 0, **data})
    m = replace(m, leader_gone=True)
    if m.ending in ("kill", "done"):
        return Step(m, (record,))
    # a wrapper that does not pass signals on, or a server that left by itself: the rest of the tree must follow
    if m.ending == "drain":
        m = replace(m, ending="term", ending_since=event.now)
    m = replace(m, signalled_at=event.now, signals=m.signals + 1)
    return Step(m, (record,), (Action("signal", {"scope": "tree", "signal": "SIGTERM"}),))


def _health_good(m: Machine, event: Input, limits: Limits) -> Step:
    if m.state == UNHEALTHY and not m.stuck:
        return Step(replace(m, state=READY, bad_health=0), (Record("healthy", {"state": READY}),))
    return Step(replace(m, bad_health=0))


def _health_bad(m: Machine, event: Input, limits: Limits) -> Step:
    m = replace(m, bad_health=m.bad_health + 1)
    if m.state == READY and m.bad_health >= limits.health_failures:
        record = Record("unhealthy", {"state": UNHEALTHY, "failures": m.bad_health, **event.data})
        return Step(replace(m, state=UNHEALTHY), (record,))
    beyond = m.bad_health >= 2 * limits.health_failures
    if m.state == UNHEALTHY and beyond and limits.restart.policy != "never":
        diagnosis = {
            "cause": "unhealthy",
            "summary": f"health failed {m.bad_health} times in a row: {event.data.get('why', 'no answer')}",
            "evidence": [],
            "fix": [],
            "retryable": True,
        }
        return _fail(m, event, diagnosis, "failed", {})
    return Step(m)


def _stuck(m: Machine, event: Input, limits: Limits) -> Step:
    """It answers and generates nothing: unhealthy at once, since the time to wait for it is over; failed the next time,
    where a restart may follow."""
    if m.state == READY:
        record = Record("unhealthy", {"state": UNHEALTHY, **event.data})
        return Step(replace(m, state=UNHEALTHY, stuck=True), (record,))
    if m.stuck and limits.restart.policy != "never":
        diagnosis = {
            "cause": "not-generating",
            "summary": f"the engine answers and generates nothing: {event.data.get('why')}",
            "evidence": [],
            "fix": ["kdeploy logs shows what the engine said last"],
            "retryable": True,
        }
        return _fail(m, event, diagnosis, "failed", {})
    return Step(replace(m, stuck=True))


def _generating(m: Machine, event: Input, limits: Limits) -> Step:
    if m.state == UNHEALTHY and m.stuck and m.bad_health == 0:
        return Step(replace(m, state=READY, stuck=False), (Record("healthy", {"state": READY}),))
    return Step(replace(m, stuck=False))


def _stop_asked(m: Machine, event: Input, limits: Limits) -> Step:
    drains = m.state in SERVING and not event.data.get("force") and limits.drain_s > 0
    record = Record("stop-asked", {"state": STOPPING, "from": m.state, "phase": m.phase, "drain": drains, **event.data})
    restart = bool(event.data.get("restart"))
    m = replace(m, state=STOPPING, stop_wanted=True, restart_wanted=restart, ending_since=event.now)
    if drains:
        return Step(replace(m, ending="drain"), (record,), (Action("drain", {}),))
    return _term(m, event, (record,))


def _term(m: Machine, event: Input, records: tuple[Record, ...] = ()) -> Step:
    m = replace(m, ending="term", ending_since=event.now, signalled_at=event.now, signals=1)
    return Step(m, records, (Action("signal", {"scope": "leader" if m.served else "tree", "signal": "SIGTERM"}),))


def _kill(m: Machine, event: Input) -> Step:
    m = replace(m, ending="kill", ending_since=event.now, signalled_at=event.now)
    return Step(m, (), (Action("signal", {"scope": "tree", "signal": "SIGKILL"}),))


def _stop_asked_again(m: Machine, event: Input, limits: Limits) -> Step:
    """A second stop: the last one says whether a start follows. Force cuts the drain short, and a forced one after that
    goes straight to SIGKILL."""
    m = replace(m, restart_wanted=bool(event.data.get("restart")))
    if not event.data.get("force"):
        return Step(m)
    record = Record("stop-asked", {"state": STOPPING, "from": m.state, **event.data})
    if m.ending == "drain":
        return _term(m, event, (record,))
    if m.ending == "term":
        step = _kill(m, event)
        return Step(step.machine, (record,), step.actions)
    return Step(m)


def _stop_asked_after_failure(m: Machine, event: Input, limits: Limits) -> Step:
    """Failed and not yet over: no further start, and once nothing is left it counts as stopped."""
    record = Record("stop-asked", {"from": m.state, **event.data})
    m = replace(m, stop_wanted=True, retry_at=None)
    if m.ending == "done":
        if event.data.get("restart"):
            return Step(start(event.now), (record,), (Action("relaunch", {}),))
        return Step(replace(m, state=STOPPED), (record, _stopped(m, event)), (Action("finish", {}),))
    m = replace(m, restart_wanted=bool(event.data.get("restart")))
    if event.data.get("force") and m.ending == "term":
        step = _kill(m, event)
        return Step(step.machine, (record,), step.actions)
    return Step(m, (record,))


def _drained(m: Machine, event: Input, limits: Limits) -> Step:
    if m.ending != "drain":
        return Step(m)
    return _term(m, event, (Record("drained", {"seconds": round(event.now - m.ending_since, 3), **event.data}),))


def _stopped(m: Machine, event: Input) -> Record:
    return Record("stopped", {"state": STOPPED, **event.data})


def _memory_held(m: Machine, event: Input) -> Step:
    """Every process is gone, and the driver still charges memory to them. Nothing is started on top of that."""
    held = list(event.data["memory_held"])
    if m.diagnosis is not None and m.diagnosis["cause"] != "teardown-incomplete":
        held.append(f"before that it had failed: {m.diagnosis['cause']}: {m.diagnosis['summary']}")
    diagnosis = {
        "cause": "teardown-incomplete",
        "summary": "every process has ended, and GPU memory of theirs did not come back",
        "evidence": [{"line": 0, "text": str(entry)} for entry in held],
        "fix": ["kdeploy down once more looks again; if it stays, reset the GPU (nvidia-smi -r) or reboot"],
        "retryable": False,
    }
    record = Record("teardown-incomplete", {**event.data, "state": FAILED, "diagnosis": diagnosis})
    return Step(replace(m, state=FAILED, ending="done", diagnosis=diagnosis), (record,), (Action("finish", {}),))


def _tree_gone_stopping(m: Machine, event: Input, limits: Limits) -> Step:
    if event.data.get("memory_held"):
        return _memory_held(m, event)
    m = replace(m, state=STOPPED, ending="done", phase=None)
    if m.restart_wanted:
        return Step(start(event.now), (_stopped(m, event),), (Action("relaunch", {}),))
    return Step(m, (_stopped(m, event),), (Action("finish", {}),))


def _tree_gone_failed(m: Machine, event: Input, limits: Limits) -> Step:
    """Everything of a failed launch is gone: restart by policy, or come to the end."""
    if m.ending in (None, "done"):
        return Step(m)
    if event.data.get("memory_held"):
        return _memory_held(m, event)
    m = replace(m, ending="done", phase=None)
    gone = Record("tree-gone", event.data)
    if m.stop_wanted:
        stopped = (gone, _stopped(m, event))
        if m.restart_wanted:
            return Step(start(event.now), stopped, (Action("relaunch", {}),))
        return Step(replace(m, state=STOPPED), stopped, (Action("finish", {}),))
    diagnosis = m.diagnosis or {}
    if diagnosis.get("fall_back"):
        record = Record("fell-back", {"reason": diagnosis["fall_back"]})
        return Step(start(event.now), (gone, record), (Action("relaunch", {}),))
    verdict = judge(limits.restart, m.restarts, event.wall, retryable=bool(diagnosis.get("retryable", True)))
    if verdict.delay_s is None:
        data: dict[str, Any] = {"state": FAILED, "reason": verdict.reason}
        if m.failures and diagnosis:
            diagnosis = blame(m.failures, diagnosis, event.wall, limits.restart.window_s)
            data["diagnosis"] = diagnosis
        return Step(replace(m, diagnosis=diagnosis or None), (gone, Record("gave-up", data)), (Action("finish", {}),))
    retry = Record("retry", {"state": FAILED, "in_s": verdict.delay_s, "reason": verdict.reason})
    return Step(replace(m, retry_at=event.now + verdict.delay_s), (gone, retry))


def _tick_starting(m: Machine, event: Input, limits: Limits) -> Step:
    if event.now >= m.started + limits.limit_s:
        diagnosis = _stalled(
            f"not ready after load.limit_s = {limits.limit_s:g} s (phase {m.phase})", "limit_s", event.data.get("stall")
        )
        return _fail(m, event, diagnosis, "failed", {})
    if event.now >= m.progress_at + limits.stall_s:
        diagnosis = _stalled(
            f"no progress for {event.now - m.progress_at:.0f} s in phase {m.phase}", "stall_s", event.data.get("stall")
        )
        return _fail(m, event, diagnosis, "failed", {})
    return Step(m)


def _stalled(summary: str, key: str, seen: dict[str, Any] | None) -> dict[str, Any]:
    seen = seen or {}
    hang = seen.get("hang") or {}
    return {
        "cause": "stalled",
        "summary": "; ".join(filter(None, (summary, seen.get("who"), hang.get("words")))),
        "hang": hang.get("name"),
        "evidence": seen.get("evidence", []),
        "fix": [*hang.get("fix", ()), f"if this load is known to be that slow, raise it: --set load.{key}=SECONDS"],
        "retryable": True,
    }


def _tick_ending(m: Machine, event: Input, limits: Limits) -> Step:
    """The clock of a teardown: drain → TERM, repeated and widened → KILL → give up and name the survivors."""
    elapsed = event.now - m.ending_since
    if m.ending == "drain":
        if event.now < m.ending_since + limits.drain_s:
            return Step(m)
        return _term(m, event, (Record("drain-over", {"seconds": round(elapsed, 3)}),))
    if m.ending == "term":
        if event.now >= m.ending_since + _patience(m, limits):
            return _kill(m, event)
        if event.now >= m.signalled_at + _repeat_s(m):
            alone = m.served and not m.leader_gone and elapsed < SERVED_SHARE * limits.term_s
            scope = "leader" if alone else "tree"
            m = replace(m, signalled_at=event.now, signals=m.signals + 1)
            return Step(m, (), (Action("signal", {"scope": scope, "signal": "SIGTERM"}),))
        return Step(m)
    if m.ending == "kill":
        if event.now >= m.ending_since + limits.kill_s:
            return _incomplete(m, event, limits)
        if event.now >= m.signalled_at + TERM_REPEAT_S:
            m = replace(m, signalled_at=event.now)
            return Step(m, (), (Action("signal", {"scope": "tree", "signal": "SIGKILL"}),))
    return Step(m)


def _patience(m: Machine, limits: Limits) -> float:
    """Seconds from SIGTERM to SIGKILL."""
    crashed = m.state == FAILED and m.leader_gone
    return min(limits.term_s, ORPHAN_TERM_S) if crashed else limits.term_s


def _repeat_s(m: Machine) -> float:
    return TERM_REPEAT_SERVED_S if m.served and not m.leader_gone else TERM_REPEAT_S


def _incomplete(m: Machine, event: Input, limits: Limits) -> Step:
    survivors = event.data.get("survivors", [])
    if not survivors:  # the last one went in this very moment
        gone = event._replace(kind="tree_gone", data={})
        return TABLE[m.state]["tree_gone"](m, gone, limits)
    diagnosis = {
        "cause": "teardown-incomplete",
        "summary": f"{len(survivors)} process(es) survived SIGKILL",
        "evidence": [{"line": 0, "text": str(survivor)} for survivor in survivors],
        "fix": ["a process in state D waits inside the kernel or the driver; if it stays, reset the GPU or reboot"],
        "retryable": False,
    }
    record = Record("teardown-incomplete", {"state": FAILED, "diagnosis": diagnosis, "survivors": survivors})
    m = replace(m, state=FAILED, ending="done", diagnosis=diagnosis)
    return Step(m, (record,), (Action("finish", {}),))


def _once_more(m: Machine, event: Input, limits: Limits) -> Machine:
    """The next attempt of the restart policy: it counts against the budget, and what failed before is not forgotten."""
    failures = m.failures
    if m.diagnosis is not None:
        failures = remember(failures, Failure(event.wall, m.diagnosis), limits.restart.window_s)
    return start(event.now, restarts=(*m.restarts, event.wall), failures=failures)


def _tick_failed(m: Machine, event: Input, limits: Limits) -> Step:
    if m.ending != "done":
        return _tick_ending(m, event, limits)
    if m.retry_at is not None and event.now >= m.retry_at:
        return Step(_once_more(m, event, limits), (), (Action("relaunch", {}),))
    return Step(m)


INPUTS = (
    "phase_seen",
    "progress",
    "gate_passed",
    "gate_failed",
    "rank_lost",
    "health_good",
    "health_bad",
    "stuck",
    "generating",
    "exited",
    "stop_asked",
    "drained",
    "tree_gone",
    "tick",
)

# The whole table: for each state, what each event does. A test walks every cell.
TABLE: dict[str, dict[str, Handler]] = {
    STARTING: {
        "phase_seen": _phase_seen,
        "progress": _progress,
        "gate_passed": _gate_passed,
        "gate_failed": _failed,
        "rank_lost": _failed,
        "health_good": _ignore,
        "health_bad": _ignore,  # an engine that loads does not listen yet
        "stuck": _ignore,
        "generating": _ignore,
        "exited": _exited,
        "stop_asked": _stop_asked,
        "drained": _ignore,
        "tree_gone": _ignore,  # `exited` comes first, always
        "tick": _tick_starting,
    },
    READY: {
        "phase_seen": _ignore,
        "progress": _ignore,
        "gate_passed": _ignore,
        "gate_failed": _ignore,
        "rank_lost": _failed,
        "health_good": _health_good,
        "health_bad": _health_bad,
        "stuck": _stuck,
        "generating": _generating,
        "exited": _exited,
        "stop_asked": _stop_asked,
        "drained": _ignore,
        "tree_gone": _ignore,
        "tick": _ignore,
    },
    UNHEALTHY: {
        "phase_seen": _ignore,
        "progress": _ignore,
        "gate_passed": _ignore,
        "gate_failed": _ignore,
        "rank_lost": _failed,
        "health_good": _health_good,
        "health_bad": _health_bad,
        "stuck": _stuck,
        "generating": _generating,
        "exited": _exited,
        "stop_asked": _stop_asked,
        "drained": _ignore,
        "tree_gone": _ignore,
        "tick": _ignore,
    },
    STOPPING: {
        "phase_seen": _ignore,
        "progress": _ignore,
        "gate_passed": _ignore,
        "gate_failed": _ignore,
        "rank_lost": _ignore,
        "health_good": _ignore,
        "health_bad": _ignore,
        "stuck": _ignore,
        "generating": _ignore,
        "exited": _exited_while_ending,
        "stop_asked": _stop_asked_again,
        "drained": _drained,
        "tree_gone": _tree_gone_stopping,
        "tick": _tick_ending,
    },
    STOPPED: dict.fromkeys(INPUTS, _ignore),
    FAILED: {
        "phase_seen": _ignore,
        "progress": _ignore,
        "gate_passed": _ignore,
        "gate_failed": _ignore,
        "rank_lost": _ignore,
        "health_good": _ignore,
        "health_bad": _ignore,
        "stuck": _ignore,
        "generating": _ignore,
        "exited": _exited_while_ending,
        "stop_asked": _stop_asked_after_failure,
        "drained": _ignore,
        "tree_gone": _tree_gone_failed,
        "tick": _tick_failed,
    },
}

assert set(TABLE) == set(STATES)


def step(machine: Machine, event: Input, limits: Limits) -> Step:
    """What `event` does to `machine`: the new machine, what to journal, and then what to do."""
    return TABLE[machine.state][event.kind](machine, event, limits)


def next_deadline(m: Machine, limits: Limits) -> float | None:
    """Monotonic seconds at which a `tick` can change something; None when only events can."""
    if m.state == STARTING:
        return min(m.started + limits.limit_s, m.progress_at + limits.stall_s)
    if m.ending == "drain":
        return m.ending_since + limits.drain_s
    if m.ending == "term":
        return min(m.ending_since + _patience(m, limits), m.signalled_at + _repeat_s(m))
    if m.ending == "kill":
        return min(m.ending_since + limits.kill_s, m.signalled_at + TERM_REPEAT_S)
    return m.retry_at
