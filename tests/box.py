"""A private kdeploy for one test: its own homes, a tiny checkpoint, profiles for the fake engine, and a leak check.

Everything goes through the installed `kdeploy`, as a user would call it.
"""

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FAKES = Path(__file__).parent / "fakes"
FAKE_VLLM = FAKES / "vllm"
KDEPLOY = Path(sys.executable).parent / "kdeploy"
LIMIT_S = 150.0  # of every wait; generous: the real engine took 54 s to be ready on a busy machine

# Homes that must never be the developer's own.
HOMES = (
    "HOME",
    "KDEPLOY_STATE_DIR",
    "KDEPLOY_DATA_DIR",
    "KDEPLOY_LEASE_DIR",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "XDG_DATA_HOME",
    "XDG_CACHE_HOME",
)

STATUS_KEYS = {
    "schema",
    "name",
    "profile",
    "launch",
    "state",
    "phase",
    "ready",
    "url",
    "model",
    "supervisor_pid",
    "pid",
    "started_at",
    "ready_at",
    "gpus",
    "load",
    "phases",
    "restarts",
    "exit",
    "diagnosis",
}
LOAD_KEYS = {"bytes_done", "bytes_total", "bytes_per_s", "shards_done", "shards_total", "eta_s", "source"}


class Result(NamedTuple):
    """What one command gave."""

    rc: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """stdout as the one JSON document that it must be."""
        return json.loads(self.stdout)


class Proc(NamedTuple):
    """One living process of the box."""

    pid: int
    title: str
    ppid: int
    sid: int
    ticks: int


def wait_until(condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Poll until `condition()` is true, and return its value."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {limit_s:g} s for: {what}"
        time.sleep(0.02)
    return value


PF_EXITING = 4  # of the flags in /proc/PID/stat


def read_proc(pid: int) -> Proc | None:
    """The process `pid` if it lives (a zombie does not, nor one that the kernel is just ending)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    if stat[0] in b"ZX" or int(stat[6]) & PF_EXITING:
        return None
    return Proc(pid, " ".join(title.split()), int(stat[1]), int(stat[3]), int(stat[19]))


def alive(pid: int) -> bool:
    """Whether `pid` runs; a zombie does not."""
    return read_proc(pid) is not None


GIVEN: set[int] = set()


def free_port() -> int:
    """A port that nobody uses now, below those that the kernel gives to connections, and never given twice here."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in GIVEN:
                GIVEN.add(port)
                return port


def write_shard(path: Path, names: list[str], kib: int) -> int:
    """A valid safetensors file with one F32 tensor for each name; its size."""
    count = kib * 256
    header = {}
    offset = 0
    for name in names:
        header[name] = {"dtype": "F32", "shape": [count], "data_offsets": [offset, offset + 4 * count]}
        offset += 4 * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))
    return offset


