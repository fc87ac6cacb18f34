"""What a stalled engine is doing, taken before it is ended: states, kernel waits and stacks of its ranks."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from deploy.host.gpus import NoGpus, read_machine
from deploy.host.processes import read_process
from deploy.plan.launch_plan import Gpu

STACK_LIMIT_S = 5.0
STACKS = 4
STACK_LINES = 6
FULL_PERCENT = 95  # as NVML rounds a kernel that spins
WAITING_SHARE = 0.4  # of the power cap: a GPU that only waits in a collective draws 120 to 140 of 600 W
# Where the kernel parks a reader; everything else that sleeps waits for another process.
READING = ("pipe_", "fifo", "wait_for_partner", "io_schedule", "folio_wait", "rpc_", "nfs", "fuse", "read_", "lookup")


class Rank(NamedTuple):
    """One rank: its title, its state letter, and the kernel function that it sleeps in (0 or ? where not told)."""

    pid: int
    title: str
    state: str
    wchan: str
    shard: int | None = None

    @property
    def words(self) -> str:
        """In one line."""
        shard = "" if self.shard is None else f", in shard {self.shard + 1}"
        where = "" if self.wchan in ("0", "?") else f", waits in {self.wchan}"
        return f"{self.title} (pid {self.pid}): state {self.state}{where}{shard}"


class GpuLook(NamedTuple):
    """One GPU now: utilization in percent, watts and its cap; None where not told."""

    number: int
    percent: int | None
    power_w: int | None
    cap_w: int | None

    @property
    def waits(self) -> bool | None:
        """Whether a kernel runs on it that does no work; None where that cannot be told."""
        if self.percent is None or self.power_w is None or not self.cap_w:
            return None
        return self.percent >= FULL_PERCENT and self.power_w < WAITING_SHARE * self.cap_w

    @property
    def words(self) -> str:
        """In one line."""
        return f"GPU {self.number}: {self.percent} %, {self.power_w} of {self.cap_w} W"


def looks_of(gpus: Sequence[Gpu]) -> list[GpuLook]:
    """These GPUs now; those that the driver does not tell of are left out. Waits for the driver, 20 s at most."""
    if not gpus:
        return []
    try:
        found = {gpu.uuid: gpu for gpu in read_machine().gpus}
    except NoGpus:
        return []
    return [
        GpuLook(gpu.index, state.get("utilization_percent"), state.get("power_w"), state.get("power_cap_w"))
        for gpu in gpus
        if (state := found.get(gpu.uuid)) is not None and state.problem is None
    ]


def look(ranks: Sequence[tuple[int, str]], shards: dict[int, int]) -> list[Rank]:
    """The ranks (pid, title) now. `shards`: the file that each pid has mapped last."""
    found = []
    for pid, title in ranks:
        process = read_process(pid)
        if process is not None:
            found.append(Rank(pid, title, process.state, _wchan(pid), shards.get(pid)))
    return found


def _wchan(pid: int) -> str:
    """The wait of its threads: a reader among them, else the main thread's."""
    words = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task")[:256]:
            with open(f"/proc/{pid}/task/{thread}/wchan") as file:
                words.append(file.read().strip() or "0")
    except OSError:
        pass
    return next((word for word in words if word.startswith(READING)), words[0] if words else "?")


def suspect(ranks: Sequence[Rank]) -> Rank | None:
    """The rank that the others wait for, where one stands out: asleep in the kernel, stopped, reading, or behind."""
    for test in (
        lambda rank: rank.state in "DTt",
        lambda rank: rank.wchan.startswith(READING),
        lambda rank: rank.shard is not None and rank.shard < max(other.shard or 0 for other in ranks),
    ):
        hits = [rank for rank in ranks if test(rank)]
        if hits:
            return hits[0]
    return None


def stacks(ranks: Sequence[Rank]) -> list[str]:
    """The top of the main thread's Python stack of some ranks, by py-spy where it is installed and may look."""
    program = shutil.which("py-spy")
    told: list[str] = []
    for rank in ranks[:STACKS] if program else ():
        try:
            done = subprocess.run(
                [str(program), "dump", "--nonblocking", "--pid", str(rank.pid)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=STACK_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        lines = [line.strip() for line in done.stdout.decode(errors="replace").splitlines()]
        frames = [line for line in lines if "(" in line and not line.startswith(("Process", "Python", "Thread"))]
        if frames:
            told.append(f"{rank.title} stack: " + " < ".join(frames[:STACK_LINES]))
    return told
