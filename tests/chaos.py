"""The chaos table: every process of a deployment, in every phase, ended or held, and what must come of it.

    ./scripts/chaos            walks the whole table against the fake engine and prints it

One cell is one deployment on two GPUs of the fake NVML library. It is brought into the phase, one process gets the
signal, and the state that a user is told is compared with EXPECTED. Then `down` must leave no process, no lease, no GPU
memory, no shared-memory file, no socket file and no cgroup. A held process (SIGSTOP) is let go again after the
health limit is long over.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from tests.box import KDEPLOY, Box, alive, free_port, wait_until

TARGETS = ("api", "core", "worker", "supervisor", "cli")
PHASES = ("spawn", "init", "weights", "compile", "warmup", "canary", "ready", "stopping")
SIGNALS = ("SIGKILL", "SIGTERM", "SIGSTOP")
LOADING = PHASES[:6]
HELD_S = 3.0  # longer than it takes the box's health settings to call an engine unhealthy

# How the fake engine is made to stay in a phase: long enough to be hit there.
STAY = {
    "spawn": "import_s={s}",
    "init": "init_s={s}",
    "weights": "load_s={s}",
    "compile": "compile_s={s}",
    "warmup": "warmup_s={s}",
    "canary": "prefill_s={s}",
    "ready": "token_s=0.002",
    "stopping": "stop_s={s}",
}


def expected(target: str, phase: str, name: str) -> str | None:
    """What must come of it; None where that process does not exist yet. `A > B`: A while it is held, then B."""
    if target in ("core", "worker") and phase == "spawn":
        return None
    if target == "supervisor" and name == "SIGTERM":
        return "stopped"  # how a stop is asked for
    if phase == "stopping":
        return "stopped"
    if target in ("supervisor", "cli"):
        return "ready"
    if name == "SIGSTOP":
        return "unhealthy > ready" if phase == "ready" else "ready"
    if target == "api" and name == "SIGTERM" and phase in LOADING[1:5]:
        return "ready"  # vLLM swallows it while it initialises
    return "failed"


class Outcome(NamedTuple):
    """What came of one cell: the states told, seconds from the signal to the journal's word (engine deaths only), and
    what `down` left behind."""

    target: str
    phase: str
    signal: str
    told: str
    noticed_s: float | None
    left: list[str]

    @property
    def right(self) -> bool:
        """Whether it is what must come of it."""
        return self.told == expected(self.target, self.phase, self.signal) and not self.left


def cells() -> list[tuple[str, str, str]]:
    """Every cell in which the target exists."""
    return [
        (target, phase, name)
        for target in TARGETS
        for phase in PHASES
        for name in SIGNALS
        if expected(target, phase, name) is not None
    ]


def walk(target: str, phase: str, name: str, root: Path, nvml: Path) -> Outcome:
    """One cell, in a box of its own below `root`."""
    root.mkdir(parents=True)
    box = Box(root)
    machine = root / "machine.txt"
    machine.write_text("charge_holders 1000\n")
    box.env |= {"LD_LIBRARY_PATH": str(nvml), "FAKE_NVML": str(machine)}
    goes_on = expected(target, phase, name) != "failed"
    stay = STAY[phase].format(s=2.5 if goes_on else 60)
    keys = {
        "hardware.gpus": 2,
        "serve.port": free_port(),
        "health.timeout_s": 0.5,
        "health.stuck_s": 1,
        "canary.timeout_s": 30,
        "stop.drain_s": 0.5,
    }
    box.profile("tiny", f"device=cuda;shm=leak;sockets=1;watchdog_s=30;{stay}", keys)
    box.port = int(keys["serve.port"])
    try:
        return _walk(box, target, phase, name)
    except AssertionError as error:
        raise AssertionError(f"{target} {name} in {phase}: {error}; its command said: {_said(box)}") from error
    finally:
        box.end_everything()


def _walk(box: Box, target: str, phase: str, name: str) -> Outcome:
    with contextlib.ExitStack() as stack:
        cli = stack.enter_context(_brought_to(box, phase))
        pid = _find(box, target, cli)
        box.note_shm()
        sockets = box.sockets_of(box.api()) if phase != "spawn" else []
        at = time.time()
        os.kill(pid, signal.Signals[name])
        stack.enter_context(
            box.asking("tiny-model") if _needs_traffic(target, phase, name) else contextlib.nullcontext()
        )
        told = ""
        if name == "SIGSTOP":
            if expected(target, phase, name) == "unhealthy > ready":
                with contextlib.suppress(AssertionError):  # then the table shows that it was not told
                    box.await_state("unhealthy")
                    told = "unhealthy > "
            else:
                time.sleep(HELD_S)
            if alive(pid):
                os.kill(pid, signal.SIGCONT)
        told += _settled(box, str(expected(target, phase, name)).rpartition(" ")[2])
        noticed = _noticed(box, pid, at) if target in ("api", "core", "worker") and told == "failed" else None
    left = _left_after_down(box) + [f"socket file {path}" for path in sockets if path.exists()]
    return Outcome(target, phase, name, told, noticed, left)


def _said(box: Box) -> str:
    path = box.root / "said.txt"
    return path.read_text()[-1000:] if path.exists() else ""


@contextlib.contextmanager
def _brought_to(box: Box, phase: str) -> Iterator[subprocess.Popen[bytes]]:
    """A deployment in `phase`, and a command that follows it there."""
    follow = ["up", "tiny"]
    if phase in ("ready", "stopping"):
        box.ok("up", "tiny")
        box.note_shm()
        follow = ["logs", "-f", "tiny"] if phase == "ready" else ["down", "tiny"]
    with open(box.root / "said.txt", "ab") as said:
        process = subprocess.Popen(
            [str(KDEPLOY), *follow],
            env=box.environment(),
            cwd=box.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
    try:
        if phase == "stopping":
            box.await_event("signal")
        elif phase == "spawn":
            box.await_event("spawned")
        elif phase != "ready":
            box.await_phase(phase)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def _find(box: Box, target: str, cli: subprocess.Popen[bytes]) -> int:
    if target == "cli":
        return cli.pid
    if target == "supervisor":
        return box.supervisor()
    if target == "api":
        return box.api()
    title = "VLLM::EngineCore" if target == "core" else "VLLM::Worker_TP1"

    def recorded() -> int | None:
        """Its pid once the supervisor knows it: what was never seen cannot be noticed."""
        rows = [row for record in box.events("members") for row in record["members"]]
        return next((pid for pid, _, words in rows if words == title and alive(pid)), None)

    return int(wait_until(recorded, f"{title} to be recorded"))


def _needs_traffic(target: str, phase: str, name: str) -> bool:
    """A rank that stands still is found by a request that does not move."""
    return name == "SIGSTOP" and phase == "ready" and target in ("core", "worker")


def _settled(box: Box, wanted: str) -> str:
    """The state in which it comes to rest, as commands tell it; asking is also what finds an engine alone."""
    rest = {"ready", "stopped", "failed"} if wanted == "ready" else {"stopped", "failed"}
    state = ""

    def told() -> bool:
        nonlocal state
        status = box.run("status", "tiny", "--json")
        state = str(status.json["state"]) if status.rc == 0 else ""
        return state in rest

    with contextlib.suppress(AssertionError):  # then the state that it kept is what the table shows
        wait_until(told, f"tiny to be {wanted}")
    if state in ("stopped", "failed"):
        box.await_released()
    return state


def _noticed(box: Box, pid: int, at: float) -> float | None:
    """Seconds from the signal to the first record that tells of the death."""
    for record in box.journal():
        if record["kind"] == "exited" or (record["kind"] == "process-ended" and record.get("pid") == pid):
            return max(0.0, datetime.fromisoformat(record["at"]).timestamp() - at)
    return None


def _left_after_down(box: Box) -> list[str]:
    """What is there after `down` that should not be."""
    result = box.run("down", "tiny")
    left = [] if result.rc in (0, 3) else [f"down: exit {result.rc}: {result.stderr.strip()}"]
    left += [f"process {process.pid} {process.title}" for process in box.processes()]
    left += [f"file {path}" for path in box.shm | box.noted() if os.path.exists(path)]
    gpus = box.run("gpus", "--json").json["gpus"]
    left += [f"lease of GPU {gpu['index']}" for gpu in gpus if gpu["lease"]]
    mine = {process.pid for process in box.recorded()}
    held = [(gpu["index"], entry) for gpu in gpus for entry in gpu["processes"] or []]
    left += [f"{entry['mib']} MiB of pid {entry['pid']} on GPU {gpu}" for gpu, entry in held if entry["pid"] in mine]
    groups = {record.get("cgroup") for launch in box.launches() for record in box.events("spawning", folder=launch)}
    left += [f"cgroup {group}" for group in groups if group and os.path.exists(group)]
    return left


def table(outcomes: list[Outcome]) -> str:
    """The table for people: a line for each target and signal, a column for each phase."""
    found = {outcome[:3]: outcome for outcome in outcomes}
    width = 19
    lines = [f"{'':<22}" + "".join(f"{phase:<{width}}" for phase in PHASES)]
    for target in TARGETS:
        for name in SIGNALS:
            row = f"{target:<12}{name:<10}"
            for phase in PHASES:
                outcome = found.get((target, phase, name))
                words = "-" if outcome is None else outcome.told
                if outcome is not None and outcome.noticed_s is not None:
                    words += f" {outcome.noticed_s:.2f} s"
                if outcome is not None and not outcome.right:
                    words += " WRONG"
                row += f"{words:<{width}}"
            lines.append(row.rstrip())
    return "\n".join(lines)
