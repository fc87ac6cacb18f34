"""Who holds a GPU's memory: what can be told of a pid that the driver names."""

import os
import pwd
import re
from typing import Any

from deploy.host.processes import read_process, title

INITIAL_NAMESPACE = 0xEFFFFFFC  # inode of the first PID namespace (PROC_PID_INIT_INO in the kernel)
GPU_DESCRIPTOR = re.compile(r"[/:]nvidia\d")
# In container paths of cgroups the id has 64 digits; the word before it names the runtime.
CONTAINER = re.compile(
    r"(?:^|/)(?:(docker|libpod|cri-containerd|crio|containerd)[-/])?([0-9a-f]{64})(?:\.scope)?(?=/|$)"
)
LXC = re.compile(r"(?:^|/)lxc(?:\.payload)?[./]([^/]+)")


def container_of(cgroup: str) -> str | None:
    """The container that the text of /proc/PID/cgroup names: runtime and the first 12 digits of its id."""
    for line in cgroup.splitlines():
        path = line.partition(":")[2].partition(":")[2]
        found = CONTAINER.findall(path)
        if found:
            runtime, digits = found[-1]
            return f"{runtime or ('pod' if 'kubepods' in path else 'container')} {digits[:12]}"
        lxc = LXC.search(path)
        if lxc:
            return f"lxc {lxc[1]}"
    return None


def in_initial_namespace() -> bool:
    """Whether pids here are those of the machine; in a container the driver's may be of either kind."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == INITIAL_NAMESPACE
    except OSError:
        return False


def _uses_gpu(pid: int) -> bool | None:
    """Whether the process has a GPU open; None when its descriptors cannot be read."""
    try:
        entries = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return None
    for entry in entries:
        try:
            if GPU_DESCRIPTOR.search(os.readlink(f"/proc/{pid}/fd/{entry}")):
                return True
        except OSError:
            continue
    return False


def describe(pid: int) -> dict[str, Any]:
    """What can be told of a pid that the driver names: user, command, container, and `visible`.

    In a container the driver may give pids of the machine. A process of that number here is believed only when it has
    a GPU open; one whose descriptors cannot be read is told with `certain` false.
    """
    unknown = {"visible": False, "certain": False, "user": None, "command": None, "container": None}
    process = read_process(pid)
    if process is None:
        return unknown
    certain = True
    if not in_initial_namespace():
        uses = _uses_gpu(pid)
        if uses is False:
            return unknown
        certain = uses is True
    return {
        "visible": True,
        "certain": certain,
        "user": _user(pid),
        "command": title(pid)[:200],
        "container": _container(pid),
    }


def _user(pid: int) -> str | None:
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _container(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            return container_of(file.read())
    except OSError:
        return None
