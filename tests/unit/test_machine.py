"""The lifecycle table, walked whole, and the stories that people see in it."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.lifecycle.machine import (
    INPUTS,
    TABLE,
    Input,
    Limits,
    Machine,
    Step,
    next_deadline,
    resume,
    start,
    step,
)
from deploy.lifecycle.restart import Failure, RestartPolicy
from deploy.lifecycle.states import FAILED, PHASES, READY, STARTING, STATES, STOPPED, STOPPING, UNHEALTHY, is_later

NEVER = RestartPolicy("never", 3, 3600.0, 10.0)
ON_FAILURE = RestartPolicy("on-failure", 3, 3600.0, 10.0)
LIMITS = Limits(
    stall_s=600.0, limit_s=3600.0, health_failures=3, drain_s=30.0, term_s=60.0, kill_s=30.0, restart=ON_FAILURE
)
WITHOUT_RESTART = LIMITS._replace(restart=NEVER)

NOW = 1000.0
WALL = 1_800_000_000.0
BROKEN = {"cause": "engine-died", "summary": "it died", "evidence": [], "fix": [], "retryable": True}
DOOMED = {**BROKEN, "cause": "bad-arguments", "retryable": False}

# What the supervisor hands over with each event.
DATA: dict[str, list[dict[str, Any]]] = {
    "phase_seen": [{"phase": phase} for phase in PHASES],
    "progress": [{}],
    "gate_passed": [{"url": "http://127.0.0.1:8000", "model": "m"}],
    "gate_failed": [{"diagnosis": BROKEN}, {"diagnosis": DOOMED}],
    "rank_lost": [{"diagnosis": BROKEN}],
    "health_good": [{}],
    "health_bad": [{"why": "HTTP 503"}],
    "stuck": [{"why": "2 request(s) run and no counter of the engine moves"}],
    "generating": [{}],
    "exited": [
        {"exit_code": 0, "signal": None, "diagnosis": BROKEN},
        {"exit_code": 1, "signal": None, "diagnosis": BROKEN},
        {"exit_code": 2, "signal": None, "diagnosis": DOOMED},
        {"exit_code": None, "signal": "SIGKILL", "diagnosis": BROKEN},
        {"exit_code": None, "signal": None, "diagnosis": BROKEN},
    ],
    "stop_asked": [{"force": False}, {"force": True}, {"force": False, "restart": True}],
    "drained": [{}, {"why": "the engine does not answer"}],
    "tree_gone": [{"seconds": 0.5}, {"seconds": 30.5, "memory_held": ["GPU 0: pid 7 60000 MiB"]}],
    "tick": [{}, {"survivors": ["pid 7 state D VLLM::Worker_TP0"]}],
}


def at(m: Machine, kind: str, now: float, data: dict[str, Any] | None = None, limits: Limits = LIMITS) -> Step:
    """One event at `now`; the wall clock runs beside the other one."""
    return step(m, Input(kind, now, WALL + now, DATA[kind][0] if data is None else data), limits)


def story(m: Machine, *events: tuple[str, float] | tuple[str, float, dict[str, Any]], limits: Limits = LIMITS) -> Step:
    """Several events; the last one's outcome."""
    outcome = Step(m)
    for kind, now, *rest in events:
        outcome = at(outcome.machine, kind, now, rest[0] if rest else None, limits)
    return outcome


def kinds(outcome: Step) -> list[str]:
    return [record.kind for record in outcome.records]


def actions(outcome: Step) -> list[str]:
    return [
        f"{action.data['signal']} {action.data['scope']}" if action.kind == "signal" else action.kind
        for action in outcome.actions
    ]


def ready(limits: Limits = LIMITS) -> Machine:
    return story(start(NOW), ("phase_seen", NOW + 1), ("gate_passed", NOW + 50), limits=limits).machine


def unhealthy() -> Machine:
    return story(ready(), *[("health_bad", NOW + 60 + second) for second in range(3)]).machine


