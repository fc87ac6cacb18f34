"""The disk under a path: filesystem, read-ahead, kind, and its own rate by O_DIRECT."""

import mmap
import os
import threading
import time
from typing import NamedTuple

NETWORK = ("nfs", "nfs4", "lustre", "cifs", "smb3", "ceph", "glusterfs", "beegfs", "9p", "fuse.sshfs", "gpfs")
BLOCK = 1 << 20


class Storage(NamedTuple):
    """`kind` is the filesystem's; `read_ahead_kib` and `rotational` None where no block device tells."""

    kind: str
    device: str  # major:minor
    read_ahead_kib: int | None = None
    rotational: bool | None = None

    @property
    def network(self) -> bool:
        """Whether another machine holds the bytes."""
        return self.kind in NETWORK


def mounted(path: str, mountinfo: str) -> tuple[str, str]:
    """(filesystem, major:minor) of the mount that holds the absolute `path`."""
    best = ("", "?", "")
    for line in mountinfo.splitlines():
        fields = line.split()
        point = fields[4].replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, fields[fields.index("-") + 1], fields[2])
    return best[1], best[2]


def storage(path: str) -> Storage:
    """What lies under `path`, symbolic links followed."""
    with open("/proc/self/mountinfo") as file:
        kind, device = mounted(os.path.realpath(path), file.read())
    queue = f"/sys/dev/block/{device}/queue"
    if not os.path.isdir(queue):  # a partition: its disk has the queue
        queue = f"/sys/dev/block/{device}/../queue"
    return Storage(kind, device, _number(f"{queue}/read_ahead_kb"), _flag(_number(f"{queue}/rotational")))


def _number(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def probe_rate(files: list[tuple[str, int]], *, limit_s: float = 1.0, threads: int = 8) -> float | None:
    """Bytes a second that the disk gives to O_DIRECT reads of these files, spread over all of them; None where the
    filesystem has no O_DIRECT. The page cache is neither used nor filled."""
    total = sum(size for _, size in files)
    if total < 64 * BLOCK:
        return None
    until = time.monotonic() + limit_s
    step = max(BLOCK, total // 2048 // BLOCK * BLOCK)
    places = [(path, offset) for path, size in files for offset in range(0, size - BLOCK, step)]
    queue = iter(places)
    lock = threading.Lock()
    done = [0]

    def work() -> None:
        buffer = mmap.mmap(-1, BLOCK)
        while time.monotonic() < until:
            with lock:
                place = next(queue, None)
            if place is None:
                return
            try:
                fd = os.open(place[0], os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            except OSError:
                return
            try:
                got = os.preadv(fd, [buffer], place[1])
            except OSError:
                return
            finally:
                os.close(fd)
            with lock:
                done[0] += got

    began = time.monotonic()
    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(limit_s + 5)
    elapsed = time.monotonic() - began
    return done[0] / elapsed if done[0] else None
