"""The kernel's ring buffer, where this user may read it: GPU faults (Xid) and the OOM killer's words."""

import os
import re
import time
from collections.abc import Collection, Iterable
from typing import NamedTuple

FAULT = re.compile(r"NVRM: Xid|NVRM: GPU .* has fallen off|Out of memory: Killed process|Memory cgroup out of memory")
PID = re.compile(r"(?:pid=|Killed process )(\d+)")


class Record(NamedTuple):
    """One record: seconds since the boot, by the monotonic clock, and its text."""

    at_s: float
    text: str


def now_s() -> float:
    """Seconds as records count them."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def parse(line: str) -> Record | None:
    """`PRIORITY,SEQUENCE,MICROSECONDS,…;TEXT`; None for the lines that continue a record."""
    head, separator, text = line.partition(";")
    fields = head.split(",")
    if not separator or len(fields) < 3 or not fields[2].isdigit():
        return None
    return Record(int(fields[2]) / 1e6, text)


def read(path: str) -> list[Record] | None:
    """Everything that is still in the buffer, oldest first; None where this user may not read it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    found: list[Record] = []
    try:
        while chunk := os.read(fd, 1 << 16):  # one record a read
            found += filter(None, map(parse, chunk.decode(errors="replace").splitlines()))
    except BlockingIOError:
        pass
    except OSError:  # records were overwritten while we read, or the device is no real one
        return found or None
    finally:
        os.close(fd)
    return found


def faults(records: Iterable[Record], since_s: float, pids: Collection[int]) -> list[str]:
    """What concerns an engine: faults of GPUs and killed processes since `since_s`. One that names a pid must name one
    of `pids`; one that names none may be ours."""
    return [
        record.text
        for record in records
        if record.at_s >= since_s
        and FAULT.search(record.text)
        and ((named := PID.search(record.text)) is None or int(named[1]) in pids)
    ]