def stopping() -> Machine:
    return at(start(NOW), "stop_asked", NOW + 5).machine


def failed() -> Machine:
    return at(start(NOW), "exited", NOW + 5).machine


def backing_off() -> Machine:
    return at(failed(), "tree_gone", NOW + 6).machine


# Every way in which a launch can stand in a state.
STANDINGS: dict[str, list[Machine]] = {
    STARTING: [
        start(NOW),
        *[replace(start(NOW), phase=phase) for phase in PHASES],
        resume(STARTING, None, NOW),
        resume(STARTING, "weights", NOW),
        resume(STARTING, "a phase of a later version", NOW),
    ],
    READY: [ready(), resume(READY, None, NOW), replace(ready(), bad_health=2)],
    UNHEALTHY: [
        unhealthy(),
        resume(UNHEALTHY, None, NOW),
        replace(unhealthy(), bad_health=100),
        replace(unhealthy(), stuck=True, bad_health=0),
    ],
    STOPPING: [
        stopping(),
        at(ready(), "stop_asked", NOW + 70).machine,
        at(ready(), "stop_asked", NOW + 70, {"force": False, "restart": True}).machine,
        replace(stopping(), ending="kill", ending_since=NOW + 65, leader_gone=True),
        resume(STOPPING, None, NOW),
    ],
    STOPPED: [at(stopping(), "tree_gone", NOW + 9).machine],
    FAILED: [
        failed(),
        backing_off(),
        at(start(NOW), "gate_failed", NOW + 5, {"diagnosis": DOOMED}).machine,
        replace(failed(), ending="kill"),
        at(failed(), "stop_asked", NOW + 6).machine,
        at(failed(), "stop_asked", NOW + 6, {"force": False, "restart": True}).machine,
        resume(FAILED, None, NOW, diagnosis=BROKEN),
        resume(FAILED, None, NOW),
        replace(failed(), ending="done"),
    ],
}


def cells() -> Iterator[Any]:
    for state, kind in itertools.product(STATES, INPUTS):
        for position, (m, data) in enumerate(itertools.product(STANDINGS[state], DATA[kind])):
            for limits in (LIMITS, WITHOUT_RESTART):
                named = f"{state}-{kind}-{position}-{limits.restart.policy}"
                yield pytest.param(m, kind, data, limits, id=named)


def test_the_table_has_a_handler_for_every_event_in_every_state() -> None:
    assert {state: set(row) for state, row in TABLE.items()} == {state: set(INPUTS) for state in STATES}
    assert set(DATA) == set(INPUTS)
    assert {m.state for standings in STANDINGS.values() for m in standings} == set(STATES)


@pytest.mark.parametrize(("m", "kind", "data", "limits"), list(cells()))
def test_every_cell_of_the_table_is_sound(m: Machine, kind: str, data: dict[str, Any], limits: Limits) -> None:
    for later in (0.0, 1.0, 5000.0):
        outcome = at(m, kind, NOW + 100 + later, data, limits)
        after = outcome.machine
        assert after.state in STATES
        assert (after.phase in PHASES) if after.state == STARTING and m.phase else True
        assert all(action.kind in ("signal", "drain", "relaunch", "finish") for action in outcome.actions)
        # what changes the state is told, and told with the new state, before anything is done about it
        if after.state != m.state and "relaunch" not in actions(outcome):
            told = [record.data["state"] for record in outcome.records if "state" in record.data]
            assert told[-1] == after.state
        # a record is a line of JSON, and says nothing about itself that the journal says
        for record in outcome.records:
            assert not {"v", "at", "kind"} & set(record.data)
            json.dumps(record.data, allow_nan=False)
        # a failed launch says why
        if after.state == FAILED and m.state != FAILED:
            assert any(record.data.get("diagnosis") for record in outcome.records)
        if "finish" in actions(outcome):
            assert after.ending == "done"
            assert after.retry_at is None
            assert after.state in (STOPPED, FAILED)
            assert outcome.actions[-1].kind == "finish"
        if "relaunch" in actions(outcome):
            assert after == start(NOW + 100 + later, restarts=after.restarts, failures=after.failures)
            assert kind in ("tree_gone", "tick", "stop_asked")


