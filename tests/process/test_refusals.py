"""Bad input and a bad world: refused before anything is started, in three parts, with the right exit code."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.box import FAKE_VLLM, KDEPLOY, Box, Result, free_port, wait_until


def _refused(result: Result, code: int, *words: str) -> None:
    assert result.rc == code, result
    assert result.stderr.startswith("error: ")
    assert "\n  -> " in result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


def _nothing_started(box: Box) -> None:
    assert not box.processes()
    assert not list(box.state.glob("deployments/*/launches/*"))


def test_unknown_profile(box: Box) -> None:
    box.profile("kimi")
    _refused(box.run("up", "kimmi"), 2, "kimi")
    _nothing_started(box)


def test_broken_profile(box: Box) -> None:
    path = box.profile()
    for text, place in (("schema: 1\nmodel: {path: [1\n", ":3:1:"), ("schema: 1\nserve: {port: 'many'}\n", ":2:")):
        path.write_text(text)
        result = box.run("up", "tiny")
        assert result.rc == 2
        assert f"{path}{place}" in result.stderr
    _nothing_started(box)


def test_error_as_json(box: Box) -> None:
    result = box.run("up", "nonesuch", "--json")
    assert result.rc == 2
    assert set(result.json["error"]) >= {"what", "evidence", "fix", "exit_code"}
    assert result.json["error"]["exit_code"] == 2


def test_missing_executable(box: Box) -> None:
    box.profile("tiny", "", {"engine.executable": str(box.root / "no-such-vllm")})
    _refused(box.run("up", "tiny"), 6, "no-such-vllm")
    box.profile("tiny", "", {"engine.executable": "no-such-vllm"})
    _refused(box.run("up", "tiny"), 6, "PATH")
    _nothing_started(box)


def test_executable_without_permission(box: Box) -> None:
    copy = box.root / "vllm"
    shutil.copy(FAKE_VLLM, copy)
    copy.chmod(0o644)
    box.profile("tiny", "", {"engine.executable": str(copy)})
    _refused(box.run("up", "tiny"), 6, "chmod +x")
    _nothing_started(box)


def test_executable_that_cannot_be_started(box: Box) -> None:
    """It looks like a program, and the kernel does not take it: seen only when it is started."""
    broken = box.root / "vllm"
    broken.write_bytes(b"#!/no/such/interpreter\n")
    broken.chmod(0o755)
    box.profile("tiny", "", {"engine.executable": str(broken), "restart.policy": "on-failure"})
    result = box.run("up", "tiny")
    assert result.rc == 6
    assert "cannot-spawn" in result.stderr
    assert box.status()["state"] == "failed"
    assert len(box.launches()) == 1
    box.await_released()
    assert box.noted()
    assert not [path for path in box.noted() if os.path.exists(path)]
    box.down("tiny")


def test_missing_or_damaged_model(box: Box) -> None:
    box.profile("tiny", "", {"model.path": str(box.root / "nowhere")})
    _refused(box.run("up", "tiny"), 6, "nowhere", "does not exist")
    shard = box.model / "model-00002-of-00004.safetensors"
    box.profile()
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-10])
    _refused(box.run("up", "tiny"), 6, str(shard), "truncated")
    shard.unlink()
    _refused(box.run("up", "tiny"), 6, str(shard))
    shard.write_bytes(whole)
    box.ok("up", "tiny")
    box.down("tiny")


def test_missing_secret(box: Box) -> None:
    box.profile("tiny", "", {"env.VLLM_API_KEY": "${env:NOT_SET_ANYWHERE}"})
    _refused(box.run("up", "tiny"), 6, "NOT_SET_ANYWHERE")
    _nothing_started(box)


# ---------------------------------------------------------------------- the port


@contextlib.contextmanager
def _socket_on(port: int, *, listening: bool) -> Iterator[None]:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        if listening:
            taken.listen()
        yield


def test_port_taken_names_its_process(box: Box) -> None:
    box.profile()
    with _socket_on(box.port, listening=True):
        _refused(box.run("up", "tiny"), 4, f"{box.port}", f"pid {os.getpid()}")
    _nothing_started(box)


def test_port_bound_by_one_that_does_not_listen_yet(box: Box) -> None:
    box.profile()
    with _socket_on(box.port, listening=False):
        _refused(box.run("up", "tiny"), 4, f"{box.port}", "does not listen yet")
    _nothing_started(box)


def test_port_of_another_deployment_that_loads(box: Box) -> None:
    box.start("one", "import_s=60")
    box.profile("two")
    _refused(box.run("up", "two"), 4, "belongs to the deployment one")
    box.ok("up", "two", "--port", str(free_port()))
    box.down("--all")


def test_port_that_the_engine_finds_taken(box: Box) -> None:
    """Taken between our look and the engine's bind."""
    box.start("tiny", "import_s=1")
    box.await_event("spawned")
    with _socket_on(box.port, listening=True):
        result = box.run("wait", "tiny", "--json")
    assert result.rc == 1
    assert result.json["diagnosis"]["cause"] == "port-in-use"
    box.await_released()


