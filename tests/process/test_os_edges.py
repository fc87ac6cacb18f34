"""The edges to the kernel, with real processes, locks, sockets and shared memory."""

import contextlib
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.errors import KdeployError
from deploy.host import listeners, processes, shm
from deploy.host.processes import Identity
from deploy.store import leases, locks
from tests.box import alive, free_port, wait_until

SLEEP = "import time; print('up', flush=True); time.sleep(300)"


@contextlib.contextmanager
def python(code: str, *args: str, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A Python that runs `code`; ready when it has printed a line. Ended with the block."""
    process = subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
    try:
        assert process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


# ---------------------------------------------------------------------- locks


def test_lock_excludes_and_names_its_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert not locks.is_held(path)
    fd = locks.try_lock(path)
    assert fd is not None
    locks.write_holder(fd, {"role": "command", "pid": 5, "padding": "x" * 500})
    locks.write_holder(fd, {"role": "supervisor", "pid": 7})
    assert locks.is_held(path)
    assert locks.try_lock(path) is None
    holder = locks.read_holder(path)
    assert (holder["role"], holder["pid"]) == ("supervisor", 7)
    assert holder["since"].endswith("Z")
    os.close(fd)
    assert not locks.is_held(path)
    again = locks.try_lock(path)
    assert again is not None
    os.close(again)


def test_lock_passes_to_a_child_and_dies_with_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    fd = locks.try_lock(path)
    assert fd is not None
    with python(SLEEP, pass_fds=(fd,)) as child:
        os.close(fd)
        assert locks.is_held(path)
        child.kill()
        child.wait()
        assert not locks.is_held(path)


def test_lock_is_not_inherited_unless_passed(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    fd = locks.try_lock(path)
    assert fd is not None
    with python(SLEEP, close_fds=False):
        os.close(fd)
        assert not locks.is_held(path)


@pytest.mark.parametrize("text", [b"", b"garbage", b"[1]", b"\xff\xfe", b'{"role": "super'])
def test_unreadable_holder_is_nobody(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "lock"
    path.write_bytes(text)
    assert locks.read_holder(str(path)) == {}


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="needs a second user: root and setpriv")
def test_lease_of_another_user_is_seen_and_can_be_taken_later(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(f"/tmp/kdeploy-test-leases-{os.getpid()}")
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setenv("KDEPLOY_LEASE_DIR", str(folder))
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", 'exec 3<>"$0"']
    try:
        fds = leases.take(["GPU-a"], "mine")
        path = leases.lease_path("GPU-a")
        assert subprocess.run([*nobody, path], check=False).returncode == 0
        with pytest.raises(KdeployError) as told:
            leases.take(["GPU-a"], "other")
        assert told.value.code == 4
        leases.release(fds)
        assert leases.holder_of("GPU-a") is None
    finally:
        shutil.rmtree(folder)


def test_lease_is_held_by_a_living_engine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDEPLOY_LEASE_DIR", str(tmp_path))
    with python(SLEEP) as engine:
        identity = processes.identity_of(engine.pid)
        assert identity is not None
        fds = leases.take(["GPU-a", "GPU-b"], "mine")
        leases.note_engine(fds, "mine", identity)
        leases.release(fds)
        holder = leases.holder_of("GPU-a")
        assert holder is not None
        assert holder["deployment"] == "mine"
        with pytest.raises(KdeployError) as told:
            leases.take(["GPU-c", "GPU-b"], "other")
        assert told.value.code == 4
        assert not locks.is_held(leases.lease_path("GPU-c"))  # all or none
        fds = leases.take_over(["GPU-a", "GPU-b"], "mine", identity)
        assert len(fds) == 2
        leases.release(fds)
    assert leases.holder_of("GPU-a") is None


# ---------------------------------------------------------------------- processes


def test_identity_and_liveness() -> None:
    with python(SLEEP) as child:
        identity = processes.identity_of(child.pid)
        assert identity is not None
        assert processes.is_alive(identity)
        assert not processes.is_alive(Identity(identity.pid, identity.ticks + 1))
        child.kill()
        # a zombie: it is there, and it is not alive
        wait_until(lambda: not processes.is_alive(identity), "the child to be a zombie")
        zombie = processes.read_process(child.pid)
        assert zombie is not None
        assert zombie.state == "Z"
    assert processes.identity_of(child.pid) is None


MAIN_THREAD_ENDS = """
import ctypes, os, sys, threading, time
threading.Thread(target=time.sleep, args=(300,)).start()
print("up", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


def test_zombie_with_running_threads_is_alive() -> None:
    """A killed server's main thread may end before its others, which still hold its memory and its sockets."""
    with python(MAIN_THREAD_ENDS) as child:
        wait_until(
            lambda: (found := processes.read_process(child.pid)) and found.state == "Z", "the main thread to end"
        )
        identity = processes.identity_of(child.pid)
        assert identity is not None
        assert child.poll() is None
        assert processes.is_alive(identity)
        assert processes.send(identity, signal.SIGKILL)
        wait_until(lambda: not processes.is_alive(identity), "all of it to end")
        assert child.wait() in (0, -signal.SIGKILL)


def test_name_with_parentheses_and_spaces(tmp_path: Path) -> None:
    program = tmp_path / "a) R (b"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "300"]) as child:
        try:
            wait_until(lambda: (found := processes.read_process(child.pid)) and found.name == "a) R (b", "the exec")
            found = processes.read_process(child.pid)
            assert found is not None
            assert found.ppid == os.getpid()
            assert found.alive
        finally:
            child.kill()


