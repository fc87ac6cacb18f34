"""`kdeploy supervise`: the supervisor in the foreground, and what it tells a service manager."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.box import Box, wait_until


class Manager:
    """The socket that systemd would give, and what was said on it."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.setblocking(False)
        self.said: list[str] = []

    def heard(self, beginning: str) -> str | None:
        """The first assignment so far that begins so."""
        try:
            while True:
                self.said += self.socket.recv(65536).decode().splitlines()
        except BlockingIOError:
            pass
        return next((line for line in self.said if line.startswith(beginning)), None)

    def await_said(self, beginning: str) -> str:
        """Wait for an assignment."""
        found: str = wait_until(lambda: self.heard(beginning), f"{beginning} on the notify socket")
        return found


@pytest.fixture
def manager(box: Box) -> Iterator[Manager]:
    """A listening service manager."""
    listening = Manager(box.root)
    yield listening
    listening.socket.close()


def test_it_tells_the_load_readiness_and_the_stop(box: Box, manager: Manager) -> None:
    box.profile("tiny", "load_s=1")
    env = {"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "400000"}
    with box.running("supervise", "tiny", env=env) as service:
        assert manager.await_said("STATUS=loading: weights")
        assert int(manager.await_said("EXTEND_TIMEOUT_USEC=").partition("=")[2]) > 0
        manager.await_said("READY=1")
        manager.await_said("WATCHDOG=1")
        # the process that the manager started is the supervisor itself
        assert box.status()["supervisor_pid"] == service.pid
        assert box.status()["state"] == "ready"
        assert not manager.heard("STOPPING=1")
        service.send_signal(signal.SIGTERM)
        manager.await_said("STOPPING=1")
        assert service.wait(timeout=30) == 0
    assert box.status()["state"] == "stopped"
    assert not box.engine()


def test_it_prints_the_journal_as_lines_of_json(box: Box) -> None:
    box.profile("tiny")
    with box.running("supervise", "tiny") as service:
        box.await_state("ready")
        service.send_signal(signal.SIGINT)
        out, _ = service.communicate(timeout=30)
    kinds = [json.loads(line)["kind"] for line in out.splitlines()]
    assert kinds[0] == "launch"
    assert "ready" in kinds
    assert kinds[-1] == "stopped"


def test_a_failure_is_its_exit_code_and_not_a_readiness(box: Box, manager: Manager) -> None:
    box.profile("tiny", "die_at=weights;exit_code=1")
    with box.running("supervise", "tiny", env={"NOTIFY_SOCKET": manager.path}) as service:
        assert service.wait(timeout=30) == 1
    assert manager.await_said("STATUS=failed")
    assert not manager.heard("READY=1")


def test_it_adopts_an_engine_that_serves_without_a_supervisor(box: Box, manager: Manager) -> None:
    status = box.up()
    os.kill(box.supervisor(), signal.SIGKILL)
    box.await_released()
    with box.running("supervise", "tiny", env={"NOTIFY_SOCKET": manager.path}) as service:
        manager.await_said("READY=1")
        assert box.status()["supervisor_pid"] == service.pid
        assert box.status()["pid"] == status["pid"]
        service.terminate()
        assert service.wait(timeout=30) == 0
    assert not box.engine()


def test_the_engine_does_not_inherit_the_managers_socket(box: Box, manager: Manager, tmp_path: Path) -> None:
    seen = tmp_path / "argv.json"
    box.profile("tiny", "", {"env.FAKE_VLLM_ARGV_FILE": str(seen)})
    with box.running("supervise", "tiny", env={"NOTIFY_SOCKET": manager.path}) as service:
        manager.await_said("READY=1")
        assert "NOTIFY_SOCKET" not in json.loads(seen.read_text())["env"]
        service.terminate()
        service.wait(timeout=30)


def test_a_second_one_is_refused(box: Box) -> None:
    box.up()
    result = box.run("supervise", "tiny")
    assert result.rc == 4
    assert str(box.supervisor()) in result.stderr
    box.down()


def test_nothing_is_started_for_a_bad_profile(box: Box) -> None:
    box.profile("tiny", "", {"serve.prot": 1})
    result = subprocess.run(
        [box.env["PATH"].split(":")[0] + "/kdeploy", "supervise", "tiny"],
        env=box.environment(),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert not box.launches()