@pytest.mark.parametrize("kind", INPUTS)
def test_a_stopped_deployment_stays_stopped_whatever_comes(kind: str) -> None:
    for m, data in itertools.product(STANDINGS[STOPPED], DATA[kind]):
        assert at(m, kind, NOW + 99, data) == Step(m)


@pytest.mark.parametrize(
    "m", [m for state in STATES if state != STOPPED for m in STANDINGS[state]], ids=lambda m: f"{m.state}-{m.ending}"
)
@pytest.mark.parametrize("force", [False, True])
def test_a_stop_leads_to_stopped_as_soon_as_nothing_is_left(m: Machine, force: bool) -> None:
    asked = at(m, "stop_asked", NOW + 100, {"force": force})
    assert asked.machine.stop_wanted
    gone = asked if "finish" in actions(asked) else at(asked.machine, "tree_gone", NOW + 101)
    assert gone.machine.state == STOPPED
    assert actions(gone) == ["finish"]
    assert "stopped" in kinds(gone)


@pytest.mark.parametrize("m", [*STANDINGS[STARTING], *STANDINGS[READY], *STANDINGS[UNHEALTHY]])
@pytest.mark.parametrize("data", DATA["exited"])
def test_an_exit_that_nobody_asked_for_is_a_failure_whatever_its_code(m: Machine, data: dict[str, Any]) -> None:
    outcome = at(m, "exited", NOW + 100, data)
    assert outcome.machine.state == FAILED
    assert outcome.machine.leader_gone
    (record,) = outcome.records
    assert record.kind == "exited"
    assert record.data["asked"] is False
    assert record.data["exit_code"] == data["exit_code"]
    assert record.data["diagnosis"] == data["diagnosis"]
    assert actions(outcome) == ["SIGTERM tree"], "the ranks that it left must not live on"


@pytest.mark.parametrize("event", ["exited", "gate_failed", "rank_lost"])
def test_with_policy_never_a_failure_is_the_end(event: str) -> None:
    outcome = story(start(NOW), (event, NOW + 5), ("tree_gone", NOW + 6), limits=WITHOUT_RESTART)
    assert kinds(outcome) == ["tree-gone", "gave-up"]
    assert actions(outcome) == ["finish"]
    assert outcome.machine.state == FAILED


# ---------------------------------------------------------------- stories


def test_a_start_is_told_phase_by_phase_with_the_seconds_of_each() -> None:
    m = start(NOW)
    now = NOW
    for before, phase in itertools.pairwise(PHASES):
        now += 10
        outcome = at(m, "phase_seen", now, {"phase": phase})
        (record,) = outcome.records
        assert record.data == {"state": STARTING, "phase": phase, "after": before, "seconds": 10.0}
        m = outcome.machine
    outcome = at(m, "gate_passed", now + 4, {"url": "u", "model": "m"})
    (record,) = outcome.records
    assert record.kind == "ready"
    assert record.data["seconds"] == 4.0
    assert record.data["total_seconds"] == 10.0 * (len(PHASES) - 1) + 4
    assert outcome.machine.state == READY
    assert outcome.machine.phase is None


@pytest.mark.parametrize(("seen", "phase"), list(itertools.product(PHASES, PHASES)))
def test_phases_never_go_back(seen: str, phase: str) -> None:
    m = replace(start(NOW), phase=seen)
    outcome = at(m, "phase_seen", NOW + 7, {"phase": phase})
    if is_later(phase, seen):
        assert outcome.machine.phase == phase
    else:
        assert outcome.machine.phase == seen
        assert outcome.records == ()
    assert outcome.machine.progress_at == NOW + 7, "a line about the load is a sign of life either way"


