"""What a journal says: hand-written journals in, the state that `ps` and `status` show out."""

import itertools
from typing import Any

import pytest

from deploy.lifecycle.events import Event, parse_line, parse_lines
from deploy.lifecycle.fold import Observed, fold, is_settled, seconds_between
from deploy.lifecycle.states import FAILED, READY, STARTING, STATES, STOPPED, STOPPING, UNHEALTHY
from deploy.store.deployments import true_state

WHY = {"cause": "engine-died", "summary": "it died", "evidence": [], "fix": [], "retryable": True}

LAUNCH = rb"""{"v":1,"at":"2026-12-01T10:00:00.000Z","kind":"launch","state":"starting","phase":"spawn",\
"launch":"20261201T100000-1","supervisor":[4100,77],"boot_id":"b","restarts":[],"url":"http://127.0.0.1:8000"}
{"v":1,"at":"2026-12-01T10:00:00.010Z","kind":"spawning","argv0":"vllm"}
{"v":1,"at":"2026-12-01T10:00:00.020Z","kind":"spawned","pid":4120,"identity":[4120,99]}
""".replace(b"\\\n", b"")

LOAD = b"""\
{"v":1,"at":"2026-12-01T10:00:00.500Z","kind":"phase","state":"starting","phase":"init","after":"spawn","seconds":0.5}
{"v":1,"at":"2026-12-01T10:00:02.000Z","kind":"members","members":[[4120,99,"vllm"],[4130,105,"VLLM::Worker_TP0"]]}
{"v":1,"at":"2026-12-01T10:00:10.500Z","kind":"phase","state":"starting","phase":"weights","after":"init","seconds":10}
{"v":1,"at":"2026-12-01T10:00:10.600Z","kind":"progress","shards_done":0,"shards_total":4,"bytes_done":0,\
"bytes_total":4000,"source":"log"}
{"v":1,"at":"2026-12-01T10:00:20.600Z","kind":"progress","shards_done":1,"shards_total":4,"bytes_done":1000,\
"bytes_total":4000,"source":"log"}
""".replace(b"\\\n", b"")

REST = b"""\
{"v":1,"at":"2026-12-01T10:01:10.500Z","kind":"phase","state":"starting","phase":"warmup","after":"weights","seconds":60}
{"v":1,"at":"2026-12-01T10:01:11.000Z","kind":"fact","kv_cache_tokens":1234}
{"v":1,"at":"2026-12-01T10:01:12.500Z","kind":"ready","state":"ready","after":"warmup","seconds":2.0,"total_seconds":72.5}
"""


def folded(*parts: bytes) -> Observed:
    return fold(parse_lines(b"".join(parts).splitlines()))


def record(kind: str, second: float, **data: Any) -> bytes:
    return Event(kind, f"2026-12-01T10:02:{second:06.3f}Z", data).to_line()


def test_a_whole_start_is_told_with_the_seconds_of_each_phase() -> None:
    observed = folded(LAUNCH, LOAD, REST)
    assert observed.state == READY
    assert observed.phase is None
    assert [(entry["phase"], entry["seconds"]) for entry in observed.phases] == [
        ("spawn", 0.5),
        ("init", 10),
        ("weights", 60),
        ("warmup", 2.0),
    ]
    assert observed.phases[0]["started_at"] == observed.started_at == "2026-12-01T10:00:00.000Z"
    assert observed.ready_at == "2026-12-01T10:01:12.500Z"
    assert observed.launch == "20261201T100000-1"
    assert observed.boot_id == "b"
    assert observed.supervisor == (4100, 77)
    assert observed.leader == (4120, 99)
    assert observed.members == {(4120, 99): "vllm", (4130, 105): "VLLM::Worker_TP0"}
    assert observed.facts == {"kv_cache_tokens": 1234}


def test_a_phase_that_still_runs_has_no_seconds_yet() -> None:
    observed = folded(LAUNCH, LOAD)
    assert observed.state == STARTING
    assert observed.phase == "weights"
    assert observed.phases[-1] == {"phase": "weights", "started_at": "2026-12-01T10:00:10.500Z", "seconds": None}


def test_without_recorded_seconds_a_phase_lasts_from_stamp_to_stamp() -> None:
    older = LOAD.replace(b',"seconds":0.5', b"").replace(b',"seconds":10', b"")
    observed = folded(LAUNCH, older)
    assert [entry["seconds"] for entry in observed.phases] == [0.5, 10.0, None]


def test_a_title_that_a_process_takes_later_replaces_the_first_one() -> None:
    observed = folded(LAUNCH, LOAD, record("members", 0, members=[[4130, 105, "VLLM::Worker_TP0_EP0"]]))
    assert observed.members[(4130, 105)] == "VLLM::Worker_TP0_EP0"


