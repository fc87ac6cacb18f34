"""How far a load is: two byte counts, a rate, an ETA. Pure.

`read` is how much of the checkpoint has come off the disk, `loaded` how much the slowest rank has behind it. Neither
ever goes back. Each has its source: maps (which shard a rank has mapped), log (vLLM's own bar), prewarm, io.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from deploy.lifecycle.states import BEFORE_WEIGHTS

RATE_WINDOW_S = 10.0
SHORT_S = 0.5  # a rate over less says nothing
AFTER_WEIGHTS = ("compile", "graphs", "warmup", "canary")


class Progress:
    """The load of one launch. `sizes`: bytes of each weight file in the loader's order, empty when unknown."""

    def __init__(self, sizes: Sequence[int], learned: Mapping[str, float] | None = None) -> None:
        self.ends = list(accumulate(sizes))
        self.total = self.ends[-1] if self.ends else None
        self.learned = dict(learned or {})  # seconds of each phase in earlier launches like this one
        self.read = self.loaded = 0
        self.read_source: str | None = None
        self.source: str | None = None
        self.shards_done = 0
        self.shards_total: int | None = len(sizes) or None
        self.log: tuple[int, int] | None = None
        self.reads: list[tuple[float, int]] = []
        self.weights_since: float | None = None
        self.phase: tuple[str, float] | None = None  # the current one, and when it began

    def phase_begins(self, phase: str, now: float) -> None:
        """The launch is in `phase` from now on."""
        self.phase = (phase, now)

    def weights_begin(self, now: float) -> None:
        """The loader has begun."""
        if self.weights_since is None:
            self.weights_since = now

    def bar(self, done: int, total: int) -> None:
        """vLLM's bar: files, tensors or bytes."""
        self.log = (done, total)

    def mapped(self, slowest: int) -> None:
        """The slowest rank is in the file number `slowest` (from 0), so those before it are behind it."""
        self._loaded(self.ends[slowest] - self._size(slowest), slowest, "maps")

    def trust_bar(self) -> None:
        """Take the bar's word, where nothing is mapped."""
        if self.log is None or self.total is None:
            if self.log is not None:
                self.shards_done, self.shards_total, self.source = *self.log, "log"
            return
        done, total = self.log
        if total == len(self.ends):
            self._loaded(self.ends[done - 1] if done else 0, done, "log")
        else:
            share = self.total * done // total
            self._loaded(share, sum(end <= share for end in self.ends), "log")

    def finish(self) -> None:
        """The engine is past its weights."""
        if self.total is not None:
            self._loaded(self.total, len(self.ends), self.source or "phase")
            self.read = self.total

    def bytes_read(self, count: int, source: str, now: float) -> None:
        """`count` bytes of the checkpoint are known to be in memory."""
        if self.total is not None:
            count = min(count, self.total)
        if count > self.read:
            self.read, self.read_source = count, source
        self.reads = [*[entry for entry in self.reads if now - entry[0] <= RATE_WINDOW_S], (now, self.read)]

    def _size(self, number: int) -> int:
        return self.ends[number] - (self.ends[number - 1] if number else 0)

    def _loaded(self, count: int, shards: int, source: str) -> None:
        self.source = source
        self.loaded = max(self.loaded, count)
        self.shards_done = max(self.shards_done, shards)
        if self.loaded > self.read:
            self.read, self.read_source = self.loaded, source

    def rate(self) -> float | None:
        """Bytes read a second lately."""
        if len(self.reads) < 2 or self.reads[-1][0] <= self.reads[0][0]:
            return None
        return (self.reads[-1][1] - self.reads[0][1]) / (self.reads[-1][0] - self.reads[0][0])

    def eta(self, now: float) -> float | None:
        """Seconds until the weights are loaded: bytes have to be read, and then consumed. None while nothing tells how
        fast they are consumed, neither this load nor an earlier one."""
        if self.total is None:
            return None
        if self.loaded >= self.total:
            return 0.0
        waits = []
        if self.read < self.total:
            rate = self.rate()
            if not rate:
                return None
            waits.append((self.total - self.read) / rate)
        if self.weights_since is not None and self.loaded > 0 and now > self.weights_since:
            waits.append((self.total - self.loaded) * (now - self.weights_since) / self.loaded)
        elif "weights" in self.learned:
            waits.append(self._before_weights(now) + max(0.0, self.learned["weights"] - self._in_weights(now)))
        else:
            return None
        return round(max(waits), 1)

    def _before_weights(self, now: float) -> float:
        """Seconds until the loader begins, by what the phases before it took in earlier launches."""
        if self.phase is None or self.phase[0] not in BEFORE_WEIGHTS:
            return 0.0
        name, since = self.phase
        later = BEFORE_WEIGHTS[BEFORE_WEIGHTS.index(name) + 1 :]
        return max(0.0, self.learned.get(name, 0.0) - (now - since)) + sum(self.learned.get(one, 0.0) for one in later)

    def _in_weights(self, now: float) -> float:
        return 0.0 if self.weights_since is None else now - self.weights_since

    def eta_ready(self, now: float) -> float | None:
        """Seconds until ready: the weights, and what the phases after them took before."""
        weights = self.eta(now)
        later = [self.learned[phase] for phase in AFTER_WEIGHTS if phase in self.learned]
        return None if weights is None or not later else round(weights + sum(later), 1)

    def to_json(self, now: float) -> dict[str, Any]:
        """The `progress` record."""
        rate = self.rate() if self.total is None or self.read < self.total else None
        if rate is None and self.weights_since is not None and now > self.weights_since + SHORT_S and self.loaded:
            rate = self.loaded / (now - self.weights_since)
        return {
            "bytes_done": self.loaded,
            "bytes_total": self.total,
            "bytes_read": self.read,
            "bytes_per_s": None if rate is None else round(rate),
            "shards_done": self.shards_done,
            "shards_total": self.shards_total,
            "eta_s": self.eta(now),
            "eta_ready_s": self.eta_ready(now),
            "source": self.source or self.read_source,
            "read_source": self.read_source,
            "bar": None if self.log is None else list(self.log),
        }


def phase_eta(phase: str, elapsed: float, learned: Mapping[str, float]) -> float | None:
    """Seconds until ready in a phase after the weights, from what it took before; None where that is not known."""
    if phase not in AFTER_WEIGHTS or phase not in learned:
        return None
    later = AFTER_WEIGHTS[AFTER_WEIGHTS.index(phase) + 1 :]
    return round(max(0.0, learned[phase] - elapsed) + sum(learned.get(name, 0.0) for name in later), 1)
