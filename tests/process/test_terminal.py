"""The terminal, the shell and the CLI may do what they like: the load goes on."""

import contextlib
import os
import pty
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.box import KDEPLOY, LIMIT_S, Box, read_proc, wait_until


def _loading(box: Box) -> None:
    """A profile whose load takes about a second longer than the CLI needs to be told to go."""
    box.profile("tiny", "load_s=1")


def _comes_up(box: Box) -> None:
    assert box.run("wait", "tiny").rc == 0
    assert box.chat("What is 2 + 2?")[0] == 200
    box.down("tiny")


@pytest.mark.parametrize("impatient", [False, True])
def test_ctrl_c_detaches(box: Box, impatient: bool) -> None:
    _loading(box)
    with box.running("up", "tiny") as cli:
        box.await_event("spawned")
        cli.send_signal(signal.SIGINT)
        while impatient and cli.poll() is None:
            cli.send_signal(signal.SIGINT)
        _, told = cli.communicate()
    assert cli.returncode == 130
    assert b"goes on loading" in told
    assert b"kdeploy wait tiny" in told
    assert b"kdeploy down tiny" in told
    _comes_up(box)


class Terminal:
    """`kdeploy` as the session leader of a new terminal."""

    def __init__(self, box: Box, *args: str) -> None:
        self.master, slave = pty.openpty()
        self.seen = b""
        self.cli = subprocess.Popen(
            ["setsid", "--ctty", KDEPLOY, *args],
            env=box.environment({"NO_COLOR": None, "TERM": "xterm"}),
            cwd=box.root,
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        os.set_blocking(self.master, False)

    def type(self, text: bytes) -> None:
        """As a person types."""
        os.write(self.master, text)

    def ended(self) -> bool:
        """Read what is shown; whether the command has ended."""
        over = self.cli.poll() is not None
        with contextlib.suppress(OSError):
            while chunk := os.read(self.master, 65536):
                self.seen += chunk
        return over

    def wait(self) -> int:
        """The command's exit code."""
        wait_until(self.ended, "the command on the terminal to end")
        return self.cli.wait()


def test_ctrl_c_to_the_foreground_group_on_a_terminal(box: Box) -> None:
    """As a person does it: the kernel sends SIGINT to every process of the terminal's foreground group."""
    _loading(box)
    terminal = Terminal(box, "up", "tiny")
    box.await_event("spawned")
    terminal.type(b"\x03")
    assert terminal.wait() == 130
    assert b"detached" in terminal.seen
    os.close(terminal.master)
    _comes_up(box)


def test_live_region_on_a_terminal(box: Box) -> None:
    _loading(box)
    terminal = Terminal(box, "up", "tiny")
    assert terminal.wait() == 0
    assert b"weights" in terminal.seen
    assert b"tiny is ready" in terminal.seen
    os.close(terminal.master)
    box.down("tiny")


def test_closed_terminal(box: Box) -> None:
    """A dropped SSH session: the terminal vanishes, the CLI gets SIGHUP."""
    _loading(box)
    terminal = Terminal(box, "up", "tiny")
    box.await_event("spawned")
    os.close(terminal.master)
    terminal.cli.wait(LIMIT_S)
    _comes_up(box)


def _lock_taken(box: Box) -> bool:
    return (box.state / "deployments" / "tiny" / "lock").exists()


def _plan_written(box: Box) -> bool:
    return bool(box.launches())


def _journal_begun(box: Box) -> bool:
    return bool(box.launches()) and bool(box.journal())


def _engine_spawned(box: Box) -> bool:
    return bool(box.launches()) and bool(box.events("spawned"))


@pytest.mark.parametrize("moment", [_lock_taken, _plan_written, _journal_begun, _engine_spawned])
def test_killed_cli_leaves_either_nothing_or_a_load(box: Box, moment: Callable[[Box], bool]) -> None:
    _loading(box)
    with box.running("up", "tiny") as cli:
        wait_until(lambda: moment(box), f"{moment.__name__}")
        cli.kill()
    # whatever there is now, the same command comes to a served model
    result = box.run("up", "tiny")
    if result.rc == 4:
        assert "supervisor pid" in result.stderr or "command pid" in result.stderr
    else:
        assert result.rc == 0, result
    _comes_up(box)


def test_started_with_output_closed(box: Box) -> None:
    _loading(box)
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" up tiny <&- >&- 2>&-', KDEPLOY], env=box.environment(), cwd=box.root, check=False
    )
    assert done.returncode == 0
    assert box.status()["state"] == "ready"
    box.down("tiny")


def test_nohup(box: Box) -> None:
    _loading(box)
    with box.running("up", "tiny", shell="trap '' HUP") as cli:
        box.await_event("spawned")
        cli.send_signal(signal.SIGHUP)
        cli.communicate()
        assert cli.returncode == 0
    box.down("tiny")


def test_up_into_head(box: Box) -> None:
    """The reader of the talk leaves after one line."""
    _loading(box)
    done = subprocess.run(
        ["bash", "-c", '"$0" up tiny 2>&1 | head -n 1 >/dev/null; exit ${PIPESTATUS[0]}', KDEPLOY],
        env=box.environment(),
        cwd=box.root,
        check=False,
    )
    assert done.returncode == 0
    assert box.status()["state"] == "ready"
    box.down("tiny")


def test_logs_into_head(box: Box) -> None:
    box.up()
    done = subprocess.run(
        ["bash", "-c", '"$0" logs tiny | head -n 1 >/dev/null; exit ${PIPESTATUS[0]}', KDEPLOY],
        env=box.environment(),
        cwd=box.root,
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 141)
    assert b"Traceback" not in done.stderr
    box.down("tiny")


def test_engine_inherits_no_lock_and_no_ignored_signals(box: Box) -> None:
    """A shell without job control starts background jobs with SIGINT and SIGQUIT ignored."""
    box.profile()
    with box.running("up", "tiny", shell="trap '' INT QUIT") as cli:
        cli.communicate()
    ignored = {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP}
    for process in box.engine():
        status = Path(f"/proc/{process.pid}/status").read_text()
        mask = int(status.partition("SigIgn:")[2].split()[0], 16)
        if "resource_tracker" not in process.title:  # that one ignores them itself, as the real one does
            assert not {number for number in ignored if mask >> (number - 1) & 1}, process
        targets = [os.readlink(entry) for entry in Path(f"/proc/{process.pid}/fd").iterdir()]
        assert not [target for target in targets if target.endswith(("lock", "events.jsonl", "lease"))], targets
    api = read_proc(box.api())
    assert api is not None
    assert api.sid == api.pid
    box.down("tiny")


def test_a_folder_named_deploy_is_not_our_supervisor(box: Box) -> None:
    fake = box.root / "deploy" / "supervise"
    fake.mkdir(parents=True)
    (box.root / "deploy" / "__init__.py").write_text("raise SystemExit('the wrong deploy')")
    (fake / "__init__.py").write_text("")
    box.up()
    box.down("tiny")


def test_watch_shows_and_touches_nothing(box: Box) -> None:
    box.up()
    journal = box.journal()
    terminal = Terminal(box, "watch", "tiny")
    wait_until(lambda: not terminal.ended() and b"q or Ctrl-C" in terminal.seen, "the screen")
    terminal.type(b"q")
    assert terminal.wait() == 0
    assert b"tiny-model" in terminal.seen
    os.close(terminal.master)
    assert box.journal() == journal
    box.down("tiny")
    plain = box.run("watch", "tiny")
    assert plain.rc == 1
    assert "tiny is stopped" in plain.stderr