# ---------------------------------------------------------------- what a crash or a newer version leaves


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\x00\x00\x00",
        b'{"v":1,"at":"2026-12-01T10:00:10.5',
        b'10:00:10.500Z","kind":"ready","state":"ready"}',
        b"\xff\xfe",
        b"null",
        b"7",
        b"[]",
        b'"ready"',
        b"{}",
        b'{"kind":"ready"}',
        b'{"at":"2026-12-01T10:00:10.500Z"}',
        b'{"at":"x","kind":"ready"}',
        b'{"at":7,"kind":"ready"}',
        b'{"at":"2026-12-01T10:00:10","kind":"ready"}',
    ],
)
def test_a_line_that_is_no_record_is_passed_over(line: bytes) -> None:
    assert parse_line(line) is None
    whole = fold(parse_lines([*LAUNCH.splitlines(), *LOAD.splitlines(), *REST.splitlines()]))
    torn = fold(parse_lines([line, *LAUNCH.splitlines(), line, *LOAD.splitlines(), line, *REST.splitlines(), line]))
    assert torn == whole


def test_a_journal_cut_at_any_byte_is_still_a_journal() -> None:
    journal = LAUNCH + LOAD + REST
    states = set()
    for cut in range(len(journal) + 1):
        observed = folded(journal[:cut])
        states.add(observed.state)
        assert observed.state in (STARTING, READY)
    assert states == {STARTING, READY}


def test_a_journal_of_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    newer = (LAUNCH + LOAD + REST).replace(b'{"v":1,', b'{"v":9,"why":{"deep":[1,2,{"x":null}]},')
    newer += record("moved-house", 1, to="elsewhere", state="ready")
    newer += record("dreaming", 2, state="dreaming")
    observed = folded(newer)
    assert observed.state == READY, "a state that this version does not know changes nothing"
    assert [entry["seconds"] for entry in observed.phases] == [0.5, 10, 60, 2.0]


def test_an_empty_journal_is_a_launch_that_is_about_to_start() -> None:
    observed = fold([])
    assert observed.state == STARTING
    assert observed.launch == ""
    assert not is_settled(observed)


def test_lost_records_are_counted_wherever_they_are_told() -> None:
    observed = folded(LAUNCH, record("progress", 1, records_lost=7), record("fact", 2, records_lost=2, model_gib=1.5))
    assert observed.records_lost == 9
    assert observed.facts == {"model_gib": 1.5}


# ---------------------------------------------------------------- the load


def test_the_load_rate_follows_the_shards_and_does_not_jump_with_each() -> None:
    observed = folded(LAUNCH, LOAD)
    assert observed.load["bytes_per_s"] == pytest.approx(100.0)
    faster = record("progress", 0, shards_done=2, bytes_done=2000, bytes_total=4000)
    observed = folded(LAUNCH, LOAD, faster.replace(b"10:02:00", b"10:00:21"))
    assert observed.load["shards_done"] == 2
    assert 100.0 < observed.load["bytes_per_s"] < 2000.0


@pytest.mark.parametrize(
    "data",
    [
        {"shards_done": 1, "bytes_done": 1000},
        {"shards_done": 0, "bytes_done": 0, "pass": 2},
        {"shards_done": 1},
        {"shards_done": 1, "bytes_done": None},
    ],
)
def test_a_report_without_gain_keeps_the_rate(data: dict[str, Any]) -> None:
    observed = folded(LAUNCH, LOAD, record("progress", 0, **data))
    assert observed.load["bytes_per_s"] == pytest.approx(100.0)


def test_two_reports_of_one_moment_do_not_divide_by_zero() -> None:
    once = record("progress", 1, bytes_done=10)
    observed = folded(LAUNCH, once, once.replace(b":10", b":20"))
    assert "bytes_per_s" not in observed.load


# ---------------------------------------------------------------- ends


def test_a_death_while_loading_keeps_the_phase_it_died_in() -> None:
    died = record("exited", 0, state="failed", phase="weights", exit_code=0, signal=None, asked=False, diagnosis=WHY)
    observed = folded(LAUNCH, LOAD, died)
    assert observed.state == FAILED
    assert observed.phase == "weights"
    assert observed.phases[-1]["seconds"] == pytest.approx(109.5)
    assert observed.exit == {"exit_code": 0, "signal": None, "asked": False}
    assert observed.diagnosis == WHY
    assert observed.ended_at == "2026-12-01T10:02:00.000Z"


