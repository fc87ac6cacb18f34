"""`down`: from every state, against every stubbornness, and never a process that is not ours."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.host import cgroups
from tests.box import FAKE_VLLM, LIMIT_S, Box, alive, free_port, wait_until


def _no_kill(box: Box, name: str = "tiny") -> bool:
    return all(record["signal"] != "SIGKILL" for record in box.events("signal", name))


def test_down_on_ready_is_gentle(box: Box) -> None:
    box.up("tiny", "shm=1;device=cuda")
    assert box.note_shm()
    box.down("tiny")
    assert _no_kill(box)
    assert box.events("signal")[0]["signal"] == "SIGTERM"
    exited = box.events("exited")[-1]
    assert (exited["exit_code"], exited["asked"]) == (0, True)
    status = box.status()
    assert status["exit"] == {"exit_code": 0, "signal": None, "asked": True}
    assert status["diagnosis"] is None


def test_down_json(box: Box) -> None:
    box.up()
    result = box.down("tiny", "--json")
    assert [entry["state"] for entry in result.json["deployments"]] == ["stopped"]


@pytest.mark.parametrize("phase", ["spawn", "init", "weights", "compile", "warmup", "canary"])
def test_down_while_loading(box: Box, phase: str) -> None:
    """Also where vLLM swallows the first SIGTERM, as it does while it initialises."""
    slow = {"spawn": "import_s=60", "init": "hang_at=init", "canary": "prefill_s=60"}.get(phase, f"{phase}_s=60")
    box.start("tiny", slow.replace("weights_s", "load_s"))
    if phase == "warmup":
        wait_until(lambda: b"Graph capturing finished" in _log(box) or b"Warming up done" in _log(box), "the warm-up")
    else:
        box.await_phase(phase)
    box.down("tiny")
    assert not box.engine()
    assert box.status()["state"] == "stopped"


def _log(box: Box) -> bytes:
    return (box.launch() / "engine.log").read_bytes()


def test_a_swallowed_sigterm_is_repeated(box: Box) -> None:
    box.start("tiny", "hang_at=weights;swallow_term=1")
    box.await_phase("init")
    wait_until(lambda: len(box.workers()) == 2, "both ranks")
    box.down("tiny")
    assert len([record for record in box.events("signal") if record["signal"] == "SIGTERM"]) > 1


def test_down_on_unhealthy(box: Box) -> None:
    box.up("tiny", "health=503;health_after_s=0.5")
    box.await_state("unhealthy")
    assert box.status()["state"] == "unhealthy"
    box.down("tiny")
    assert box.status()["state"] == "stopped"


def test_down_on_failed_puts_it_away(box: Box) -> None:
    box.profile("tiny", "die_at=weights;die_log=oom")
    assert box.run("up", "tiny").rc == 1
    assert box.status()["state"] == "failed"
    result = box.down("tiny")
    assert "had failed" in result.stderr
    assert box.status()["state"] == "stopped"
    assert box.run("down", "tiny").rc == 3


def test_down_on_stopped_and_unknown(box: Box) -> None:
    assert box.run("down").rc == 3
    assert box.run("down", "tiny").rc == 3
    box.up()
    box.down("tiny")
    again = box.run("down", "tiny")
    assert again.rc == 3
    assert "already stopped" in again.stderr
    assert box.run("down", "--all").rc == 0


def test_several_and_all(box: Box) -> None:
    names = ["one", "two", "three"]
    for name in names:
        box.port = _other_port(box.port)
        box.start(name)
    for name in names:
        assert box.run("wait", name).rc == 0
    which = box.run("down")
    assert which.rc == 2
    assert "which one?" in which.stderr
    box.down("one", "two")
    assert [entry["state"] for entry in box.ok("ps", "--json").json["deployments"]] == ["stopped", "ready", "stopped"]
    box.down("--all")
    assert {entry["state"] for entry in box.ok("ps", "--json").json["deployments"]} == {"stopped"}


def _other_port(port: int) -> int:
    while (other := free_port()) == port:
        pass
    return other


@pytest.mark.parametrize("knob", ["ignore_term=1", "worker_stays=1", "worker_ignores_term=1"])
def test_down_ends_what_does_not_want_to_end(box: Box, knob: str) -> None:
    box.up("tiny", knob, {"stop.term_s": 1.5})
    box.down("tiny", "--force")
    assert not box.engine()
    # in the last case EngineCore itself kills its workers
    assert _no_kill(box) == (knob == "worker_ignores_term=1")


def test_a_worker_in_a_session_of_its_own_is_found(box: Box) -> None:
    box.up("tiny", "stray=setsid", {"stop.term_s": 2})
    sessions = {process.sid for process in box.engine()}
    assert len(sessions) == 2
    box.down("tiny")
    assert not box.engine()


def test_shared_memory_of_a_killed_engine_is_removed(box: Box) -> None:
    box.up("tiny", "shm=1;device=cuda")
    assert box.note_shm()
    wait_until(lambda: box.events("members"), "the members to be recorded")
    for process in box.engine():
        os.kill(process.pid, signal.SIGKILL)
    box.await_state("failed")
    box.await_released()
    assert not [path for path in box.shm if os.path.exists(path)]


@pytest.mark.parametrize("killed", [False, True])
def test_socket_files_of_the_engine_are_removed(box: Box, killed: bool) -> None:
    box.up("tiny", "sockets=1")
    paths = box.sockets_of(box.api())
    assert len(paths) == 3
    if killed:
        os.kill(box.api(), signal.SIGKILL)
        box.await_state("failed")
        box.await_released()
    box.down("tiny")
    assert not [path for path in paths if path.exists()]


def test_a_socket_that_nobody_saw_before_its_process_was_killed_leaves_no_file(box: Box) -> None:
    box.profile("tiny", "sockets=1;init_s=3")
    box.ok("up", "tiny", "--detach")
    box.await_phase("init")
    paths = wait_until(lambda: (found := box.sockets_of(box.api()))[3:] and found, "four sockets")
    os.kill(box.api(), signal.SIGKILL)
    box.await_state("failed")
    box.await_released()
    assert not [path for path in paths if path.exists() or path.parent.exists()]


def test_sockets_in_a_place_that_the_profile_names_are_removed(box: Box) -> None:
    with tempfile.TemporaryDirectory() as place:  # pytest's own are too long for a socket's name
        box.up("tiny", "sockets=1", {"env.VLLM_RPC_BASE_PATH": place})
        assert {str(path.parent.parent) for path in box.sockets_of(box.api())} == {place}
        box.down("tiny")
        assert os.listdir(place) == []


def _group(box: Box) -> Path:
    """The engine's own cgroup, where this machine allows one."""
    folder = box.await_event("spawning")["cgroup"]
    if folder is None:
        pytest.skip("no cgroup v2 here that we may write to")
    return Path(folder)


