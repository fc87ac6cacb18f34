"""The journal of one launch: append-only JSON lines, one writer, any number of readers."""

import os
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from deploy.lifecycle.events import Event, parse_line, parse_lines

PENDING_LIMIT = 1000


def timestamp(wall: float) -> str:
    """Wall-clock seconds as the journal writes them: UTC, milliseconds, Z."""
    whole = int(wall)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int((wall - whole) * 1000):03d}Z"


class Journal:
    """The writing end.

    A write that fails (full disk, read-only folder) never raises, since the engine must go on: records wait in memory,
    in order and with their own time, and are written as soon as that is possible. Past `PENDING_LIMIT` the oldest are
    lost; how many is told in the next record.
    """

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._waiting: deque[Event] = deque()
        self._half = b""  # the rest of a line of which a part is written
        self._lost = 0
        if os.fstat(self.fd).st_size > 0 and not _ends_whole(path):
            self._half = b"\n"  # closes a record that a crash has torn, so that the next one is whole

    @property
    def pending(self) -> bool:
        """Whether something could not be written yet."""
        return bool(self._half or self._waiting)

    def append(self, kind: str, data: dict[str, Any], *, wall: float | None = None) -> Event:
        """Append one record and return it."""
        event = Event(kind, timestamp(time.time() if wall is None else wall), data)
        self._waiting.append(event)
        self.flush()
        while len(self._waiting) > PENDING_LIMIT:
            self._waiting.popleft()
            self._lost += 1
        return event

    def flush(self) -> bool:
        """Write what is pending; whether nothing is left."""
        while self.pending:
            line = self._half or self._next_line()
            try:
                written = os.write(self.fd, line)
            except OSError:
                break
            if not self._half:
                self._waiting.popleft()
                self._lost = 0
            self._half = line[written:]
            if self._half:
                break
        return not self.pending

    def _next_line(self) -> bytes:
        event = self._waiting[0]
        if self._lost:
            event = event._replace(data={**event.data, "records_lost": self._lost})
        return event.to_line()


def _ends_whole(path: str) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def read(path: str) -> list[Event]:
    """Every whole record of a journal; empty when there is none."""
    try:
        with open(path, "rb") as file:
            return list(parse_lines(file.read().splitlines()))
    except FileNotFoundError:
        return []


class Tail:
    """The reading end for followers: each `poll` gives the whole records that came since the last one."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.offset = 0

    def poll(self) -> Iterator[Event]:
        """Records appended since the last call."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                chunk = file.read()
        except FileNotFoundError:
            return
        whole = chunk.rfind(b"\n") + 1
        self.offset += whole
        for line in chunk[:whole].splitlines():
            event = parse_line(line)
            if event is not None:
                yield event