def test_signals_go_to_the_identity_only() -> None:
    with python(SLEEP) as child:
        identity = processes.identity_of(child.pid)
        assert identity is not None
        stranger = Identity(identity.pid, identity.ticks - 1)
        assert processes.open_pidfd(stranger) is None
        assert processes.send(stranger, signal.SIGKILL) is False
        assert alive(child.pid)
        assert processes.send_all([stranger, identity], signal.SIGTERM) == [child.pid]
        assert child.wait() == -signal.SIGTERM
    assert processes.send(identity, signal.SIGKILL) is False


@pytest.mark.skipif(not os.access("/proc/sys/kernel/ns_last_pid", os.W_OK), reason="ns_last_pid is not writable")
def test_reused_pid_is_another_process() -> None:
    with python(SLEEP) as first:
        identity = processes.identity_of(first.pid)
        assert identity is not None
    pid = identity.pid
    for _ in range(200):  # others fork too: try until the number is ours again
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        with subprocess.Popen(["sleep", "300"]) as second:
            try:
                if second.pid != pid:
                    continue
                assert not processes.is_alive(identity) or processes.identity_of(pid) == identity
                if processes.identity_of(pid) == identity:
                    pytest.skip("reused within one clock tick")
                assert processes.send(identity, signal.SIGKILL) is False
                assert processes.tree(identity, [identity], processes.snapshot()) == []
                assert second.poll() is None
                return
            finally:
                second.kill()
    pytest.skip("the number was not given out again")


TREE = """
import os, signal, sys, time
# a session of its own, a child, a grandchild, and a daemon in yet another session whose parent ends
os.setsid()
def sleeper():
    signal.alarm(120)
    while True: time.sleep(60)
if os.fork() == 0:
    if os.fork() == 0: sleeper()
    sleeper()
middle = os.fork()
if middle == 0:
    os.setsid()
    pid = os.fork()
    if pid == 0: sleeper()
    os.write(1, b"%d\\n" % pid)
    os._exit(0)
os.waitpid(middle, 0)
sleeper()
"""


def test_tree_of_an_engine() -> None:
    with python(SLEEP) as stranger, subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE) as leader:
        assert leader.stdout is not None
        daemon = int(leader.stdout.readline())
        identity = processes.identity_of(leader.pid)
        away = processes.identity_of(daemon)
        assert identity is not None
        assert away is not None
        try:
            found = _pids(lambda: processes.tree(identity, [], processes.snapshot()), 3)
            assert leader.pid in found
            assert daemon not in found  # neither child nor session: only a record of it can tell
            assert stranger.pid not in found
            assert daemon in _pids(lambda: processes.tree(identity, [away], processes.snapshot()), 4)
            # the leader dies: the session counts as long as a recorded identity lives in it
            rest = [process.identity for process in processes.tree(identity, [], processes.snapshot())]
            leader.kill()
            leader.wait()
            orphans = _pids(lambda: processes.tree(identity, rest, processes.snapshot()), 2)
            assert processes.tree(identity, [identity], processes.snapshot()) == []
        finally:
            for pid in (*found, daemon):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(alive(pid) for pid in orphans), "the orphans to end")


def _pids(look: Callable[[], list[processes.Process]], count: int) -> list[int]:
    wait_until(lambda: len(look()) == count, f"{count} processes")
    return [process.pid for process in look()]


