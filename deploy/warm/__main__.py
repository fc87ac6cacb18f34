"""The prewarmer: `python -P -m deploy.warm`. An order as one JSON line on stdin, reports as JSON lines on stdout.

The order: {"files": [[path, size], …], "reserve": bytes, "limit": bytes or null, "latency_url": URL or null}. After it
come lines {"position": bytes} (the slowest rank), {"pause": true|false}. The end of stdin ends us: we never outlive
whoever started us. A report: {"state", "read", "present", "total", "bytes_per_s", "seconds", "method",
"why"}.
"""

import contextlib
import json
import os
import select
import sys
import time
from typing import Any

from deploy.host.memory import memory
from deploy.host.pagecache import drop, resident_share
from deploy.host.storage import storage
from deploy.warm.latency import Latency
from deploy.warm.reader import Rate, Reader
from deploy.warm.window import consumed, fits, horizon, only_contends

RESIDENT = 0.98
TICK_S = 0.25
MEMORY_S = 1.0
POPULATE_READ_AHEAD_KIB = 1024


class Commands:
    """Lines on stdin, as far as they have come."""

    def __init__(self) -> None:
        self.rest = b""
        self.closed = False

    def wait(self, seconds: float) -> list[dict[str, Any]]:
        """The lines that come within `seconds`."""
        if not select.select([0], [], [], seconds)[0]:
            return []
        chunk = os.read(0, 1 << 20)
        if not chunk:
            self.closed = True
            return []
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        return [json.loads(line) for line in lines if line.strip()]


def main() -> int:
    """Read ahead until all is in, or nobody wants it any more."""
    commands = Commands()
    first: list[dict[str, Any]] = []
    while not first and not commands.closed:
        first = commands.wait(60.0)
    if not first:
        return 0
    os.set_blocking(1, False)
    return _warm(first[0], commands, first[1:])


def _warm(order: dict[str, Any], commands: Commands, early: list[dict[str, Any]]) -> int:
    files = [(str(path), int(size)) for path, size in order["files"]]
    sizes = [size for _, size in files]
    total = sum(sizes)
    reserve, limit = int(order.get("reserve") or 0), order.get("limit")
    try:
        if resident_share(files) >= RESIDENT:
            _report(
                state="resident", read=0, present=total, total=total, bytes_per_s=0, seconds=0, method=None, why=None
            )
            return 0
        disk = storage(files[0][0])
    except OSError as error:
        _report(state="stopped", read=0, present=0, total=total, bytes_per_s=0, seconds=0, method=None, why=str(error))
        return 0
    whole = (disk.read_ahead_kib or 0) >= POPULATE_READ_AHEAD_KIB
    threads = 2 if whole or (disk.rotational and not disk.network) else max(8, min(16, os.cpu_count() or 8))
    reader = Reader(files, threads=threads, use_populate=whole)
    rate, latency = Rate(), Latency(order.get("latency_url"))
    position, paused, dropped = 0, False, -1
    looked, room = 0.0, memory()
    state, why = "reading", None
    told, began = 0.0, time.monotonic()
    pending = early
    while True:
        for command in pending:
            position = max(position, int(command.get("position", 0)))
            paused = bool(command.get("pause", paused))
        now = time.monotonic()
        if now - looked >= MEMORY_S:
            looked, room = now, memory()
        allowed = horizon(position, total, room, reserve, limit)
        held = paused or latency.high
        reader.allow(position, 0 if held else allowed)
        if not fits(total, room, reserve):
            for number in consumed(sizes, position)[dropped + 1 :]:
                dropped = number
                with contextlib.suppress(OSError):
                    drop(files[number][0])
        speed = rate.add(reader.read)
        state = "paused" if held else "waiting" if reader.present >= allowed else "reading"
        if reader.errors:
            state, why = "stopped", reader.errors[0]
        elif reader.done:
            state = "done"
        elif only_contends(reader.read, speed, reader.overtaken):
            state, why = "stopped", "the engine reads as fast by itself"
        elif state == "waiting" and limit is not None and position == 0 and reader.present >= limit:
            state, why = "done", "the limit is reached"
        ended = state in ("done", "stopped")
        if ended or now - told >= 2 * TICK_S:
            told = now
            method = "populate" if reader.populates else f"read x{threads}"
            _report(
                state=state,
                read=reader.read,
                present=reader.present,
                total=total,
                bytes_per_s=round(speed),
                seconds=round(now - began, 3),
                method=method,
                why=why,
                window=allowed - position,
            )
        if ended and (state == "stopped" or fits(total, room, reserve) or limit is not None):
            break
        if ended and position >= total:
            break
        pending = commands.wait(TICK_S)
        if commands.closed:
            break
    reader.stop()
    sys.stdout.flush()
    os._exit(0)  # a thread may hang in a filesystem that does not answer


def _report(**report: Any) -> None:
    # nobody reads any more, or not now: a report is not worth waiting for
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(report).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