def test_a_load_without_progress_fails_as_stalled() -> None:
    m = story(start(NOW), ("phase_seen", NOW + 10, {"phase": "weights"})).machine
    assert next_deadline(m, LIMITS) == NOW + 10 + LIMITS.stall_s
    assert at(m, "tick", NOW + 609.9) == Step(m)
    outcome = at(m, "tick", NOW + 610)
    assert outcome.machine.state == FAILED
    assert outcome.records[0].data["diagnosis"]["cause"] == "stalled"
    assert "weights" in outcome.records[0].data["diagnosis"]["summary"]
    assert "load.stall_s" in outcome.records[0].data["diagnosis"]["fix"][0]
    assert actions(outcome) == ["SIGTERM tree"]


def test_progress_puts_the_stall_off_but_not_the_limit() -> None:
    m = start(NOW)
    for minutes in range(1, 60):
        outcome = story(m, ("progress", NOW + minutes * 60), ("tick", NOW + minutes * 60 + 30))
        m = outcome.machine
        assert m.state == STARTING
    outcome = at(m, "tick", NOW + LIMITS.limit_s)
    assert outcome.machine.state == FAILED
    assert "load.limit_s" in outcome.records[0].data["diagnosis"]["fix"][0]


def test_a_served_engine_is_drained_then_terminated_then_killed_then_given_up() -> None:
    m = ready()
    asked = at(m, "stop_asked", 2000.0)
    assert asked.machine.state == STOPPING
    assert actions(asked) == ["drain"]
    assert asked.records[0].data["drain"] is True
    assert at(asked.machine, "tick", 2029.9).actions == ()
    over = at(asked.machine, "tick", 2030.0)
    assert kinds(over) == ["drain-over"]
    assert actions(over) == ["SIGTERM leader"]
    killed = at(over.machine, "tick", 2090.0)
    assert actions(killed) == ["SIGKILL tree"]
    again = at(killed.machine, "tick", 2092.0)
    assert actions(again) == ["SIGKILL tree"]
    survivors = ["pid 7 state D VLLM::Worker_TP0"]
    given_up = at(again.machine, "tick", 2120.0, {"survivors": survivors})
    assert given_up.machine.state == FAILED
    assert kinds(given_up) == ["teardown-incomplete"]
    assert given_up.records[0].data["survivors"] == survivors
    assert given_up.records[0].data["diagnosis"]["evidence"][0]["text"] == survivors[0]
    assert actions(given_up) == ["finish"]


def test_memory_that_stays_is_an_incomplete_teardown_and_nothing_is_started_on_it() -> None:
    held = {"seconds": 30.0, "memory_held": ["GPU 3: pid 7 60000 MiB"]}
    for m in (stopping(), failed()):  # a failed one would be started again by its policy
        outcome = at(m, "tree_gone", 2000.0, held)
        assert outcome.machine.state == FAILED
        assert kinds(outcome) == ["teardown-incomplete"]
        evidence = [item["text"] for item in outcome.records[0].data["diagnosis"]["evidence"]]
        earlier = ["before that it had failed: engine-died: it died"] if m.diagnosis else []
        assert evidence == ["GPU 3: pid 7 60000 MiB", *earlier]
        assert actions(outcome) == ["finish"]


def test_a_drain_ends_as_soon_as_nothing_runs_any_more() -> None:
    asked = at(ready(), "stop_asked", 2000.0)
    drained = at(asked.machine, "drained", 2003.0)
    assert kinds(drained) == ["drained"]
    assert drained.records[0].data["seconds"] == 3.0
    assert actions(drained) == ["SIGTERM leader"]
    assert at(drained.machine, "drained", 2004.0) == Step(drained.machine), "a second answer changes nothing"


def test_an_unhealthy_engine_may_still_answer_requests_and_is_drained_too() -> None:
    assert actions(at(unhealthy(), "stop_asked", 2000.0)) == ["drain"]