SERVER = """
import http.server, socket, sys
class Server(http.server.HTTPServer):
    def server_bind(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        super().server_bind()
class Always200(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *words): pass
Server(("127.0.0.1", int(sys.argv[1])), Always200).serve_forever()
"""


def test_foreign_listener_during_a_load_is_not_our_health(box: Box) -> None:
    """Somebody else answers 200 at our port while the engine has bound and not listened (SO_REUSEADDR allows it)."""
    box.start("tiny", "import_s=1.5;load_s=2")
    box.await_event("spawned")
    stranger = subprocess.Popen([sys.executable, "-c", SERVER, str(box.port)])
    try:
        record = box.await_event("foreign-listener")
        assert record["port"] == box.port
        assert box.status()["ready"] is False
        wait_until(lambda: box.status()["state"] == "failed", "the engine to find its port taken")
    finally:
        stranger.kill()
        stranger.wait()
    box.await_released()
    assert stranger.returncode == -9  # by us, not by kdeploy


# ---------------------------------------------------------------------- the state folder

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def _as_nobody(box: Box, *args: str) -> Result:
    """A command as a user without rights, also where the tests run as root."""
    words = [str(KDEPLOY), *args]
    if os.getuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("running as root without setpriv")
        probe = subprocess.run([*NOBODY, KDEPLOY, "--version"], capture_output=True, check=False)
        for parent in [box.root, *box.root.parents][:-1]:
            if parent.stat().st_mode & 0o001 == 0:
                pytest.skip(f"{parent} is closed to other users")
        if probe.returncode:
            pytest.skip("the interpreter of the tests is closed to other users")
        words = [*NOBODY, *words]
    done = subprocess.run(
        words, env=box.environment(), cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def open_box(box: Box) -> Box:
    """A box whose folders other users may enter, but not write."""
    for parent in [box.root, *box.root.parents]:
        if str(parent).startswith("/tmp/") and os.access(parent, os.W_OK) and parent != Path("/tmp"):
            parent.chmod(0o755)
    return box


def test_state_folder_cannot_be_made(open_box: Box) -> None:
    box = open_box
    box.profile()
    box.root.chmod(0o555)
    try:
        _refused(_as_nobody(box, "up", "tiny"), 6, str(box.state), "KDEPLOY_STATE_DIR")
    finally:
        box.root.chmod(0o755)
    _nothing_started(box)


def test_state_folder_is_read_only(open_box: Box) -> None:
    box = open_box
    box.profile()
    (box.state / "deployments").mkdir(parents=True)
    (box.state / "deployments").chmod(0o555)
    box.state.chmod(0o555)
    try:
        _refused(_as_nobody(box, "up", "tiny"), 6, "cannot write", "KDEPLOY_STATE_DIR")
        assert _as_nobody(box, "ps", "--json").json == {"schema": 1, "deployments": []}
    finally:
        box.state.chmod(0o755)
        (box.state / "deployments").chmod(0o755)


def test_state_folder_below_a_file(box: Box) -> None:
    box.profile()
    (box.root / "file").write_text("")
    result = box.run("up", "tiny", env={"KDEPLOY_STATE_DIR": str(box.root / "file" / "state")})
    _refused(result, 6, "file", "KDEPLOY_STATE_DIR")
    _nothing_started(box)


@pytest.fixture
def mounted(box: Box) -> Iterator[Box]:
    """A box whose state folder is a file system of its own, 1 MiB small."""
    box.state.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(box.state)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"mount is not permitted: {done.stderr.decode().strip()}")
    yield box
    left = box.end_everything()
    subprocess.run(["umount", "-l", box.state], check=True)
    assert not left


