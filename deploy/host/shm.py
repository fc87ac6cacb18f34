"""Shared memory files of an engine: known by being mapped, removed when nobody maps them any more."""

import os
from collections.abc import Iterable

FOLDER = "/dev/shm/"


def mapped_by(pids: Iterable[int]) -> set[str]:
    """Files in /dev/shm that these processes map now."""
    found: set[str] = set()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", "rb") as file:
                lines = file.readlines()
        except OSError:
            continue
        for line in lines:
            fields = line.split(None, 5)
            if len(fields) == 6 and fields[5].startswith(FOLDER.encode()):
                found.add(fields[5].strip().decode(errors="surrogateescape"))
    return {path for path in found if not path.endswith(" (deleted)")}


def remove_unmapped(paths: Iterable[str]) -> list[str]:
    """Remove those of `paths` that still exist, are ours, and that no process maps; the removed ones."""
    left = []
    for path in sorted(paths):
        try:
            if path.startswith(FOLDER) and os.stat(path).st_uid == os.getuid():
                left.append(path)
        except OSError:
            continue
    if not left:
        return []
    mapped = mapped_by(int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    removed = []
    for path in left:
        if path not in mapped:
            try:
                os.unlink(path)
            except OSError:
                continue
            removed.append(path)
    return removed
