"""Processes by identity, not by name: /proc readings, the tree of an engine, signals through pidfds.

An identity is (pid, start ticks); with the boot id beside it, it is unique for ever. vLLM's process titles
overwrite the argument and environment blocks, so neither is ever used to decide whose a process is.
"""

import os
import signal
from collections.abc import Collection, Iterable
from typing import NamedTuple

DEAD_STATES = "ZX"


class Identity(NamedTuple):
    """One process for its whole life: pid and start time in clock ticks since boot (field 22 of stat)."""

    pid: int
    ticks: int


class Process(NamedTuple):
    """One line of /proc/PID/stat, as far as we need it."""

    pid: int
    ticks: int
    name: str
    state: str
    ppid: int
    pgid: int
    sid: int
    threads: int = 1

    @property
    def identity(self) -> Identity:
        """Its identity."""
        return Identity(self.pid, self.ticks)

    @property
    def alive(self) -> bool:
        """A zombie is not alive: it holds no memory and runs no code, unless only its main thread has ended."""
        return self.state not in DEAD_STATES or self.threads > 1


def boot_id() -> str:
    """The kernel's id of this boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def read_process(pid: int) -> Process | None:
    """The process `pid` now, or None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read().decode(errors="replace")
    except OSError:
        return None
    # the name is in parentheses and may itself hold spaces and parentheses
    head, _, tail = line.rpartition(")")
    fields = tail.split()
    return Process(
        pid=pid,
        ticks=int(fields[19]),
        name=head.partition("(")[2],
        state=fields[0],
        ppid=int(fields[1]),
        pgid=int(fields[2]),
        sid=int(fields[3]),
        threads=int(fields[17]),
    )


def identity_of(pid: int) -> Identity | None:
    """The identity of `pid` now."""
    process = read_process(pid)
    return process.identity if process else None


def is_alive(identity: Identity) -> bool:
    """Whether exactly this process still runs (a zombie does not)."""
    process = read_process(identity.pid)
    return process is not None and process.identity == identity and process.alive


def snapshot() -> dict[int, Process]:
    """Every process that this PID namespace shows."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            process = read_process(int(entry))
            if process is not None:
                found[process.pid] = process
    return found


def tree(
    leader: Identity | None,
    known: Collection[Identity],
    processes: dict[int, Process],
    *,
    reaper: int | None = None,
    spared: Collection[int] = (),
) -> list[Process]:
    """The living processes of one engine.

    The union of: known identities, members of the engine's session, and descendants of all of these. The
    session number is the leader's pid; it counts only while a recorded identity still lives in that session,
    because a session number cannot be reused as long as the session has a member.

    Args:
        leader: the engine's first process, which leads its session.
        known: identities recorded earlier as belonging to the engine.
        processes: a `snapshot()`.
        reaper: our own pid when we are the subreaper: our children other than `spared` are the engine's orphans.
        spared: pids below `reaper` that are not the engine's.
    """
    recorded = set(known)
    if leader is not None:
        recorded.add(leader)
    mine = {
        identity.pid
        for identity in recorded
        if (process := processes.get(identity.pid)) is not None and process.identity == identity
    }
    if leader is not None and any(processes[pid].sid == leader.pid for pid in mine):
        mine.update(pid for pid, process in processes.items() if process.sid == leader.pid)
    if reaper is not None:
        mine.update(pid for pid, process in processes.items() if process.ppid == reaper and pid not in spared)
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.ppid, []).append(process.pid)
    queue = list(mine)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in mine:
                mine.add(child)
                queue.append(child)
    return [processes[pid] for pid in sorted(mine) if processes[pid].alive]


def holders_of(path: str) -> list[Process]:
    """Our user's processes that write their output to the file `path`: how an engine is found whose pid was never
    recorded, or a worker that left its session."""
    try:
        wanted = os.stat(path)
    except OSError:
        return []
    found = []
    for process in snapshot().values():
        if any(_writes_to(process.pid, fd, wanted) for fd in (1, 2)):
            found.append(process)
    return found


def _writes_to(pid: int, fd: int, file: os.stat_result) -> bool:
    try:
        held = os.stat(f"/proc/{pid}/fd/{fd}")
        if (held.st_dev, held.st_ino) != (file.st_dev, file.st_ino) or os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return False
        with open(f"/proc/{pid}/fdinfo/{fd}") as info:
            flags = next(int(line.split()[1], 8) for line in info if line.startswith("flags:"))
    except (OSError, StopIteration, ValueError):
        return False
    return flags & os.O_ACCMODE != os.O_RDONLY


def work_of(pids: Iterable[int]) -> tuple[int, float]:
    """Bytes read (by any means) and processor seconds used by these processes together, as far as readable."""
    read, ticks = 0, 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/io", "rb") as file:
                counters = dict(line.split(b": ") for line in file.read().splitlines())
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (OSError, ValueError):
            continue
        # read_bytes sees page faults of mapped weights, rchar sees read calls that the page cache answered
        read += max(int(counters.get(b"read_bytes", 0)), int(counters.get(b"rchar", 0)))
        ticks += int(fields[11]) + int(fields[12])
    return read, ticks / os.sysconf("SC_CLK_TCK")


def open_pidfd(identity: Identity) -> int | None:
    """A pidfd of exactly this process, or None when it is gone. Readable when the process has exited."""
    try:
        fd = os.pidfd_open(identity.pid)
    except OSError:
        return None
    # the pid may have been reused before the pidfd was opened, never after
    if identity_of(identity.pid) != identity:
        os.close(fd)
        return None
    return fd


def send(identity: Identity, number: signal.Signals) -> bool:
    """Send a signal to exactly this process. False when it is gone or not ours to signal."""
    fd = open_pidfd(identity)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(fd)
    return True


def send_all(targets: Iterable[Identity], number: signal.Signals) -> list[int]:
    """Send a signal to each; the pids that took it."""
    return [target.pid for target in targets if send(target, number)]


def title(pid: int) -> str:
    """The command line as `ps` shows it, for people only."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            raw = file.read()
    except OSError:
        return "?"
    return " ".join(raw.replace(b"\0", b" ").decode(errors="replace").split()) or "?"


def become_subreaper() -> None:
    """Have the kernel hand us the orphans of our descendants (PR_SET_CHILD_SUBREAPER)."""
    import ctypes

    PR_SET_CHILD_SUBREAPER = 36
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