def test_read_only_file_system(mounted: Box) -> None:
    box = mounted
    box.up()
    box.down("tiny")
    subprocess.run(["mount", "-o", "remount,ro", box.state], check=True)
    _refused(box.run("up", "tiny"), 6, "cannot write", "KDEPLOY_STATE_DIR")
    assert box.status()["state"] == "stopped"
    assert box.ok("ps", "--json").json["deployments"][0]["name"] == "tiny"
    assert box.ok("logs", "tiny").stdout
    subprocess.run(["mount", "-o", "remount,rw", box.state], check=True)


def _fill(box: Box) -> Path:
    """Fill the disk, and the rest of the page that the journal has already; the file to remove again."""
    filler = box.state / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    journal = box.launch() / "events.jsonl"
    with journal.open("ab", buffering=0) as file:
        file.write(b" " * (-journal.stat().st_size % 4096 - 1) + b"\n")
    return filler


def test_down_on_a_full_disk(mounted: Box) -> None:
    """The engine is ended; that its end cannot be recorded is said, and made good later."""
    box = mounted
    box.up()
    filler = _fill(box)
    _refused(box.run("down", "tiny"), 6, "cannot be written", "the engine has ended")
    box.await_no_engine()
    filler.unlink()
    box.await_released()
    box.down("tiny")
    assert box.status()["state"] == "stopped"


def test_full_disk(mounted: Box) -> None:
    """The engine serves on while nothing can be written; what happens meanwhile is journalled when there is room."""
    box = mounted
    box.up()
    filler = _fill(box)
    journal = box.launch() / "events.jsonl"
    size = journal.stat().st_size
    assert box.chat("What is 2 + 2?")[0] == 200
    box.profile("other", "", {"serve.port": free_port()})
    _refused(box.run("up", "other"), 6)
    assert box.status()["state"] == "ready"
    # a rank dies: its end cannot be journalled now, and is noticed all the same
    os.kill(box.workers()[-1], 9)
    box.await_no_engine()
    assert journal.stat().st_size == size
    filler.unlink()
    box.await_released()
    status = box.status()
    assert status["state"] == "failed"
    assert status["diagnosis"]["cause"]
    box.down("tiny")


# ---------------------------------------------------------------------- engines of odd kinds


def test_wrapper_script_without_exec(box: Box) -> None:
    """The shell in between takes the SIGTERM and dies of it; the engine below must follow."""
    wrapper = box.root / "vllm-wrapper"
    wrapper.write_text(f'#!/bin/sh\necho from the wrapper\n{FAKE_VLLM} "$@"\necho never\n')
    wrapper.chmod(0o755)
    box.up("tiny", "", {"engine.executable": str(wrapper)})
    assert box.chat("What is 2 + 2?")[0] == 200
    box.down("tiny")
    assert not box.engine()
    assert box.status()["state"] == "stopped"


def test_engine_gets_what_the_plan_says_and_nothing_else(box: Box) -> None:
    told = box.root / "argv.json"
    box.profile("tiny", "", {"env.FAKE_VLLM_ARGV_FILE": str(told), "args": {"enforce-eager": True}})
    result = box.run(
        "up", "tiny", env={"NCCL_DEBUG": "INFO", "PYTHONPATH": "/nowhere", "MY_OWN": "x", "HF_HOME": "/hf"}
    )
    assert result.rc == 0
    assert "not passed on: NCCL_DEBUG" in result.stderr
    seen = json.loads(told.read_text())
    assert seen["argv"][1:3] == ["serve", str(box.model)]
    assert "--enforce-eager" in seen["argv"]
    assert not {"NCCL_DEBUG", "PYTHONPATH", "MY_OWN", "CUDA_VISIBLE_DEVICES"} & set(seen["env"])
    assert seen["env"]["HF_HOME"] == "/hf"
    assert seen["cwd"] == str(box.launch())
    box.down("tiny")


def test_a_flood_of_log_does_not_block_the_load(box: Box) -> None:
    box.up("tiny", "log_flood_mb=20;log_bytes=ansi+crglue+cut_utf8+long_line")
    assert (box.launch() / "engine.log").stat().st_size > 20 << 20
    box.down("tiny")
