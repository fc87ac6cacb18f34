"""What must hold on the fake and on the real engine alike: the same assertions keep the fake honest.

A scenario gets a box whose profile `NAME` is written, and leaves nothing running.
"""

import json
import os
import signal
from collections.abc import Callable

from tests.box import STATUS_KEYS, Box, read_proc, wait_until

NOTICED_S = 2.0 + 3.0  # a death is told within 2 s; machines that run tests are busy, and asking takes a moment too


def serves_and_leaves_nothing(box: Box, name: str) -> None:
    """From a profile to an answered request, and back to nothing."""
    status = box.ok("up", name, "--json").json
    assert set(status) >= STATUS_KEYS
    assert (status["state"], status["ready"], status["phase"]) == ("ready", True, None)
    assert status["load"]["shards_done"] == status["load"]["shards_total"] > 0
    assert status["load"]["bytes_done"] == status["load"]["bytes_total"] > 0
    phases = [entry["phase"] for entry in status["phases"]]
    assert phases[:3] == ["spawn", "init", "weights"]
    assert phases[-1] == "canary"
    code, body = box.request(
        "POST",
        "/v1/chat/completions",
        {"model": status["model"], "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16},
    )
    assert code == 200
    assert json.loads(body)["usage"]["completion_tokens"] > 0
    # its processes share one session, which is not the supervisor's
    engine = box.engine(name)
    assert {process.sid for process in engine} == {status["pid"]}
    assert {"VLLM::EngineCore"} <= {process.title for process in engine}
    assert len(box.workers(name)) == 2
    # no lock leaks into it
    lock = os.stat(box.state / "deployments" / name / "lock").st_ino
    assert not any(lock in _open_inodes(process.pid) for process in engine)
    assert box.ok("up", name).stderr.startswith(f"{name} is already ready")
    lengths = ("--input-tokens", "32", "--output-tokens", "16")
    measured = box.ok("bench", name, "--runs", "1", "--concurrency", "2", "--requests", "4", *lengths, "--json").json
    assert measured["single"]["completion_tokens"] == measured["crosscheck"]["completion_tokens"] == 16
    assert (measured["single"]["failed"], measured["sweep"][0]["failed"]) == (0, 0)
    assert measured["single"]["raw_tok_s"] >= measured["single"]["visible_tok_s"] > 0
    box.note_shm(name)
    result = box.down(name)
    assert "is down" in result.stderr
    assert not box.engine(name)
    assert not box.supervisors(name)
    assert box.status(name)["state"] == "stopped"
    assert box.run("down", name).rc == 3


def _open_inodes(pid: int) -> set[int]:
    found = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.add(os.stat(f"/proc/{pid}/fd/{entry}").st_ino)
        except OSError:
            continue
    return found


def _told_in_time(box: Box, name: str, kill: Callable[[], None]) -> dict[str, object]:
    """Kill something of a ready engine; the status once it says failed, which must be soon."""
    kill()
    wait_until(lambda: box.status(name)["state"] == "failed", f"{name} to be failed", NOTICED_S)
    return box.status(name)


def killed_api_server(box: Box, name: str) -> None:
    """kill -9 of the API server orphans EngineCore and the workers; they must not stay."""
    box.ok("up", name)
    box.note_shm(name)
    orphans = [process.pid for process in box.engine(name) if process.title.startswith("VLLM::")]
    assert len(orphans) == 3
    status = _told_in_time(box, name, lambda: os.kill(box.api(name), signal.SIGKILL))
    diagnosis = status["diagnosis"]
    assert isinstance(diagnosis, dict)
    assert diagnosis["cause"] == "engine-died"
    assert "SIGKILL" in diagnosis["summary"]
    assert status["exit"] == {"exit_code": None, "signal": "SIGKILL", "asked": False}
    box.await_no_engine(name)
    box.await_released(name)
    assert not any(read_proc(pid) for pid in orphans)
    assert box.ok("down", name).rc == 0
    assert box.status(name)["state"] == "stopped"


def killed_worker(box: Box, name: str) -> None:
    """A dead rank is told at once, though /health may still answer 200 for seconds."""
    box.ok("up", name)
    box.note_shm(name)
    victim = box.workers(name)[1]
    status = _told_in_time(box, name, lambda: os.kill(victim, signal.SIGKILL))
    assert isinstance(status["diagnosis"], dict)
    assert status["diagnosis"]["cause"] in ("engine-died", "worker-died")
    box.await_no_engine(name)
    box.await_released(name)
    assert box.ok("down", name).rc == 0


def killed_supervisor(box: Box, name: str) -> None:
    """The engine serves on without its supervisor; the next command adopts it, and `down` leaves nothing."""
    box.ok("up", name)
    box.note_shm(name)
    engine, old = box.api(name), box.supervisor(name)
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: read_proc(old) is None, "the supervisor to be gone")
    assert box.request("GET", "/health")[0] == 200
    result = box.ok("status", name, "--json")
    assert "adopted" in result.stderr
    assert result.json["state"] == "ready"
    assert result.json["pid"] == engine
    assert result.json["supervisor_pid"] == box.supervisor(name) != old
    box.down(name)
    assert not box.engine(name)


def stopped_while_loading(box: Box, name: str) -> None:
    """A first SIGTERM is swallowed by a loading vLLM; `down` ends it all the same."""
    box.ok("up", name, "--detach")
    box.await_phase("init", name)
    wait_until(lambda: len(box.workers(name)) == 2, "both workers")
    box.note_shm(name)
    box.down(name)
    assert not box.engine(name)
    assert box.status(name)["state"] == "stopped"


def survives_its_command(box: Box, name: str) -> None:
    """kill -9 of `kdeploy up` in the middle of a load changes nothing for the deployment."""
    with box.running("up", name) as command:
        box.await_phase("init", name)
        command.kill()
        command.wait()
    assert box.run("wait", name, timeout=180).rc == 0
    assert box.status(name)["ready"] is True
    box.note_shm(name)
    box.down("--all")
    assert not box.engine(name)


ALL = (
    serves_and_leaves_nothing,
    killed_api_server,
    killed_worker,
    killed_supervisor,
    stopped_while_loading,
    survives_its_command,
)