def write_checkpoint(folder: Path, shards: int = 4, kib: int = 16) -> Path:
    """A tiny checkpoint: config.json, an index and `shards` valid safetensors files."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["FakeForCausalLM"], "model_type": "fake"}))
    weights: dict[str, str] = {}
    total = 0
    for number in range(1, shards + 1):
        name = f"model-{number:05d}-of-{shards:05d}.safetensors"
        total += write_shard(folder / name, [f"layers.{number}.weight"], kib)
        weights[f"layers.{number}.weight"] = name
    index = {"metadata": {"total_size": total}, "weight_map": weights}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


class Box:
    """One private world. `root` holds everything of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.profiles = root / "config" / "kdeploy" / "profiles"
        self.profiles.mkdir(parents=True)
        self.model = write_checkpoint(root / "models" / "tiny")
        self.port = free_port()
        self.shm: set[str] = set()
        self.env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "NO_COLOR": "1",
            "HOME": str(root / "home"),
            "TMPDIR": str(root / "tmp"),
            "KDEPLOY_STATE_DIR": str(self.state),
            "KDEPLOY_DATA_DIR": str(root / "data"),
            "KDEPLOY_LEASE_DIR": str(root / "leases"),
            "XDG_CONFIG_HOME": str(root / "config"),
            "XDG_STATE_HOME": str(root / "xdg-state"),
            "XDG_DATA_HOME": str(root / "xdg-data"),
            "XDG_CACHE_HOME": str(root / "cache"),
        }
        for home in ("home", "tmp"):
            (root / home).mkdir()

    # ------------------------------------------------------------------ profiles

    def profile(self, name: str = "tiny", fake: str = "", keys: Mapping[str, Any] | None = None, /) -> Path:
        """Write the profile `name` for the fake engine on two CPU ranks, with `FAKE_VLLM=fake` and dotted `keys`."""
        document: dict[str, Any] = {
            "schema": 1,
            "name": name,
            "model": {"path": str(self.model), "served_name": f"{name}-model"},
            "engine": {"executable": str(FAKE_VLLM)},
            "parallel": {"tensor": 2},
            "hardware": {"gpus": 0},
            "serve": {"port": self.port},
            "env": {"FAKE_VLLM": f"max_life_s=240;device=cpu;watchdog_s=0.5;{fake}"},
            "health": {"interval_s": 0.2, "failures": 2, "timeout_s": 2},
            "canary": {"timeout_s": 60},
            "stop": {"drain_s": 5, "term_s": 10, "kill_s": 5},
        }
        for key, value in (keys or {}).items():
            section = document
            *parents, last = key.split(".")
            for parent in parents:
                section = section.setdefault(parent, {})
            section[last] = value
        path = self.profiles / f"{name}.yaml"
        path.write_text(json.dumps(document, indent=1))
        return path

    # ------------------------------------------------------------------ commands

    def environment(self, env: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """The environment of a command: the box's, with `env` over it (None takes a variable out)."""
        merged: dict[str, str | None] = {**self.env, **(env or {})}
        values = {name: value for name, value in merged.items() if value is not None}
        for home in HOMES:
            if not values.get(home, "").startswith(str(self.root)):
                raise AssertionError(f"{home} is not redirected into the box: {values.get(home)!r}")
        return values

    def run(self, *args: str, env: Mapping[str, str | None] | None = None, timeout: float = LIMIT_S) -> Result:
        """Call `kdeploy` and wait for its end."""
        done = subprocess.run(
            [KDEPLOY, *args],
            env=self.environment(env),
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    def ok(self, *args: str, env: Mapping[str, str | None] | None = None) -> Result:
        """Call `kdeploy` and insist on exit 0."""
        result = self.run(*args, env=env)
        assert result.rc == 0, f"kdeploy {' '.join(args)}: {result}"
        return result

    @contextlib.contextmanager
    def running(
        self, *args: str, shell: str | None = None, env: Mapping[str, str | None] | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """`kdeploy` in the background, for the length of the block; `shell` is done by sh before it."""
        words = [str(KDEPLOY), *args]
        process = subprocess.Popen(
            words if shell is None else ["sh", "-c", f'{shell}; exec "$@"', "sh", *words],
            env=self.environment(env),
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def up(self, name: str = "tiny", fake: str = "", keys: Mapping[str, Any] | None = None, /) -> dict[str, Any]:
        """Write a profile, bring it up, and return its status."""
        self.profile(name, fake, keys)
        status: dict[str, Any] = self.ok("up", name, "--json").json
        return status

    def start(self, name: str = "tiny", fake: str = "", keys: Mapping[str, Any] | None = None, /) -> None:
        """Write a profile and begin to load it, without waiting for anything."""
        self.profile(name, fake, keys)
        self.ok("up", name, "--detach")

    def down(self, *args: str) -> Result:
        """`kdeploy down`, insisting on exit 0."""
        return self.ok("down", *args)

    def status(self, name: str = "tiny") -> dict[str, Any]:
        """`kdeploy status NAME --json`."""
        status: dict[str, Any] = self.ok("status", name, "--json").json
        return status

    # ------------------------------------------------------------------ files

    def launches(self, name: str = "tiny") -> list[Path]:
        """Launch folders, oldest first."""
        parent = self.state / "deployments" / name / "launches"
        return sorted(path for path in parent.glob("*-*") if path.suffix != ".new")

    def launch(self, name: str = "tiny") -> Path:
        """The newest launch folder."""
        return self.launches(name)[-1]

    def journal(self, name: str = "tiny", folder: Path | None = None) -> list[dict[str, Any]]:
        """The whole records of a launch's journal, read as a stranger would."""
        records = []
        with contextlib.suppress(FileNotFoundError):
            for line in ((folder or self.launch(name)) / "events.jsonl").read_bytes().splitlines():
                with contextlib.suppress(ValueError):
                    record = json.loads(line)
                    if isinstance(record, dict) and "kind" in record:
                        records.append(record)
        return records

    def events(self, kind: str, name: str = "tiny", folder: Path | None = None) -> list[dict[str, Any]]:
        """The journal's records of one kind."""
        return [record for record in self.journal(name, folder) if record["kind"] == kind]

    def state_of(self, name: str = "tiny") -> str:
        """The last state that the journal names."""
        states = [record["state"] for record in self.journal(name) if "state" in record]
        return str(states[-1]) if states else ""

    def await_event(self, kind: str, name: str = "tiny", limit_s: float = LIMIT_S) -> dict[str, Any]:
        """Wait for the first record of a kind in the newest launch."""
        found: dict[str, Any] = wait_until(
            lambda: next(iter(self.events(kind, name)), None) if self._launched(name) else None,
            f"a record {kind!r} of {name}",
            limit_s,
        )
        return found

    def await_state(self, state: str, name: str = "tiny", limit_s: float = LIMIT_S) -> None:
        """Wait until the journal of the newest launch says `state`."""
        wait_until(lambda: self._launched(name) and self.state_of(name) == state, f"{name} to be {state}", limit_s)

    def await_phase(self, phase: str, name: str = "tiny") -> None:
        """Wait until a load has reached `phase`."""
        wait_until(
            lambda: (
                self._launched(name)
                and any(record.get("phase") == phase for record in self.journal(name))
                and bool(self.events("spawned", name))
            ),
            f"{name} to reach {phase}",
        )

    def await_released(self, name: str = "tiny") -> None:
        """Wait until no supervisor is left."""
        wait_until(lambda: not self.supervisors(name), f"the supervisor of {name} to end")

    def _launched(self, name: str) -> bool:
        return bool(self.launches(name))

    # ------------------------------------------------------------------ processes

    def processes(self, under: Path | None = None) -> list[Proc]:
        """Living processes that belong here: by working folder, or by what they write to."""
        prefix = str(under or self.root)
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            for link in ("cwd", "fd/1", "fd/2"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{entry}/{link}").startswith(prefix + "/"):
                        process = read_proc(int(entry))
                        found += [process] if process else []
                        break
        return found

    def supervisors(self, name: str = "tiny") -> list[int]:
        """Living supervisors of a deployment."""
        parent = self.state / "deployments" / name
        return [process.pid for process in self.processes(parent) if process.title.endswith("-m deploy.supervise")]

    def supervisor(self, name: str = "tiny") -> int:
        """The one supervisor."""

        def alone() -> int | None:
            """A child of it that has not executed its own program yet looks like a second one."""
            found = self.supervisors(name)
            return found[0] if len(found) == 1 else None

        return int(wait_until(alone, f"one supervisor of {name}"))

    def engine(self, name: str = "tiny") -> list[Proc]:
        """Living processes of the engine."""
        parent = self.state / "deployments" / name
        return [process for process in self.processes(parent) if "deploy.supervise" not in process.title]

    def api(self, name: str = "tiny") -> int:
        """The API server's pid."""
        return int(self.events("spawned", name)[-1]["pid"])

    def core(self, name: str = "tiny") -> int:
        """EngineCore's pid."""
        (pid,) = (process.pid for process in self.engine(name) if process.title == "VLLM::EngineCore")
        return pid

    def workers(self, name: str = "tiny") -> list[int]:
        """The ranks' pids."""
        return [process.pid for process in self.engine(name) if process.title.startswith("VLLM::Worker")]

    def note_shm(self, name: str = "tiny") -> set[str]:
        """Files of /dev/shm that the engine maps; the leak check wants them gone in the end."""
        found = set()
        for process in self.engine(name):
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                    if "/dev/shm/" in line:
                        found.add(line.split(None, 5)[5])
        self.shm |= found
        return found

    def sockets_of(self, pid: int) -> list[Path]:
        """Socket files that a process has bound."""
        held = set()
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                held.add(os.readlink(link))
        lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        return [Path(fields[7]) for fields in lines if len(fields) == 8 and f"socket:[{fields[6]}]" in held]

    def await_no_engine(self, name: str = "tiny", limit_s: float = LIMIT_S) -> None:
        """Wait until no process of the engine is left."""
        wait_until(lambda: not self.engine(name), f"every process of {name} to end", limit_s)

    def recorded(self) -> list[Proc]:
        """Living processes that any journal of the box names by pid and start time."""
        found = []
        for path in self.state.glob("deployments/*/launches/*"):
            pairs = [record.get("identity") for record in self.events("spawned", folder=path)]
            pairs += [member[:2] for record in self.events("members", folder=path) for member in record["members"]]
            for pid, ticks in filter(None, pairs):
                process = read_proc(pid)
                if process is not None and process.ticks == ticks and pid != os.getpid():
                    found.append(process)
        return found

    def noted(self) -> set[str]:
        """Files of engines that the journals of all launches name."""
        found: set[str] = set()
        for journal in self.state.glob("**/events.jsonl"):
            for line in journal.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError, AttributeError, KeyError, TypeError):
                    record = json.loads(line)
                    found.update(record["files"] if record["kind"] in ("spawning", "files") else ())
        return found

    def end_everything(self) -> list[str]:
        """End what is left of the box; what was."""
        left: dict[int, Proc] = {}
        # supervisors first: they would start what is ended here again
        for _ in range(50):
            now = {process.pid: process for process in [*self.processes(), *self.recorded()]}
            if not now:
                break
            left |= now
            order = sorted(now.values(), key=lambda process: "deploy.supervise" not in process.title)
            for process in order:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.02)
        told = [f"pid {process.pid}: {process.title[:100]}" for process in left.values()]
        for path in sorted(self.shm | self.noted()):
            if os.path.isdir(path):
                told.append(path)
                shutil.rmtree(path)
            elif os.path.exists(path):
                told.append(path)
                os.unlink(path)
        return told

    # ------------------------------------------------------------------ HTTP

    def request(self, method: str, path: str, body: Any = None, *, timeout: float = LIMIT_S) -> tuple[int, str]:
        """One request to the served port."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"} if text else {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    @contextlib.contextmanager
    def asking(self, model: str) -> Iterator[None]:
        """One completion under way in the background, whatever comes of it."""

        def ask() -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.request("POST", "/v1/completions", {"model": model, "prompt": "count", "max_tokens": 8})

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        yield
        thread.join(LIMIT_S)

    def chat(self, text: str, name: str = "tiny", **options: Any) -> tuple[int, str]:
        """One chat request."""
        messages = [{"role": "user", "content": text}]
        return self.request("POST", "/v1/chat/completions", {"model": f"{name}-model", "messages": messages, **options})
