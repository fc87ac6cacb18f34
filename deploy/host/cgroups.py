"""A cgroup of its own for an engine, where cgroup v2 lets us make one: membership that no process can shed, and a kill
that no fork can outrun.

Works wherever our own cgroup is writable: a systemd service with Delegate=yes, a user's own session, root. Elsewhere (a
container with a read-only /sys/fs/cgroup) there is none, and every function here says so by None or nothing.
"""

import contextlib
import os
from collections.abc import Iterator


def own_folder() -> str | None:
    """The folder of this process's cgroup v2; None where there is no such hierarchy."""
    try:
        with open("/proc/self/cgroup") as file:
            inside = next(line.rstrip("\n").partition("::")[2] for line in file if line.startswith("0::"))
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split() for line in file]
    except (OSError, StopIteration):
        return None
    for fields in mounts:
        if fields[fields.index("-") + 1] == "cgroup2":
            root, point = fields[3], fields[4]
            if os.path.commonpath([root, inside]) == root:
                return os.path.normpath(os.path.join(point, os.path.relpath(inside, root)))
    return None


def make(name: str) -> str | None:
    """A new cgroup below our own; its folder, None where that is not allowed."""
    parent = own_folder()
    if parent is None:
        return None
    folder = os.path.join(parent, name)
    try:
        os.mkdir(folder, 0o755)
    except OSError:
        return None
    return folder


@contextlib.contextmanager
def inside(folder: str | None) -> Iterator[None]:
    """What is started in this block starts in the cgroup: we go in ourselves and come back, so there is no moment in
    which a child could fork outside of it. Where we may not, it starts where we are."""
    home = own_folder() if folder is not None else None
    entered = folder is not None and home is not None and _enter(folder)
    try:
        yield
    finally:
        if entered and home is not None:
            _enter(home)


def _enter(folder: str) -> bool:
    return _tell(folder, "cgroup.procs", "0")


def _tell(folder: str, control: str, word: str) -> bool:
    """Write to a control file; whether the kernel took it."""
    try:
        with open(os.path.join(folder, control), "w") as file:
            file.write(word)
    except OSError:
        return False
    return True


def pids_in(folder: str | None) -> list[int]:
    """The processes in a cgroup, ourselves left out."""
    if folder is None:
        return []
    try:
        with open(os.path.join(folder, "cgroup.procs")) as file:
            return [pid for pid in map(int, file.read().split()) if pid not in (0, os.getpid())]
    except OSError:
        return []


def kill(folder: str | None) -> bool:
    """SIGKILL to every process in it at once, those just being forked included. False where that is not possible."""
    if folder is None or own_folder() == folder:  # a return from `inside` that failed: it would end ourselves
        return False
    return _tell(folder, "cgroup.kill", "1")


def remove(folder: str | None) -> None:
    """Take an empty cgroup away; one that is not empty, or gone, is left as it is."""
    if folder is not None:
        with contextlib.suppress(OSError):
            os.rmdir(folder)
