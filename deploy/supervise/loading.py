"""Following a load from outside: the prewarmer, what the ranks have mapped and read, what earlier loads took."""

import os
import re
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from deploy.host.processes import work_of
from deploy.plan.launch_plan import LaunchPlan
from deploy.store import history, load_memory
from deploy.supervise.hang import account
from deploy.supervise.ledger import Member
from deploy.supervise.progress import Progress
from deploy.supervise.signs import Signs
from deploy.supervise.stall_evidence import look, looks_of, stacks
from deploy.warm.client import Warm, start_warm

POLL_S = 1.0
MAPS_S_A_RANK = 0.25  # reading one rank's maps costs about half a millisecond, and must stay far below a percent
LOADING = ("spawn", "init", "weights")
TAIL = 5
COLD = 0.1
LOADER_CRASHED = re.compile(r"instanttensor|InstantTensor|cudaHostRegister")


class Loading:
    """The load of one launch; the supervisor calls `look` until it is over."""

    def __init__(self, plan: LaunchPlan, stall_s: float) -> None:
        self.plan = plan
        self.key = history.fingerprint(plan.model, plan.engine, plan.argv, len(plan.gpus))
        self.learned = history.learned(history.entries(self.key))
        self.progress = Progress([shard.size for shard in plan.shards], self.learned)
        self.signs = Signs(stall_s, time.monotonic())
        self.warm: Warm | None = None
        self.told_warm: str | None = None
        self.read_ahead: dict[str, Any] | None = None  # bytes that had to be fetched, and the seconds it took
        self.phases: dict[str, float] = {}
        self.shard_of: dict[int, int] = {}  # the last file that each rank has mapped
        self.numbers, self.mapping = _mapped_files(plan)
        self.told: tuple[int, int] = (0, 0)
        self.maps_due = 0.0
        self.io_before: int | None = None

    # ------------------------------------------------------------------ the prewarmer

    def begin(self) -> int | None:
        """The engine has just been spawned: read ahead of it where the plan says so. The prewarmer's pid."""
        load = self.plan.load
        self.progress.phase_begins("spawn", time.monotonic())
        if load.get("prewarm_files"):
            folder = str(load["folder"])
            files = [(os.path.join(folder, shard.name), shard.size) for shard in self.plan.shards]
            self.warm = start_warm(files, reserve_bytes=int(load.get("reserve_bytes", 0)))
        return None if self.warm is None else self.warm.pid

    def end(self) -> None:
        """Nothing is loaded any more."""
        if self.warm is not None:
            self.warm.stop()
            self.warm = None

    # ------------------------------------------------------------------ what is seen

    def phase(self, after: str, seconds: float, phase: str) -> dict[str, Any] | None:
        """A phase began; the last word about the weights where it is one after them."""
        now = time.monotonic()
        self.signs.proven(now)
        self.phases[after] = seconds
        self.progress.phase_begins(phase, now)
        if phase == "weights":
            self.progress.weights_begin(now)
        if after in LOADING and phase not in LOADING and self.progress.source is not None:
            self.end()
            self.progress.finish()
            return self._record(now)
        return None

    def bar(self, data: dict[str, Any]) -> dict[str, Any] | None:
        """vLLM's bar moved; a record unless it is a draft model's."""
        now = time.monotonic()
        self.signs.proven(now)
        if data["pass"] > 1:
            return None
        self.progress.weights_begin(now)
        self.progress.bar(data["done"], data["total"])
        # the bar is rank 0's alone; what the ranks map says more, as long as they map anything
        if not self.shard_of or data["done"] == data["total"]:
            self.progress.trust_bar()
        return self._record(now)

    def work(self, pids: Iterable[int]) -> bool:
        """Whether the engine's own reading and computing show that it goes forward."""
        read, cpu = work_of(pids)
        return self.signs.work(time.monotonic(), read, cpu)

    def lines(self, chunk: bytes) -> bool:
        """Whether the log says something new."""
        return self.signs.lines(time.monotonic(), chunk)

    def look(self, phase: str | None, members: Iterable[Member]) -> list[tuple[str, dict[str, Any]]]:
        """Records of what has changed: the prewarmer's state, and progress."""
        now = time.monotonic()
        records: list[tuple[str, dict[str, Any]]] = []
        ranks = [member.identity.pid for member in members if member.is_rank]
        if phase in LOADING and now >= self.maps_due and self.mapping is not None:
            self.maps_due = now + max(POLL_S, MAPS_S_A_RANK * len(ranks))
            self._look_at_maps(ranks)
            self._look_at_io(ranks, now)
        if self.warm is not None:
            report = self.warm.poll()
            if report:
                self.read_ahead = {"bytes": report.get("read", 0), "seconds": report.get("seconds", 0)}
            if self.warm.ended and not report:
                report = {"state": "stopped", "why": "it ended by itself"}
            if report and report["state"] not in (self.told_warm, "waiting", "paused"):
                self.told_warm = report["state"]
                records.append(("prewarm", report))
            self.progress.bytes_read(int(report.get("present", 0)), "prewarm", now)
            self.warm.position(self.progress.loaded)
        if (self.progress.read, self.progress.loaded) != self.told and phase in LOADING:
            records.append(("progress", self._record(now)))
        return records

    def _look_at_maps(self, ranks: Iterable[int]) -> None:
        assert self.mapping is not None
        for pid in ranks:
            try:
                with open(f"/proc/{pid}/maps", "rb") as file:
                    names = set(self.mapping.findall(file.read()))
            except OSError:
                continue
            numbers = [self.numbers[name] for name in names if name in self.numbers]
            if numbers:
                self.shard_of[pid] = max(self.shard_of.get(pid, 0), *numbers)
        if self.shard_of:
            slowest = min(self.shard_of.values()) if len(self.shard_of) >= self._ranks_expected() else 0
            before = self.progress.loaded
            self.progress.mapped(slowest)
            if self.progress.loaded > before:
                self.signs.proven(time.monotonic())

    def _ranks_expected(self) -> int:
        return max(1, int(self.plan.load.get("ranks", 1)))

    def _look_at_io(self, ranks: Iterable[int], now: float) -> None:
        """Bytes that the ranks themselves fetched: honest where the cache was cold, and nothing else is known."""
        if self.warm is not None or not self.shard_of:
            return
        count = sum(_read_bytes(pid) for pid in ranks)
        if self.io_before is None:
            self.io_before = count  # their imports
        self.progress.bytes_read(count - self.io_before, "io", now)

    def _record(self, now: float) -> dict[str, Any]:
        self.told = (self.progress.read, self.progress.loaded)
        return self.progress.to_json(now)

    # ------------------------------------------------------------------ the end

    def way_back(self, phase: str | None, texts: Iterable[str]) -> LaunchPlan | None:
        """The plan to start again with, where the loader that we chose by ourselves is what crashed. It is remembered,
        so that it is not chosen again for this model."""
        load = self.plan.load
        if phase not in LOADING or not load.get("fallback_argv") or load.get("strategy") != "instanttensor":
            return None
        if not any(LOADER_CRASHED.search(text) for text in texts):
            return None
        load_memory.note_crash(str(load["folder"]), "instanttensor")
        again = {**load, "strategy": "auto", "prewarm_files": True, "reasons": ["instanttensor crashed just before"]}
        del again["fallback_argv"]
        return replace(self.plan, argv=list(load["fallback_argv"]), load=again)

    def stalled(self, phase: str | None, members: Iterable[Member], tail: Iterable[tuple[int, str]]) -> dict[str, Any]:
        """What is to be known about an engine that does not go forward, before it is ended."""
        ranks = [(member.identity.pid, member.title) for member in members if member.is_rank]
        found = look(ranks, self.shard_of)
        return account(phase, found, looks_of(self.plan.gpus), stacks(found), [*tail][-TAIL:])

    def remember(self, at: str, last: str | None, seconds: float, total_seconds: float) -> dict[str, Any]:
        """It is ready: keep what it took for the next time. The entry."""
        if last is not None:
            self.phases[last] = seconds
        weights = self.phases.get("weights")
        total = self.progress.total
        resident = self.plan.load.get("resident")
        cold = resident is not None and resident < COLD
        entry: dict[str, Any] = {
            "on": at,
            "phases": self.phases,
            "total_s": total_seconds,
            "bytes_total": total,
            "bytes_per_s": round(total / weights) if total and weights else None,
            "strategy": self.plan.load.get("strategy"),
            "prewarm": self.told_warm,
            "read_ahead": self.read_ahead,
            "cold": cold,
            "probe_bytes_per_s": self.plan.load.get("probe_bytes_per_s"),
        }
        if self.plan.rehearsal:
            return entry  # random weights say nothing of the next load
        history.add(self.key, entry)
        folder = self.plan.load.get("folder")
        # a load from memory says nothing about how a strategy reads
        if folder and entry["bytes_per_s"] and cold:
            load_memory.note_rate(str(folder), str(entry["strategy"]), entry["bytes_per_s"])
        return entry


def _mapped_files(plan: LaunchPlan) -> tuple[dict[bytes, int], re.Pattern[bytes] | None]:
    """The files as /proc/PID/maps names them (symbolic links followed), and what finds them there."""
    folder = plan.load.get("folder")
    if not folder or not plan.shards:
        return {}, None
    real = [os.path.realpath(os.path.join(folder, shard.name)) for shard in plan.shards]
    folders = {os.path.dirname(path) for path in real}
    if len(folders) > 8:
        return {}, None
    wanted = b"|".join(re.escape(os.fsencode(path)) for path in sorted(folders))
    numbers = {os.fsencode(path): number for number, path in enumerate(real)}
    return numbers, re.compile(rb" ((?:" + wanted + rb")/[^/\n]+)\n")


def _read_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(b"read_bytes:"))
    except (OSError, StopIteration, ValueError):
        return 0
