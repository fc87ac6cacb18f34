"""Proof that a deployment's GPU memory is back: by what its own processes hold, never by a total that others move.

The driver is asked in a helper process; nothing here waits. Readings while the engine lives show how much its processes
hold and that the driver lists them at all; readings after its end show when they hold nothing any more.
"""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from deploy.host.gpus import Inventory, NoGpus, Reading
from deploy.host.processes import Identity, read_process
from deploy.plan.launch_plan import Gpu

POLL_S = 0.5


class Held(NamedTuple):
    """One GPU at one moment, MiB: all that is used on it, and what each of our pids holds. None: not told.

    `listed`: whether the driver listed processes at all; an empty list that it refused proves nothing.
    """

    used_mib: int | None
    ours: dict[int, int | None]
    listed: bool = True

    @property
    def ours_mib(self) -> int:
        """Our processes together."""
        return sum(mib or 0 for mib in self.ours.values())


def held_on(gpus: Sequence[Gpu], found: Inventory, pids: Collection[int]) -> dict[str, Held]:
    """What the driver tells of these GPUs, by UUID."""
    wanted = {gpu.uuid for gpu in gpus}
    return {
        gpu.uuid: Held(
            gpu.used_mib,
            {entry["pid"]: entry["mib"] for entry in gpu.processes or [] if entry["pid"] in pids},
            gpu.processes is not None and gpu.problem is None,
        )
        for gpu in found.gpus
        if gpu.uuid in wanted
    }


def report(
    gpus: Sequence[Gpu], before: dict[str, Held], after: dict[str, Held] | None, why: str | None
) -> dict[str, Any]:
    """The journal's account: `gpu_memory` for each GPU, `memory_unproven` (why) or `memory_held` (lines) where so.

    Args:
        gpus: those of the deployment.
        before: the reading in which our processes held most.
        after: the last one; None when there is none.
        why: the driver's words when it could not be asked.
    """
    nothing = Held(None, {})
    after = after or {}
    account = [
        {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "before_mib": before.get(gpu.uuid, nothing).used_mib,
            "after_mib": after.get(gpu.uuid, nothing).used_mib,
            "ours_before_mib": before[gpu.uuid].ours_mib if gpu.uuid in before else None,
            "ours_after_mib": after[gpu.uuid].ours_mib if gpu.uuid in after else None,
        }
        for gpu in gpus
    ]
    told: dict[str, Any] = {"gpu_memory": account}
    held = [
        f"GPU {gpu.index}: pid {pid} {'memory' if mib is None else f'{mib} MiB'}"
        for gpu in gpus
        for pid, mib in after.get(gpu.uuid, nothing).ours.items()
    ]
    silent = [str(gpu.index) for gpu in gpus if not after.get(gpu.uuid, nothing._replace(listed=False)).listed]
    unseen = [str(gpu.index) for gpu in gpus if not before.get(gpu.uuid, nothing).ours]
    if held:
        told["memory_held"] = held
    elif why is not None:
        told["memory_unproven"] = why
    elif silent:
        told["memory_unproven"] = f"the driver does not list the processes on GPU {', '.join(silent)}"
    elif unseen:
        told["memory_unproven"] = f"the driver never listed a process of this deployment on GPU {', '.join(unseen)}"
    return told


class MemoryProof:
    """The readings of one launch. `watch` and `unwatch` tell the loop about a helper's pipe."""

    def __init__(
        self, gpus: Sequence[Gpu], watch: Callable[[Reading], None], unwatch: Callable[[Reading], None]
    ) -> None:
        self.gpus = gpus
        self.watch, self.unwatch = watch, unwatch
        self.before: dict[str, Held] = {}
        self.after: dict[str, Held] | None = None
        self.why: str | None = None
        self.hangs = False
        self.reading: Reading | None = None
        self.gone_at: float | None = None
        self.told = False
        self.next_at = 0.0

    @property
    def waiting(self) -> bool:
        """Whether every process is gone, and memory is waited for."""
        return self.gone_at is not None

    def recall(self, account: Sequence[dict[str, Any]]) -> None:
        """Take over what an earlier supervisor has told of our processes' memory."""
        for gpu in account:
            if gpu.get("ours_before_mib"):
                self.before[gpu["uuid"]] = Held(gpu.get("before_mib"), {0: gpu["ours_before_mib"]})

    def ask(self) -> None:
        """Begin a reading, if there are GPUs and none is under way. A driver that hangs is not asked again: each
        question would leave a process behind that cannot be killed."""
        if self.gpus and self.reading is None and not self.hangs:
            try:
                self.reading = Reading(everything=False)
            except OSError as error:  # no process or descriptor to be had; the engine matters more
                self.why = f"NVML could not be asked: {error.strerror}"
                return
            self.watch(self.reading)

    def advance(self, members: Collection[Identity]) -> None:
        """Take what the helper has written. `members`: every process that the engine ever had."""
        reading = self.reading
        if reading is None or not reading.advance():
            return
        self.unwatch(reading)
        reading.close()
        self.reading = None
        try:
            found = held_on(self.gpus, reading.result(), {one.pid for one in members if not _reused(one)})
        except NoGpus as error:
            self.why, self.hangs = f"NVML: {error}", error.kind == "no-answer"
            return
        self.why, self.hangs = None, False
        if self.waiting:
            self.after = found
        for uuid, held in found.items():
            known = self.before.get(uuid)
            if known is None or held.ours_mib > known.ours_mib:
                self.before[uuid] = held

    def news(self) -> list[dict[str, Any]] | None:
        """The account for the journal, once: when our processes were seen on every GPU. Whoever adopts can prove then
        that it is gone, even if the engine has ended meanwhile."""
        if self.told or not all(self.before.get(gpu.uuid, Held(None, {})).ours for gpu in self.gpus):
            return None
        self.told = True
        account: list[dict[str, Any]] = report(self.gpus, self.before, None, None)["gpu_memory"]
        return account

    def settled(self, limit_s: float) -> dict[str, Any] | None:
        """Called while no process is left: the account once memory is back or `limit_s` seconds are over, else None."""
        if not self.gpus:
            return {}
        now = time.monotonic()
        if self.reading is not None and self.gone_at is None:
            return None  # asked while it still lived; the next one counts
        if self.gone_at is None:
            self.gone_at = now
            self.ask()
        if self.reading is not None:
            return None
        still = self.after is not None and any(held.ours for held in self.after.values())
        if still and now < self.gone_at + limit_s:
            if now >= self.next_at:
                self.next_at = now + POLL_S
                self.ask()
            return None
        return report(self.gpus, self.before, self.after, self.why)

    def drop(self) -> None:
        """Forget a reading that is under way."""
        if self.reading is not None:
            self.unwatch(self.reading)
            self.reading.close()
            self.reading = None


def _reused(member: Identity) -> bool:
    """Whether its number is another process's now."""
    process = read_process(member.pid)
    return process is not None and process.identity != member
