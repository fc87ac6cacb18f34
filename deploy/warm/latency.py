"""Whether what serves beside us has become slower since we began to read: measured apart from the reading."""

import http.client
import math
import threading
import time
import urllib.parse

EVERY_S = 1.0
TIMEOUT_S = 2.0
FACTOR = 3.0
FLOOR_S = 0.05
OURS_S = 15.0  # what is still slow so long after we have paused is not slow because of us


class Judge:
    """The answers of one server, in seconds each, to "is it slower than before?". Pure.

    The first answer sets what is usual, and faster ones correct it. While it is slow we pause; where pausing changes
    nothing for OURS_S, the slowness is somebody else's and becomes the new usual: a busy server must not hold us up
    for ever.
    """

    def __init__(self) -> None:
        self.usual: float | None = None
        self.high = False
        self.high_since = 0.0

    def answered(self, now: float, took: float) -> None:
        """It took this long; infinite when no answer came in time."""
        if self.usual is None and math.isfinite(took):
            self.usual = took
        high = took > max(FLOOR_S, FACTOR * (self.usual or 0.0))
        if high and not self.high:
            self.high_since = now
        if high and now - self.high_since >= OURS_S and math.isfinite(took):
            self.usual, high = took, False
        elif self.usual is not None:
            self.usual = min(self.usual, took)
        self.high = high

    def gone(self) -> None:
        """Nothing listens there any more: nobody is left to be disturbed."""
        self.high = False


class Latency:
    """Asks `url` once a second in a thread of its own, for a slow answer must not delay the reader's orders."""

    def __init__(self, url: str | None) -> None:
        self.judge = Judge()
        if url is not None:
            threading.Thread(target=self._ask, args=(urllib.parse.urlsplit(url),), daemon=True).start()

    @property
    def high(self) -> bool:
        """Whether it answers slower than before."""
        return self.judge.high

    def _ask(self, url: urllib.parse.SplitResult) -> None:
        while True:
            began = time.monotonic()
            connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=TIMEOUT_S)
            try:
                connection.request("GET", url.path or "/health")
                connection.getresponse().read()
                self.judge.answered(time.monotonic(), time.monotonic() - began)
            except TimeoutError:
                self.judge.answered(time.monotonic(), math.inf)
            except (OSError, http.client.HTTPException):
                self.judge.gone()
            finally:
                connection.close()
            time.sleep(EVERY_S)