@pytest.mark.parametrize(("m", "scope"), [(start(NOW), "tree"), (ready(LIMITS._replace(drain_s=0.0)), "leader")])
def test_nothing_is_drained_while_loading_or_when_the_profile_says_so(m: Machine, scope: str) -> None:
    outcome = at(m, "stop_asked", 2000.0, limits=LIMITS._replace(drain_s=0.0))
    assert actions(outcome) == [f"SIGTERM {scope}"]
    assert outcome.records[0].data["drain"] is False


def signals_until_the_end(m: Machine) -> list[tuple[float, str]]:
    """Ticks exactly when asked for; what is sent, and when, from the stop on."""
    sent = []
    while True:
        deadline = next_deadline(m, LIMITS)
        assert deadline is not None
        outcome = at(m, "tick", deadline, {"survivors": ["pid 7"]})
        sent += [(deadline - 2000.0, action) for action in actions(outcome)]
        m = outcome.machine
        if m.ending == "done":
            return sent


def test_a_loading_engine_swallows_the_first_signal_so_it_goes_to_the_whole_tree_and_is_repeated() -> None:
    asked = at(start(NOW), "stop_asked", 2000.0)
    assert actions(asked) == ["SIGTERM tree"]
    sent = signals_until_the_end(asked.machine)
    assert sent[:3] == [(2.0, "SIGTERM tree"), (4.0, "SIGTERM tree"), (6.0, "SIGTERM tree")]
    assert (60.0, "SIGKILL tree") in sent
    assert sent[-1] == (90.0, "finish")


def test_a_served_engine_is_left_to_finish_by_itself_for_most_of_its_time() -> None:
    asked = at(ready(), "stop_asked", 2000.0, {"force": True})
    assert actions(asked) == ["SIGTERM leader"]
    sent = signals_until_the_end(asked.machine)
    terms = [(second, action) for second, action in sent if "SIGTERM" in action]
    assert all(action == "SIGTERM leader" for second, action in terms if second < 40)
    assert all(action == "SIGTERM tree" for second, action in terms if second >= 40)
    assert [second for second, _ in terms] == [5.0 * n for n in range(1, 12)]


def test_ranks_that_a_crash_left_behind_are_killed_after_ten_seconds() -> None:
    outcome = at(ready(), "exited", 2000.0)
    sent = signals_until_the_end(outcome.machine)
    assert (10.0, "SIGKILL tree") in sent


def test_force_cuts_the_drain_short_and_once_more_kills_at_once() -> None:
    asked = at(ready(), "stop_asked", 2000.0)
    cut = at(asked.machine, "stop_asked", 2001.0, {"force": True})
    assert actions(cut) == ["SIGTERM leader"]
    assert kinds(cut) == ["stop-asked"]
    killed = at(cut.machine, "stop_asked", 2002.0, {"force": True})
    assert actions(killed) == ["SIGKILL tree"]
    assert at(killed.machine, "stop_asked", 2003.0, {"force": True}).actions == ()
    assert at(asked.machine, "stop_asked", 2001.0).actions == (), "a second stop without force waits on"


def test_force_kills_what_a_failure_left_at_once() -> None:
    outcome = at(failed(), "stop_asked", NOW + 7, {"force": True})
    assert actions(outcome) == ["SIGKILL tree"]


def test_an_engine_that_leaves_during_its_drain_takes_the_rest_with_it() -> None:
    outcome = story(ready(), ("stop_asked", 2000.0), ("exited", 2001.0, {"exit_code": 0, "signal": None}))
    assert outcome.records[0].data["asked"] is False, "nobody had sent it a signal yet"
    assert actions(outcome) == ["SIGTERM tree"]
    assert outcome.machine.state == STOPPING
    assert story(outcome.machine, ("tree_gone", 2002.0)).machine.state == STOPPED


def test_an_exit_after_our_signal_counts_as_asked() -> None:
    outcome = story(stopping(), ("exited", NOW + 6, {"exit_code": 130, "signal": None}))
    assert outcome.records[0].data["asked"] is True
    assert outcome.machine.state == STOPPING


