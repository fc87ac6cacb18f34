"""The supervisor may die: the engine serves on, the next command finds it, and `down` still leaves nothing."""

import json
import os
import shutil
import signal
from typing import Any

import pytest

from tests.box import Box, alive, wait_until


def _kill_supervisor(box: Box, name: str = "tiny") -> int:
    pid = box.supervisor(name)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid), "the supervisor to be gone")
    return pid


def _edit(box: Box, change: Any) -> None:
    """Rewrite the journal of a launch that nobody supervises: `change` gives new data of a record, or None."""
    path = box.launch() / "events.jsonl"
    records = [change(record) for record in box.journal()]
    path.write_text("".join(json.dumps(record) + "\n" for record in records if record is not None))


def test_supervisor_killed_when_ready(box: Box) -> None:
    before = box.up()
    old = _kill_supervisor(box)
    assert box.chat("What is 2 + 2?")[0] == 200
    told = box.ok("status", "tiny", "--json")
    assert "a new one has adopted the engine" in told.stderr
    after = told.json
    assert (after["state"], after["pid"]) == ("ready", before["pid"])
    assert after["supervisor_pid"] not in (None, old)
    assert after["phases"] == before["phases"]
    again = box.ok("status", "tiny")
    assert "adopted" not in again.stderr
    # what it adopted it also watches
    os.kill(box.api(), signal.SIGKILL)
    box.await_state("failed")
    box.await_no_engine()
    box.down("tiny")


@pytest.mark.parametrize("verb", ["ps", "up", "wait", "logs", "down"])
def test_any_command_adopts(box: Box, verb: str) -> None:
    box.up("tiny", "shm=1;device=cuda")
    assert box.note_shm()
    _kill_supervisor(box)
    result = box.ok(verb, *([] if verb == "ps" else ["tiny"]))
    assert "adopted" in result.stderr
    assert len(box.launches()) == 1
    if verb != "down":
        assert box.status()["state"] == "ready"
        box.down("tiny")
    assert box.status()["exit"]["exit_code"] is None  # of a process that was not ours to wait for


@pytest.mark.parametrize(
    ("phase", "knob"),
    [
        ("spawn", "import_s=2"),
        ("init", "init_s=1.5"),
        ("weights", "load_s=2"),
        ("compile", "compile_s=2"),
        ("canary", "prefill_s=0.7"),
    ],
)
def test_supervisor_killed_while_loading(box: Box, phase: str, knob: str) -> None:
    box.start("tiny", knob)
    box.await_phase(phase)
    _kill_supervisor(box)
    result = box.run("wait", "tiny", "--json")
    assert result.rc == 0, result
    assert result.json["state"] == "ready"
    assert len(box.launches()) == 1
    assert box.events("adopted")
    box.down("tiny")


def test_supervisor_killed_while_up_follows(box: Box) -> None:
    box.profile("tiny", "load_s=3")
    with box.running("up", "tiny") as cli:
        box.await_phase("weights")
        _kill_supervisor(box)
        _, told = cli.communicate()
    assert cli.returncode == 0, told
    assert b"adopted by a new supervisor" in told
    box.down("tiny")


def test_supervisor_killed_while_stopping(box: Box) -> None:
    box.up("tiny", "ignore_term=1", {"stop.term_s": 2})
    with box.running("down", "tiny", "--force") as cli:
        box.await_event("signal")
        _kill_supervisor(box)
        _, told = cli.communicate()
    assert cli.returncode == 0, told
    assert box.status()["state"] == "stopped"
    assert not box.engine()


def test_supervisor_and_engine_both_killed(box: Box) -> None:
    box.up()
    _kill_supervisor(box)
    for process in box.engine():
        os.kill(process.pid, signal.SIGKILL)
    box.await_no_engine()
    told = box.ok("status", "tiny", "--json")
    assert "its engine too" in told.stderr
    assert told.json["state"] == "failed"
    assert told.json["diagnosis"]["cause"] == "engine-died"
    box.await_released()
    box.down("tiny")
    box.ok("up", "tiny")
    box.down("tiny")


def test_supervisor_and_api_server_killed_leaves_no_orphans(box: Box) -> None:
    box.up()
    _kill_supervisor(box)
    os.kill(box.api(), signal.SIGKILL)
    box.ok("ps")
    box.await_no_engine()
    box.await_released()
    assert box.status()["state"] == "failed"
    box.down("tiny")


def test_killed_between_spawning_and_recording(box: Box) -> None:
    """The journal ends before the engine's pid: it is found by the log that it writes."""
    box.start("tiny", "import_s=1")
    box.await_event("spawned")
    _kill_supervisor(box)
    pid = box.api()
    _edit(box, lambda record: record if record["kind"] in ("launch", "spawning") else None)
    assert box.run("wait", "tiny").rc == 0
    assert box.status()["pid"] == pid
    box.down("tiny")
    assert not box.engine()


