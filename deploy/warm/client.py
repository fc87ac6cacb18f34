"""Starting a prewarmer and talking to it. Nothing here raises because of it: a start never fails by its prewarmer."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

FULL_S = 3.0  # memory comes and goes; only where nothing more fits for this long is it really full


class Warm:
    """A running prewarmer. `report` is its last word (see deploy.warm.__main__), empty before the first."""

    def __init__(self, process: subprocess.Popen[bytes] | None, why: str | None = None) -> None:
        self.process = process
        self.report: dict[str, Any] = {} if why is None else {"state": "stopped", "why": why}
        self.rest = b""
        self.ended = process is None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            os.set_blocking(process.stdin.fileno(), False)
            os.set_blocking(process.stdout.fileno(), False)

    @property
    def pid(self) -> int | None:
        """Its pid."""
        return None if self.process is None else self.process.pid

    @property
    def over(self) -> bool:
        """Whether it reads nothing more."""
        return self.ended or self.report.get("state") in ("done", "resident", "stopped")

    def position(self, consumed: int) -> None:
        """The slowest rank has consumed the first `consumed` bytes of the checkpoint."""
        self._say({"position": consumed})

    def pause(self, paused: bool) -> None:
        """Hold it, or let it go on."""
        self._say({"pause": paused})

    def poll(self) -> dict[str, Any]:
        """Its last report so far; never waits."""
        if self.process is None or self.ended:
            return self.report
        assert self.process.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while True:
                chunk = os.read(self.process.stdout.fileno(), 65536)
                if not chunk:
                    self.ended = True
                    break
                *lines, self.rest = (self.rest + chunk).split(b"\n")
                for line in lines:
                    with contextlib.suppress(ValueError):
                        self.report = json.loads(line)
        return self.report

    def fileno(self) -> int:
        """What becomes readable when it has something to report."""
        assert self.process is not None
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def stop(self) -> None:
        """End it; does not wait, for it may hang in a filesystem that does not answer."""
        if self.process is None:
            return
        self.poll()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        with contextlib.suppress(OSError):
            self.process.kill()
        self.ended = True
        self.process.returncode = self.process.poll() or 0  # where it is still ending, whoever reaps will find it
        self.process = None

    def _say(self, words: dict[str, Any]) -> None:
        if self.process is None or self.ended:
            return
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            os.write(self.process.stdin.fileno(), json.dumps(words).encode() + b"\n")


def start_warm(
    files: Sequence[tuple[str, int]],
    *,
    limit_bytes: int | None = None,
    reserve_bytes: int = 0,
    latency_url: str | None = None,
) -> Warm:
    """Start reading `files` into the page cache, in their order, in a process of its own that ends with this one.

    Args:
        files: (path, size in bytes), in the loader's order.
        limit_bytes: hold at most this much ahead of the consumer; None for what memory allows.
        reserve_bytes: memory that an engine will still take.
        latency_url: an address whose answer must not become slower; reading pauses while it does.
    """
    order = {
        "files": [[path, size] for path, size in files],
        "reserve": reserve_bytes,
        "limit": limit_bytes,
        "latency_url": latency_url,
    }
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "deploy.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        assert process.stdin is not None
        # the pipe holds 64 KiB at once, and the other side reads before anything else
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
    except OSError as error:
        return Warm(None, f"cannot be started: {error.strerror or error}")
    return Warm(process)


def reports(warm: Warm, every_s: float) -> Iterator[dict[str, Any]]:
    """Its reports, one at least every `every_s` (empty before the first), until all is in that memory allows.

    For those who only warm: nobody consumes, so a reader that waits for FULL_S has nothing left to do.
    """
    moved = time.monotonic()
    while not warm.over:
        select.select([warm], [], [], every_s)
        report, now = warm.poll(), time.monotonic()
        yield report
        if report.get("state") != "waiting":
            moved = now
        elif now - moved >= FULL_S:
            return