def test_a_late_exit_after_everything_is_gone_signals_nobody() -> None:
    outcome = at(backing_off(), "exited", NOW + 7)
    assert outcome.actions == ()
    assert outcome.machine.retry_at == backing_off().retry_at


@pytest.mark.parametrize("m", [ready(), start(NOW), unhealthy()])
def test_a_restart_stops_first_and_then_starts_with_a_fresh_budget(m: Machine) -> None:
    m = replace(m, restarts=(WALL, WALL + 1), failures=(Failure(WALL, BROKEN),))
    asked = at(m, "stop_asked", 2000.0, {"force": False, "restart": True})
    gone = at(asked.machine, "tree_gone", 2010.0)
    assert kinds(gone) == ["stopped"]
    assert actions(gone) == ["relaunch"]
    assert gone.machine == start(2010.0)


def test_the_last_word_says_whether_a_start_follows_a_stop() -> None:
    restarting = at(ready(), "stop_asked", 2000.0, {"force": False, "restart": True}).machine
    outcome = story(restarting, ("stop_asked", 2001.0), ("tree_gone", 2002.0))
    assert actions(outcome) == ["finish"]
    restart = {"force": False, "restart": True}
    outcome = story(ready(), ("stop_asked", 2000.0), ("stop_asked", 2001.0, restart), ("tree_gone", 2002.0))
    assert actions(outcome) == ["relaunch"]


def test_a_restart_of_a_failed_launch_starts_at_once() -> None:
    outcome = at(backing_off(), "stop_asked", NOW + 8, {"force": False, "restart": True})
    assert actions(outcome) == ["relaunch"]
    restart = {"force": False, "restart": True}
    outcome = story(failed(), ("stop_asked", NOW + 6, restart), ("tree_gone", NOW + 7))
    assert actions(outcome) == ["relaunch"]


def test_a_failure_is_tried_again_with_growing_pauses_until_the_budget_is_used_up() -> None:
    m = start(NOW)
    now = NOW
    pauses = []
    while True:
        outcome = story(m, ("exited", now + 1), ("tree_gone", now + 2))
        if "finish" in actions(outcome):
            break
        assert kinds(outcome) == ["tree-gone", "retry"]
        pauses.append(outcome.records[-1].data["in_s"])
        now = next_deadline(outcome.machine, LIMITS) or 0.0
        again = at(outcome.machine, "tick", now)
        assert actions(again) == ["relaunch"]
        m = again.machine
    assert pauses == [10.0, 20.0, 40.0]
    assert len(m.restarts) == 3
    assert kinds(outcome) == ["tree-gone", "gave-up"]


def test_after_the_last_attempt_the_first_cause_is_told_not_the_last_symptom() -> None:
    first = {**BROKEN, "cause": "nccl-failed", "summary": "rank 3 lost", "fix": ["look at GPU 3"]}
    m, now = start(NOW), NOW
    for diagnosis in (first, BROKEN, BROKEN, BROKEN):
        outcome = story(m, ("exited", now + 1, {"diagnosis": diagnosis}), ("tree_gone", now + 2))
        if "finish" in actions(outcome):
            break
        now = next_deadline(outcome.machine, LIMITS) or 0.0
        m = at(outcome.machine, "tick", now).machine
    assert kinds(outcome) == ["tree-gone", "gave-up"]
    told = outcome.records[-1].data["diagnosis"]
    assert told == outcome.machine.diagnosis
    assert told["cause"] == "nccl-failed"
    assert BROKEN["summary"] in told["summary"]
    assert told["fix"][0] == "look at GPU 3"


def test_a_wall_clock_that_goes_back_does_not_refill_the_budget() -> None:
    m = start(NOW, restarts=(WALL, WALL + 1, WALL + 2))
    m = at(m, "exited", NOW + 1).machine
    outcome = step(m, Input("tree_gone", NOW + 2, WALL - 1e6, {}), LIMITS)
    assert kinds(outcome) == ["tree-gone", "gave-up"]