def test_an_exit_that_was_asked_for_is_no_failure() -> None:
    observed = folded(
        LAUNCH,
        LOAD,
        REST,
        record("stop-asked", 0, state="stopping", force=False),
        record("exited", 1, asked=True, exit_code=0, signal=None),
        record("stopped", 2, state="stopped", seconds=2.0),
    )
    assert observed.state == STOPPED
    assert observed.exit == {"exit_code": 0, "signal": None, "asked": True}
    assert observed.diagnosis is None
    assert observed.over


def test_a_stop_while_loading_ends_the_phase() -> None:
    observed = folded(LAUNCH, LOAD, record("stop-asked", 0, state="stopping", force=False))
    assert observed.phase is None
    assert observed.phases[-1]["seconds"] == pytest.approx(109.5)


def test_unhealthy_and_healthy_again() -> None:
    sick = record("unhealthy", 0, state="unhealthy", failures=3, why="HTTP 503")
    assert folded(LAUNCH, LOAD, REST, sick).state == UNHEALTHY
    observed = folded(LAUNCH, LOAD, REST, sick, record("healthy", 4, state="ready"))
    assert observed.state == READY
    assert observed.ready_at == "2026-12-01T10:01:12.500Z"


FAILURE = record("failed", 0, state="failed", phase="weights", diagnosis=WHY)
RETRY = record("retry", 1, state="failed", in_s=10.0, reason="restart 1 of 3")
GAVE_UP = record("gave-up", 1, state="failed", reason="restart.policy is never")
INCOMPLETE = record("teardown-incomplete", 1, state="failed", diagnosis={**WHY, "cause": "teardown-incomplete"})
STOP = record("stop-asked", 2, state="stopping", force=False)


@pytest.mark.parametrize(
    ("parts", "settled"),
    [
        ([LAUNCH], False),
        ([LAUNCH, LOAD], False),
        ([LAUNCH, LOAD, REST], True),
        ([LAUNCH, LOAD, REST, record("unhealthy", 0, state="unhealthy")], False),
        ([LAUNCH, LOAD, REST, STOP], False),
        ([LAUNCH, LOAD, REST, STOP, record("stopped", 3, state="stopped")], True),
        ([LAUNCH, LOAD, FAILURE], False),
        ([LAUNCH, LOAD, FAILURE, RETRY], False),
        ([LAUNCH, LOAD, FAILURE, GAVE_UP], True),
        ([LAUNCH, LOAD, FAILURE, INCOMPLETE], True),
        ([LAUNCH, LOAD, FAILURE, INCOMPLETE, record("adopted", 3, supervisor=[5, 6])], False),
    ],
)
def test_what_is_settled_and_what_is_still_under_way(parts: list[bytes], settled: bool) -> None:
    assert is_settled(folded(*parts)) is settled


def test_a_retry_is_shown_until_a_stop_calls_it_off() -> None:
    observed = folded(LAUNCH, LOAD, FAILURE, RETRY)
    assert observed.retry == {"at": "2026-12-01T10:02:01.000Z", "in_s": 10.0, "reason": "restart 1 of 3"}
    assert folded(LAUNCH, LOAD, FAILURE, RETRY, record("stop-asked", 2)).retry is None


def test_whoever_adopted_is_the_supervisor() -> None:
    assert folded(LAUNCH, record("adopted", 1, supervisor=[5, 6], pid=None)).supervisor == (5, 6)


def test_seconds_between_stamps() -> None:
    assert seconds_between("2026-12-01T23:59:59.900Z", "2026-12-02T00:00:00.150Z") == pytest.approx(0.25)


# ---------------------------------------------------------------- the journal and the facts


@pytest.mark.parametrize(
    ("state", "supervised", "alive", "over", "same_boot"),
    list(itertools.product(STATES, *[[False, True]] * 4)),
)
def test_what_is_shown_when_the_journal_may_be_behind(
    state: str, supervised: bool, alive: bool, over: bool, same_boot: bool
) -> None:
    observed = Observed(state=state, diagnosis=WHY if state == FAILED else None, over=over)
    shown, diagnosis = true_state(observed, supervised=supervised, alive=alive, same_boot=same_boot)
    if supervised or alive or over:
        assert (shown, diagnosis) == (state, observed.diagnosis)
    elif state in (STOPPING, STOPPED):
        assert shown == STOPPED
        assert diagnosis is None
    elif state == FAILED:
        assert (shown, diagnosis) == (FAILED, WHY)
    else:
        assert shown == FAILED
        assert diagnosis is not None
        assert diagnosis["cause"] == ("engine-died" if same_boot else "machine-restarted")
        assert set(diagnosis) == {"cause", "summary", "evidence", "fix", "retryable"}