def test_subreaper_gets_orphans() -> None:
    code = """
import os, subprocess, sys, time
from deploy.host.processes import become_subreaper, snapshot, tree
become_subreaper()
middle = subprocess.Popen([sys.executable, "-c", "import os, time\\nif os.fork() == 0: os.setsid(); time.sleep(60)"])
middle.wait()
found = tree(None, [], snapshot(), reaper=os.getpid())
assert [p.ppid for p in found] == [os.getpid()], found
assert tree(None, [], snapshot(), reaper=os.getpid(), spared=[found[0].pid]) == []
os.kill(found[0].pid, 9)
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.stdout == "fine\n", done.stderr


def test_holders_of_a_log_are_its_writers(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.touch()
    reader_code = "import sys, time; open(sys.argv[1]); print('up', flush=True); time.sleep(300)"
    writing = "import sys, time; sys.stderr = None; print('up', flush=True); time.sleep(300)"
    with (
        log.open("ab") as out,
        subprocess.Popen([sys.executable, "-c", writing], stdout=out, stderr=out) as writer,
        log.open("rb") as source,
        python("import time; print('up', flush=True); time.sleep(300)", stdin=source),
        python(reader_code, str(log)),
    ):
        try:
            wait_until(lambda: log.read_bytes(), "the writer to write")
            assert [process.pid for process in processes.holders_of(str(log))] == [writer.pid]
        finally:
            writer.kill()
    assert processes.holders_of(str(tmp_path / "none")) == []


def test_work_is_counted() -> None:
    code = "import sys\nprint('up', flush=True)\nopen('/bin/sh','rb').read()\nwhile True: pass"
    with python(code) as busy:
        read, cpu = processes.work_of([busy.pid])
        wait_until(lambda: processes.work_of([busy.pid])[1] > cpu, "processor time to be spent")
        assert processes.work_of([busy.pid])[0] >= read
    assert processes.work_of([busy.pid]) == (0, 0.0)


# ---------------------------------------------------------------------- listeners


def _listen(host: str, port: int, *, listening: bool = True) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((host, port))
    if listening:
        server.listen()
    return server


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "127.0.0.2"])
def test_listener_is_found_with_its_holder(host: str) -> None:
    port = free_port()
    assert listeners.port_problem(host, port) is None
    assert listeners.holder(port, host) is None
    with _listen(host, port):
        found = listeners.holder(port, host)
        assert found is not None
        assert found.pid == os.getpid()
        held = listeners.held_sockets(os.getpid())
        assert held is not None
        assert listeners.listening_inodes(port, host) <= held
        problem = listeners.port_problem(host, port)
        assert problem is not None
        assert "in use" in problem
    assert listeners.port_problem(host, port) is None


def test_wildcard_listener_gets_requests_for_every_address() -> None:
    port = free_port()
    with _listen("0.0.0.0", port):
        assert listeners.listening_inodes(port, "127.0.0.1")
        assert listeners.port_problem("127.0.0.1", port) is not None
    with _listen("127.0.0.2", port):
        assert not listeners.listening_inodes(port, "127.0.0.1")
        assert listeners.port_problem("127.0.0.1", port) is None


def test_ipv6_listener() -> None:
    port = free_port()
    try:
        server = _listen("::1", port)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with server:
        assert listeners.listening_inodes(port, "::1")
        assert listeners.port_problem("::1", port) is not None


def test_bound_socket_that_does_not_listen() -> None:
    port = free_port()
    with _listen("127.0.0.1", port, listening=False):
        problem = listeners.port_problem("127.0.0.1", port)
        assert problem is not None
        assert "does not listen yet" in problem


def test_time_wait_is_no_obstacle() -> None:
    port = free_port()
    with _listen("127.0.0.1", port) as server:
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # the side that closes first waits
        client.recv(1)
        client.close()
    assert listeners.port_problem("127.0.0.1", port) is None


def test_address_of_another_machine() -> None:
    problem = listeners.port_problem("192.0.2.1", free_port())
    assert problem is not None
    assert problem.startswith("cannot bind")


# ---------------------------------------------------------------------- shared memory


def test_shared_memory_is_removed_only_when_nobody_maps_it() -> None:
    path = Path(f"/dev/shm/kdeploy-test-{os.getpid()}")
    other = Path(f"/dev/shm/kdeploy-test-{os.getpid()}-other")
    try:
        path.write_bytes(bytes(4096))
        other.write_bytes(bytes(4096))
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            assert str(path) in shm.mapped_by([os.getpid()])
            assert str(other) not in shm.mapped_by([os.getpid()])
            assert shm.remove_unmapped({str(path)}) == []
        assert shm.remove_unmapped({str(path), "/dev/shm/not-there", "/etc/hostname"}) == [str(path)]
        assert other.exists()
    finally:
        path.unlink(missing_ok=True)
        other.unlink(missing_ok=True)


def test_supervisor_whose_starter_was_killed_before_it_could_speak() -> None:
    command = [sys.executable, "-P", "-m", "deploy.supervise"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