def test_a_configuration_that_must_fail_again_is_not_tried_again() -> None:
    outcome = story(start(NOW), ("exited", NOW + 1, DATA["exited"][2]), ("tree_gone", NOW + 2))
    assert kinds(outcome) == ["tree-gone", "gave-up"]


def test_a_stop_during_the_pause_before_a_restart_ends_it_there() -> None:
    m = backing_off()
    assert next_deadline(m, LIMITS) == NOW + 6 + 10
    outcome = at(m, "stop_asked", NOW + 8)
    assert kinds(outcome) == ["stop-asked", "stopped"]
    assert actions(outcome) == ["finish"]
    assert next_deadline(outcome.machine, LIMITS) is None


def test_a_stop_while_a_failed_launch_is_still_ending_prevents_the_restart() -> None:
    outcome = story(failed(), ("stop_asked", NOW + 6), ("tree_gone", NOW + 7))
    assert outcome.machine.state == STOPPED
    assert actions(outcome) == ["finish"]


def test_health_must_fail_several_times_in_a_row_to_be_unhealthy() -> None:
    m = story(ready(), ("health_bad", 2000.0), ("health_bad", 2002.0), ("health_good", 2004.0)).machine
    assert m.state == READY
    outcome = story(m, ("health_bad", 2006.0), ("health_bad", 2008.0), ("health_bad", 2010.0))
    assert outcome.machine.state == UNHEALTHY
    assert outcome.records[0].data["failures"] == 3
    assert outcome.records[0].data["why"] == "HTTP 503"
    back = at(outcome.machine, "health_good", 2012.0)
    assert kinds(back) == ["healthy"]
    assert back.machine.state == READY
    assert back.machine.bad_health == 0


def test_an_engine_that_answers_and_generates_nothing_is_unhealthy_until_it_generates() -> None:
    outcome = at(ready(), "stuck", 2000.0)
    assert outcome.machine.state == UNHEALTHY
    assert "no counter" in outcome.records[0].data["why"]
    still = at(outcome.machine, "health_good", 2001.0)
    assert still.machine.state == UNHEALTHY, "its /health was good all the time"
    back = at(still.machine, "generating", 2002.0)
    assert kinds(back) == ["healthy"]
    assert back.machine.state == READY
    again = at(still.machine, "stuck", 2300.0)
    assert again.machine.state == FAILED
    assert again.records[0].data["diagnosis"]["cause"] == "not-generating"
    assert actions(again) == ["SIGTERM tree"]
    left = story(ready(), *[("stuck", 2000.0 + second) for second in range(50)], limits=WITHOUT_RESTART)
    assert left.machine.state == UNHEALTHY, "without a restart policy it is left to come back by itself"


def test_tokens_do_not_cure_failing_health() -> None:
    assert at(unhealthy(), "generating", 2000.0).machine.state == UNHEALTHY


def test_health_before_ready_says_nothing() -> None:
    for kind in ("health_good", "health_bad", "stuck", "generating"):
        assert at(start(NOW), kind, NOW + 1) == Step(start(NOW))


def test_an_engine_that_stays_unhealthy_is_restarted_where_the_profile_restarts() -> None:
    m = unhealthy()
    outcome = story(m, *[("health_bad", 2000.0 + second) for second in range(3)])
    assert outcome.machine.state == FAILED
    assert outcome.records[0].data["diagnosis"]["cause"] == "unhealthy"
    assert actions(outcome) == ["SIGTERM tree"]
    gone = at(outcome.machine, "tree_gone", 2005.0)
    assert kinds(gone) == ["tree-gone", "retry"]
    left = story(m, *[("health_bad", 2000.0 + second) for second in range(50)], limits=WITHOUT_RESTART)
    assert left.machine.state == UNHEALTHY, "without a restart policy it is left to come back by itself"


