"""Socket files that an engine leaves in the temporary folder: known by being bound, removed when nobody has them."""

import os
import stat
from collections.abc import Iterable

from deploy.host.listeners import held_sockets


def _bound() -> dict[str, set[int]]:
    """Paths of bound unix sockets and their inodes, from /proc/net/unix."""
    found: dict[str, set[int]] = {}
    try:
        with open("/proc/net/unix", "rb") as file:
            lines = file.readlines()[1:]
    except OSError:
        return found
    for line in lines:
        fields = line.split(None, 7)
        if len(fields) == 8 and fields[7].startswith(b"/"):
            found.setdefault(os.fsdecode(fields[7].rstrip(b"\n")), set()).add(int(fields[6]))
    return found


def bound_by(pids: Iterable[int]) -> set[str]:
    """Socket files that these processes have bound."""
    held = set().union(*[held_sockets(pid) or set() for pid in pids])
    return {path for path, inodes in _bound().items() if inodes & held}


def files_in(folder: str) -> set[str]:
    """What lies in a folder of ours; nothing when it is gone or another user's."""
    try:
        about = os.lstat(folder)
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            return set()
        return {entry.path for entry in os.scandir(folder)}
    except OSError:
        return set()


def remove_unbound(paths: Iterable[str]) -> list[str]:
    """Remove those of `paths` that are socket files of ours which nobody has bound any more; the removed ones."""
    wanted = sorted(paths)
    bound = _bound() if wanted else {}
    removed = []
    for path in wanted:
        try:
            about = os.lstat(path)
            if stat.S_ISSOCK(about.st_mode) and about.st_uid == os.getuid() and path not in bound:
                os.unlink(path)
                removed.append(path)
        except OSError:
            continue
    return removed