def test_the_engine_lives_in_a_cgroup_of_its_own(box: Box) -> None:
    box.up("tiny", "stray=setsid")
    group = _group(box)
    inside = {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
    assert inside >= {process.pid for process in box.engine()}
    assert box.supervisor() not in inside
    box.down("tiny")
    assert not group.exists()


def test_the_kernel_ends_a_whole_cgroup_at_once() -> None:
    group = cgroups.make(f"kdeploy-test-{os.getpid()}")
    if group is None:
        pytest.skip("no cgroup v2 here that we may write to")
    home = cgroups.own_folder()
    with cgroups.inside(group):
        stubborn = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 300 & wait"], start_new_session=True)
    try:
        assert cgroups.own_folder() == home
        assert stubborn.pid in cgroups.pids_in(group)
        assert cgroups.kill(group)
        assert stubborn.wait(timeout=LIMIT_S) == -signal.SIGKILL
        wait_until(lambda: not cgroups.pids_in(group), "its child to be gone too")
    finally:
        stubborn.kill()
        cgroups.remove(group)
    assert not os.path.exists(group)


def test_a_stray_that_nobody_recorded_is_found_by_the_cgroup_after_an_adoption(box: Box) -> None:
    """In a session of its own, writing elsewhere, started after its supervisor died: only the cgroup knows it."""
    box.up()
    group = _group(box)
    os.kill(box.supervisor(), signal.SIGKILL)
    box.await_released()
    stray = subprocess.Popen(["sleep", "300"], start_new_session=True, stdout=subprocess.DEVNULL)
    (group / "cgroup.procs").write_text(str(stray.pid))
    box.down("tiny", "--force")
    assert stray.wait(timeout=LIMIT_S) == -signal.SIGTERM
    assert not group.exists()


def test_sigstopped_engine(box: Box) -> None:
    box.up("tiny", "", {"stop.term_s": 2})
    for process in box.engine():
        os.kill(process.pid, signal.SIGSTOP)
    box.down("tiny", "--force")
    assert not box.engine()


def test_sigstopped_supervisor_is_woken(box: Box) -> None:
    box.up()
    os.kill(box.supervisor(), signal.SIGSTOP)
    box.down("tiny", "--force")


def test_down_timeout(box: Box) -> None:
    box.up("tiny", "ignore_term=1", {"stop.term_s": 3})
    late = box.run("down", "tiny", "--force", "--timeout", "0.3")
    assert late.rc == 124
    assert box.status()["state"] == "stopping"
    box.await_released()
    assert box.status()["state"] == "stopped"


def test_ctrl_c_on_down_lets_it_go_on(box: Box) -> None:
    box.up("tiny", "ignore_term=1", {"stop.term_s": 2})
    with box.running("down", "tiny", "--force") as cli:
        box.await_event("stop-asked")
        cli.send_signal(signal.SIGINT)
        _, told = cli.communicate()
    assert cli.returncode == 130
    assert b"goes on stopping" in told
    box.await_released()
    assert box.status()["state"] == "stopped"


def test_up_against_down(box: Box) -> None:
    box.up("tiny", "stop_s=5")
    with box.running("down", "tiny") as cli:
        box.await_event("stop-asked")
        refused = box.run("up", "tiny")
        assert refused.rc == 4, refused
        assert "already stopping" in refused.stderr
        assert cli.wait() == 0
    box.ok("up", "tiny")
    box.down("tiny")


# ---------------------------------------------------------------------- draining


QUIET = {"stop.term_s": 2, "canary.enabled": False}  # a canary would wait for slow tokens too


class Stream:
    """A streaming chat request in a thread of its own; `answer` is what came."""

    def __init__(self, box: Box, tokens: int) -> None:
        self.answer = b""
        self.thread = threading.Thread(target=self._run, args=(box, tokens))
        self.thread.start()
        wait_until(lambda: b"data: " in self.answer, "the first token")

    def _run(self, box: Box, tokens: int) -> None:
        messages = [{"role": "user", "content": "go on"}]
        asked = {"model": "tiny-model", "stream": True, "ignore_eos": True, "max_tokens": tokens, "messages": messages}
        body = json.dumps(asked)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        with socket.create_connection(("127.0.0.1", box.port)) as client, contextlib.suppress(OSError):
            client.sendall((head + body).encode())
            while chunk := client.recv(65536):
                self.answer += chunk

    def end(self) -> bytes:
        """All that came."""
        self.thread.join()
        return self.answer


def test_drain_lets_a_running_request_finish(box: Box) -> None:
    box.up("tiny", "token_s=0.05", {"stop.drain_s": 30, **QUIET})
    stream = Stream(box, 30)
    box.down("tiny")
    assert b"[DONE]" in stream.end()
    assert stream.answer.count(b'"delta"') >= 30
    assert box.events("drained")


def test_drain_has_a_limit(box: Box) -> None:
    box.up("tiny", "token_s=0.5", {"stop.drain_s": 0.5, **QUIET})
    stream = Stream(box, 200)
    box.down("tiny")
    assert b"[DONE]" not in stream.end()
    assert box.events("drain-over")


def test_force_skips_the_drain(box: Box) -> None:
    box.up("tiny", "token_s=0.5", {"stop.drain_s": 60, **QUIET})
    stream = Stream(box, 200)
    box.down("tiny", "--force")
    stream.end()
    assert not box.events("drained")
    assert not box.events("drain-over")


def test_force_cuts_a_drain_short(box: Box) -> None:
    box.up("tiny", "token_s=0.5", {"stop.drain_s": 60, **QUIET})
    stream = Stream(box, 200)
    with box.running("down", "tiny") as patient:
        box.await_event("stop-asked")
        box.down("tiny", "--force")
        assert patient.wait() == 0
    stream.end()


# ---------------------------------------------------------------------- strangers


@contextlib.contextmanager
def _stranger(title: str, **options: Any) -> Iterator[int]:
    """A process with the given command line that is none of ours."""
    process = subprocess.Popen(
        [title, "-c", "import time; time.sleep(600)"],
        executable=sys.executable,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **options,
    )
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_lookalikes_are_never_touched(box: Box) -> None:
    with (
        _stranger("VLLM::Worker_TP0") as worker,
        _stranger("VLLM::EngineCore", start_new_session=True) as core,
        _stranger("vim /home/me/vllm-notes") as editor,
        _stranger(f"python3 {FAKE_VLLM} serve {box.model}", env={**os.environ, **box.env}) as twin,
    ):
        box.up("tiny", "worker_ignores_term=1", {"stop.term_s": 1})
        # and one that reads our log is not the engine either
        with box.running("logs", "-f", "tiny"):
            os.kill(box.api(), signal.SIGKILL)
            box.await_state("failed")
            box.await_no_engine()
            box.await_released()
        assert [alive(pid) for pid in (worker, core, editor, twin)] == [True] * 4


def test_two_deployments_do_not_touch_each_other(box: Box) -> None:
    box.up("one")
    first = box.port
    box.port = _other_port(first)
    box.up("two")
    box.down("one", "--force")
    assert box.chat("What is 2 + 2?", "two")[0] == 200
    box.down("two")
