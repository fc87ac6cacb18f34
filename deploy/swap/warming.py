"""Reading NEW's weights into memory while OLD serves, giving way to OLD's requests."""

import os
import time
from collections.abc import Callable
from typing import Any

from deploy.plan.launch_plan import LaunchPlan
from deploy.warm.client import reports, start_warm

LOOK_S = 1.0
TELL_S = 10.0
TOLD = ("state", "read", "present", "total", "bytes_per_s", "seconds", "why")


def is_worth_it(plan: LaunchPlan) -> bool:
    """Whether the launch itself would read ahead: weights on this disk, not in memory yet, a loader that profits."""
    return bool(plan.load.get("prewarm_files") and plan.shards)


def warm(
    plan: LaunchPlan, serving: str, may: Callable[[], bool], told: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Read until all is in memory, or nothing more fits, or `may` says no. Never raises: a swap does not fail by it.

    Args:
        plan: what will be started.
        serving: the address whose latency must not suffer.
        may: asked once a second.
        told: takes a report now and then.

    Returns:
        The last report (see deploy.warm.__main__), with `stopped_early` where `may` ended it.
    """
    folder = str(plan.load["folder"])
    files = [(os.path.join(folder, shard.name), shard.size) for shard in plan.shards]
    reader = start_warm(files, reserve_bytes=int(plan.load.get("reserve_bytes", 0)), latency_url=f"{serving}/health")
    early = False
    spoke = time.monotonic()
    try:
        for report in reports(reader, LOOK_S):
            if report and time.monotonic() - spoke >= TELL_S:
                spoke = time.monotonic()
                told(_kept(report))
            if not may():
                early = True
                break
        return {**_kept(reader.poll()), "stopped_early": early}
    finally:
        reader.stop()


def _kept(report: dict[str, Any]) -> dict[str, Any]:
    return {key: report[key] for key in TOLD if key in report}