def test_the_last_process_that_goes_in_the_very_last_moment_is_no_survivor() -> None:
    m = at(stopping(), "stop_asked", NOW + 6, {"force": True}).machine
    assert m.ending == "kill"
    outcome = at(m, "tick", NOW + 6 + LIMITS.kill_s, {"survivors": []})
    assert outcome.machine.state == STOPPED
    assert actions(outcome) == ["finish"]


def test_an_adopted_stop_goes_on_and_an_adopted_failure_is_not_forgotten() -> None:
    assert resume(STOPPING, None, NOW).ending == "term"
    outcome = at(resume(STOPPING, None, NOW), "tree_gone", NOW + 1)
    assert outcome.machine.state == STOPPED
    m = resume(FAILED, "weights", NOW, restarts=(WALL,), diagnosis=BROKEN)
    outcome = at(m, "tree_gone", NOW + 1)
    assert outcome.records[-1].data["in_s"] == 20.0, "restarts made before the adoption count"
    for state in (STARTING, READY, UNHEALTHY):
        assert resume(state, None, NOW).ending is None


# ---------------------------------------------------------------- any order of events

SECONDS = st.sampled_from([0.0, 0.001, 0.1, 0.3, 1.0, 2.0, 5.0, 7.7, 60.0])
ANY_LIMITS = st.builds(
    Limits,
    stall_s=SECONDS,
    limit_s=SECONDS,
    health_failures=st.integers(1, 3),
    drain_s=SECONDS,
    term_s=SECONDS,
    kill_s=SECONDS,
    restart=st.builds(
        RestartPolicy, st.sampled_from(["never", "on-failure", "always"]), st.integers(0, 4), SECONDS, SECONDS
    ),
)
ANY_EVENT = st.sampled_from(INPUTS).flatmap(
    lambda kind: st.tuples(st.just(kind), st.sampled_from(DATA[kind]), st.floats(0.0, 100.0, allow_nan=False))
)


@settings(max_examples=300, deadline=None)
@given(events=st.lists(ANY_EVENT, max_size=30), limits=ANY_LIMITS, begin=st.floats(0.0, 1e6, allow_nan=False))
def test_no_order_of_events_leaves_an_ending_without_a_deadline(
    events: list[tuple[str, dict[str, Any], float]], limits: Limits, begin: float
) -> None:
    """After any events, whoever only ticks at the deadlines comes to an end once a stop is asked; nothing hangs."""
    m, now = start(begin), begin
    finished = False
    for kind, data, later in events:
        now += later
        outcome = at(m, kind, now, data, limits)
        m = outcome.machine
        if "finish" in actions(outcome):
            finished = True
            break
        if m.ending not in (None, "done"):
            assert next_deadline(m, limits) is not None
    if finished:
        return
    outcome = at(m, "stop_asked", now, {"force": False}, limits)
    for _ in range(500):
        if "finish" in actions(outcome):
            break
        deadline = next_deadline(outcome.machine, limits)
        assert deadline is not None
        now = max(now, deadline)
        before = outcome.machine
        outcome = at(before, "tick", now, {"survivors": ["pid 7"]}, limits)
        assert outcome.machine != before, "a tick at the deadline must change something, or the loop would spin"
    else:
        pytest.fail("never finished")
    assert outcome.machine.state in (STOPPED, FAILED)


@settings(max_examples=300, deadline=None)
@given(events=st.lists(ANY_EVENT, max_size=40), limits=ANY_LIMITS)
def test_no_order_of_events_restarts_more_often_than_the_budget(
    events: list[tuple[str, dict[str, Any], float]], limits: Limits
) -> None:
    m, now = start(NOW), NOW
    asked = False
    for kind, data, later in events:
        now += later
        asked = asked or kind == "stop_asked"
        outcome = at(m, kind, now, data, limits)
        m = outcome.machine
        if not asked:
            recent = [at for at in m.restarts if WALL + now - at <= limits.restart.window_s]
            assert len(recent) <= limits.restart.attempts
        if limits.restart.policy == "never" and not asked:
            assert "relaunch" not in actions(outcome)
