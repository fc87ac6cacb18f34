"""Threads that bring blocks into the page cache in order; the thin side of `window`."""

import mmap
import os
import threading
import time
from collections.abc import Sequence

from deploy.host.pagecache import PAGE, Unsupported, can_be_asked, populate, resident_in
from deploy.warm.window import Block, blocks

POPULATE_BLOCK = 64 << 20
READ_BLOCK = 8 << 20
CALL = 1 << 20
PROBES_A_BLOCK = 16


class Reader:
    """Reads `files` (path, size) by `threads` threads up to `allowed` bytes; counters may be read at any time."""

    def __init__(self, files: Sequence[tuple[str, int]], *, threads: int, use_populate: bool) -> None:
        self.files = list(files)
        self.populates = use_populate
        self.queue = blocks([size for _, size in files], POPULATE_BLOCK if use_populate else READ_BLOCK)
        self.next = 0
        self.finished: set[int] = set()  # blocks that are in, beyond the first gap
        self.front = 0  # number of the first block that is not in yet
        self.allowed = 0
        self.position = 0
        self.read = 0  # bytes that we had to fetch
        self.found = 0  # bytes that were there already
        self.overtaken = 0
        self.errors: list[str] = []
        self.over = False
        self.gate = threading.Condition()
        self.nodes = _nodes()
        self.workers = [threading.Thread(target=self._work, args=(number,), daemon=True) for number in range(threads)]
        for worker in self.workers:
            worker.start()

    def allow(self, position: int, allowed: int) -> None:
        """The slowest rank is at `position`; read up to `allowed`."""
        with self.gate:
            if position > self.position:
                self.position = position
                if self.next < len(self.queue) and self.present < position:
                    self.overtaken += 1
            self.allowed = allowed
            self.gate.notify_all()

    def stop(self) -> None:
        """No further block is begun."""
        with self.gate:
            self.over = True
            self.gate.notify_all()

    @property
    def present(self) -> int:
        """Bytes from the start of the checkpoint that have been brought in without a gap."""
        return self.queue[self.front].start if self.front < len(self.queue) else sum(size for _, size in self.files)

    @property
    def done(self) -> bool:
        """Whether every block is in."""
        return self.front >= len(self.queue)

    def _take(self) -> tuple[int, Block] | None:
        with self.gate:
            while not self.over and self.next < len(self.queue):
                block = self.queue[self.next]
                if block.start + block.length <= self.position:  # the loader has it behind it
                    self.next += 1
                    self._finish(self.next - 1)
                elif block.start < self.allowed:
                    self.next += 1
                    return self.next - 1, block
                else:
                    self.gate.wait(1.0)
            return None

    def _finish(self, number: int) -> None:
        self.finished.add(number)
        while self.front in self.finished:
            self.finished.discard(self.front)
            self.front += 1

    def _work(self, number: int) -> None:
        if self.nodes:
            # pages land on the reader's node, so the readers are spread as the ranks are
            try:
                os.sched_setaffinity(0, self.nodes[number % len(self.nodes)])
            except OSError:
                self.nodes = []
        buffer = mmap.mmap(-1, CALL)
        while (taken := self._take()) is not None:
            index, block = taken
            path = self.files[block.file][0]
            fetched = there = 0
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fetched, there = self._bring(fd, path, block, buffer)
                finally:
                    os.close(fd)
            except OSError as error:
                with self.gate:
                    if len(self.errors) < 8:
                        self.errors.append(f"{path}: {error.strerror or error}")
                continue  # this block is not in, and nothing after it counts as present
            with self.gate:
                self.read += fetched
                self.found += there
                self._finish(index)

    def _bring(self, fd: int, path: str, block: Block, buffer: mmap.mmap) -> tuple[int, int]:
        """(fetched, already there) bytes of a block."""
        stride = max(PAGE, block.length // PROBES_A_BLOCK // PAGE * PAGE)
        probed, hits = resident_in(fd, block.offset, block.length, stride, trusted=can_be_asked(path))
        missing = block.length * (probed - hits) // probed
        there = block.length - missing
        if missing == 0:
            return 0, there
        if self.populates:
            try:
                populate(fd, block.offset, block.length)
                return missing, there
            except Unsupported:
                self.populates = False
        got = 0
        while got < block.length:
            view = memoryview(buffer)[: min(CALL, block.length - got)]
            count = os.preadv(fd, [view], block.offset + got)
            if count == 0:
                raise OSError(0, f"ends at {block.offset + got} bytes, earlier than expected")
            got += count
        return missing, there


def _nodes() -> list[set[int]]:
    """Processors of each NUMA node that we may use; empty on a machine of one node."""
    base = "/sys/devices/system/node"
    try:
        names = [name for name in sorted(os.listdir(base)) if name.startswith("node") and name[4:].isdigit()]
        mine = os.sched_getaffinity(0)
        found = []
        for name in names:
            with open(f"{base}/{name}/cpulist") as file:
                cpus = _cpus(file.read().strip()) & mine
            if cpus:
                found.append(cpus)
    except (OSError, ValueError):
        return []
    return found if len(found) > 1 else []


def _cpus(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


class Rate:
    """Bytes a second over the last few seconds."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def add(self, count: int) -> float:
        """The rate, with `count` bytes as of now."""
        now = time.monotonic()
        self.seen = [*[entry for entry in self.seen if now - entry[0] < 5.0], (now, count)]
        first = self.seen[0]
        return (count - first[1]) / (now - first[0]) if now > first[0] else 0.0
