"""Memory that a program here can really get: the machine's, and every limit of the cgroups above it."""

import os
from typing import NamedTuple

from deploy.host.cgroups import own_folder


class Memory(NamedTuple):
    """Bytes: `total` of the machine or of the tightest cgroup, `available` of it without swapping; `limit`: whose."""

    total: int
    available: int
    limit: str = "machine"


def parse_meminfo(text: str) -> Memory:
    """`/proc/meminfo` as Memory."""
    values = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in text.splitlines() if len(line.split()) >= 2}
    return Memory(values["MemTotal"], values.get("MemAvailable", values.get("MemFree", 0)))


def headroom(limit: str, current: str, stat: str, name: str) -> Memory | None:
    """What a memory cgroup leaves: its limit less what cannot be reclaimed. None where it has no limit."""
    if limit.strip() == "max":
        return None
    values = dict(line.split() for line in stat.splitlines() if len(line.split()) == 2)
    # page cache of a cgroup is charged to it, and given back under pressure
    cache = int(values.get("active_file", 0)) + int(values.get("inactive_file", 0))
    total = int(limit)
    return Memory(total, max(0, total - max(0, int(current) - cache)), name)


def memory() -> Memory:
    """Memory now: the least that machine and cgroups leave."""
    with open("/proc/meminfo") as file:
        least = parse_meminfo(file.read())
    folder = own_folder()
    while folder is not None and folder not in ("/", "/sys/fs"):
        try:
            texts = []
            for name in ("memory.max", "memory.current", "memory.stat"):
                with open(os.path.join(folder, name)) as file:
                    texts.append(file.read())
        except OSError:
            texts = []
        found = headroom(texts[0], texts[1], texts[2], folder) if texts else None
        if found is not None and found.available < least.available:
            least = found
        folder = os.path.dirname(folder)
    return least