def test_killed_before_anything_was_spawned(box: Box) -> None:
    box.up()
    _kill_supervisor(box)
    for process in box.engine():
        os.kill(process.pid, signal.SIGKILL)
    box.await_no_engine()
    (box.launch() / "engine.log").unlink()
    for folder in filter(os.path.isdir, box.noted()):  # there was none yet either
        shutil.rmtree(folder)
    _edit(box, lambda record: record if record["kind"] == "launch" else None)
    box.ok("ps")
    box.await_released()
    assert box.status()["state"] == "failed"
    assert box.run("wait", "tiny").rc == 1
    box.down("tiny")


def test_reboot(box: Box) -> None:
    """Records of another boot name pids that mean nothing now, even where such processes live."""
    box.up()
    _kill_supervisor(box)
    for process in box.engine():
        os.kill(process.pid, signal.SIGKILL)
    box.await_no_engine()
    me = [os.getpid(), _ticks(os.getpid())]
    _edit(
        box,
        lambda record: (
            {**record, "boot_id": "another-boot"}
            if record["kind"] == "launch"
            else {**record, "pid": me[0], "identity": me}
            if record["kind"] == "spawned"
            else record
        ),
    )
    told = box.ok("status", "tiny", "--json").json
    assert told["state"] == "failed"
    assert told["pid"] is None
    box.await_released()
    status = box.status()
    assert status["state"] == "failed"
    assert "restarted" in status["diagnosis"]["summary"]
    box.down("tiny")
    box.ok("up", "tiny")
    box.down("tiny")


def _ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])


def test_reused_pid_is_not_the_engine(box: Box) -> None:
    """The recorded pid lives, but started at another time: a stranger, and not to be signalled."""
    box.up()
    _kill_supervisor(box)
    for process in box.engine():
        os.kill(process.pid, signal.SIGKILL)
    box.await_no_engine()
    mine = os.getpid()
    _edit(
        box,
        lambda record: (
            {**record, "pid": mine, "identity": [mine, 1]}
            if record["kind"] == "spawned"
            else {**record, "members": [[mine, 1, "VLLM::Worker_TP0"]]}
            if record["kind"] == "members"
            else record
        ),
    )
    box.ok("ps")
    box.await_released()
    assert box.status()["state"] == "failed"
    assert box.status()["pid"] is None
    box.down("tiny")
    assert not [record for record in box.events("signal") if mine in record["pids"]]


def test_torn_and_foreign_lines(box: Box) -> None:
    box.up()
    _kill_supervisor(box)
    path = box.launch() / "events.jsonl"
    with path.open("ab") as file:
        file.write(b'\xff\xfe garbage\n[1, 2]\n{"v": 1}\n{"v":1,"at":"2026-12-01T10:')
    status = box.status()
    assert status["state"] == "ready"
    box.down("tiny")
    assert path.read_bytes().endswith(b"\n")
    assert box.status()["state"] == "stopped"


def test_records_of_a_newer_version(box: Box) -> None:
    box.up()
    _kill_supervisor(box)
    with (box.launch() / "events.jsonl").open("a") as file:
        file.write('{"v": 9, "at": "2026-12-01T10:15:00.000Z", "kind": "quantum", "colour": [1, 2, {"deep": true}]}\n')
    plan = box.launch() / "plan.json"
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "a_key_of_tomorrow": {"x": 1}}))
    assert box.status()["state"] == "ready"
    box.down("tiny")


def test_a_plan_of_a_newer_version(box: Box) -> None:
    """Its engine cannot be taken over by this version; that is said, and nothing is guessed."""
    box.up()
    _kill_supervisor(box)
    plan = box.launch() / "plan.json"
    good = plan.read_text()
    plan.write_text(json.dumps({**json.loads(good), "version": 99}))
    result = box.run("status", "tiny", "--json")
    assert "Traceback" not in result.stdout + result.stderr
    assert "fault of kdeploy itself" not in result.stderr
    stop = box.run("down", "tiny")
    assert stop.rc not in (0, 3), stop
    assert "version 99" in result.stderr + stop.stderr
    assert box.chat("What is 2 + 2?")[0] == 200
    plan.write_text(good)
    box.down("tiny")
    (box.launch() / "supervisor.log").write_text("")


def test_commands_at_once_adopt_once(box: Box) -> None:
    box.up()
    _kill_supervisor(box)
    with box.running("ps") as first, box.running("status", "tiny") as second, box.running("wait", "tiny") as third:
        for cli in (first, second, third):
            cli.communicate()
            assert cli.returncode == 0
    assert len(box.events("adopted")) == 1
    assert len(box.supervisors()) == 1
    box.down("tiny")


def test_sigstopped_supervisor_does_not_stop_the_engine(box: Box) -> None:
    box.up()
    pid = box.supervisor()
    os.kill(pid, signal.SIGSTOP)
    assert box.chat("What is 2 + 2?")[0] == 200
    assert box.status()["state"] == "ready"
    os.kill(pid, signal.SIGCONT)
    box.down("tiny")
