"""Signs of life of a load: which of them prove that it goes forward. Pure.

Bytes, shards, phases, new processes and log lines that are no repeats prove it. Processor time alone does not: a rank
that waits in a collective spins at 100 % for ever. It is believed for a while, since compilers are silent.
"""

import re

BYTES = 1 << 20
BYTES_PER_S = 64 << 10  # an idle server's own reading stays below it; a disk at 1 MiB/s well above
BUSY_SHARE = 0.05  # of one processor; idle Python with its timers stays well below
CPU_BELIEVED = 3.0  # times stall_s
LINES_LOOKED_AT = 64
SIGNATURES = 4096
REPEATS = (b"No available shared memory broadcast block",)
DIGITS = re.compile(rb"\d+")


class Signs:
    """What has moved since when. Times are monotonic seconds."""

    def __init__(self, stall_s: float, now: float) -> None:
        self.stall_s = stall_s
        self.proven_at = now
        self.base: tuple[float, int] | None = None
        self.last: tuple[float, float] | None = None
        self.known: set[bytes] = set()

    def proven(self, now: float) -> None:
        """Something else has shown that it goes forward."""
        self.proven_at = now

    def work(self, now: float, read: int, cpu: float) -> bool:
        """Whether bytes read and processor seconds used so far, by all processes together, are a sign."""
        if self.base is None or read < self.base[1]:  # a process that ended takes its counters with it
            self.base = (now, read)
        began, before = self.base
        moved = False
        if read - before >= BYTES:
            moved = read - before >= BYTES_PER_S * (now - began)
            self.base = (now, read)
            if moved:
                self.proven_at = now
        busy = self.last is not None and cpu - self.last[1] > BUSY_SHARE * (now - self.last[0])
        self.last = (now, cpu)
        return moved or (busy and now - self.proven_at < CPU_BELIEVED * self.stall_s)

    def lines(self, now: float, chunk: bytes) -> bool:
        """Whether the log says something that it has not said before; numbers make no difference."""
        lines = chunk.splitlines()
        if len(lines) > LINES_LOOKED_AT:
            lines = lines[:: len(lines) // LINES_LOOKED_AT]
        fresh = False
        for line in lines:
            if not line.strip() or any(words in line for words in REPEATS):
                continue
            signature = DIGITS.sub(b"#", line[:200])
            if signature not in self.known and len(self.known) < SIGNATURES:
                self.known.add(signature)
                fresh = True
        if fresh:
            self.proven_at = now
        return fresh
