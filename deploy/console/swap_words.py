"""The steps of a swap in words. Pure."""

from typing import Any

from deploy.console.words import size
from deploy.lifecycle.events import Event

OUTCOMES = {
    "committed": "{new} serves; {old} is down",
    "untouched": "{old} serves as before; it was not stopped",
    "rolled-back": "{old} serves again, from the plan it ran with; {new} does not run",
    "neither": "NOTHING SERVES: neither {new} nor {old}",
}


def step_line(event: Event, old: str, new: str) -> str | None:
    """One record of a swap's journal for people; None for those that only machines need."""
    data = event.data
    if event.kind == "step":
        return {
            "warm": f"step     read the weights of {new} into memory while {old} serves",
            "stop-old": f"step     stop {old}",
            "start-new": f"step     start {new}",
            "stop-new": f"step     stop {new}",
            "bring-back": f"step     start {old} again",
        }.get(data["step"])
    if event.kind in ("warming", "warmed"):
        return f"  {_in_memory(data)}" if data.get("total") else None
    if event.kind == "doomed":
        return f"{new} is given up: {data['reason']['what']}"
    if event.kind == "back-failed":
        return f"{old} cannot be started again: {data['reason']['what']}"
    if event.kind == "adopted":
        return f"{data['deployment']}: its supervisor had died; a new one has adopted it"
    if event.kind == "interrupted":
        return f"interrupted: {data['reason']['what']}"
    return None


def _in_memory(data: dict[str, Any]) -> str:
    text = f"{size(data['present'])} of {size(data['total'])} in memory"
    if data["state"] == "paused":
        return f"{text}; paused, because the old one answers slower"
    if data.get("read") and data.get("seconds"):
        text += f", {size(data['read'])} read at {size(data['read'] / data['seconds'])}/s"
    if data.get("why"):
        text += f"; stopped: {data['why']}"
    return text


def outcome_line(data: dict[str, Any], old: str, new: str) -> str:
    """What came of it."""
    text = OUTCOMES[data["outcome"]].format(old=old, new=new)
    return f"{text} ({data['why']})" if data.get("why") else text
