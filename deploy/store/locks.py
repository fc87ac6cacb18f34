"""Locks that die with their holder, and say who holds them and since when.

Open file description locks (fcntl F_OFD_SETLK): they pass to a child with the descriptor, as flock does, and unlike
flock they can be asked about without being taken, so that readers never get in the way of a writer.
"""

import contextlib
import fcntl
import json
import os
import struct
import time
from typing import Any

# struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid (zero for these locks)
FLOCK = "hhqqi"


def _flock(kind: int) -> bytes:
    return struct.pack(FLOCK, kind, os.SEEK_SET, 0, 0, 0)


def try_lock(path: str, mode: int = 0o600) -> int | None:
    """A descriptor that holds the lock file `path` exclusively, or None when somebody else does."""
    fd = _open(path, mode)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK))
    except (BlockingIOError, PermissionError):
        os.close(fd)
        return None
    return fd


def _open(path: str, mode: int) -> int:
    # in a folder for everybody (sticky), the kernel refuses O_CREAT on what another user has made
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    if os.fstat(fd).st_uid == os.geteuid():
        os.fchmod(fd, mode)  # the umask has taken away from it
    return fd


def is_held(path: str) -> bool:
    """Whether somebody holds the lock file `path`. Takes nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_RDLCK))
    finally:
        os.close(fd)
    return bool(struct.unpack(FLOCK, answer[: struct.calcsize(FLOCK)])[0] != fcntl.F_UNLCK)


def write_holder(fd: int, holder: dict[str, Any]) -> None:
    """Write who holds the lock into it: for people, and for commands that signal the holder."""
    text = json.dumps({"since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **holder}).encode()
    # one write, then cut: a reader never sees an empty file
    os.pwrite(fd, text + b"\n", 0)
    os.ftruncate(fd, len(text) + 1)


def read_holder(path: str) -> dict[str, Any]:
    """Who wrote themselves into the lock file; empty when it cannot be read."""
    try:
        with open(path, "rb") as file:
            holder = json.loads(file.readline() or b"{}")
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}
