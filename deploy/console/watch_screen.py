"""The screen of `watch`: phases with their times, the two byte counts, GPUs, and the end of the log."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from deploy.console.words import duration, size
from deploy.lifecycle.fold import seconds_between

BAR = 30
FILLED, HALF, EMPTY = "█", "▓", "░"
LIVE_STATES = ("starting", "ready", "unhealthy", "stopping")
STYLES = {"ready": "bold green", "failed": "bold red", "unhealthy": "bold yellow", "stopped": "dim"}


class View(NamedTuple):
    """What is shown: the public status object, the time as a journal stamp, what phases took before, log lines, and the
    prewarmer's words."""

    status: Mapping[str, Any]
    now: str
    learned: Mapping[str, float]
    log: Sequence[str]


def bar(read: int, loaded: int, total: int, width: int = BAR) -> str:
    """One bar with both counts: full what is loaded, half what is read."""
    first = width * loaded // total
    second = max(first, width * read // total)
    return FILLED * first + HALF * (second - first) + EMPTY * (width - second)


def screen(view: View, width: int, height: int) -> RenderableType:
    """The whole screen, no line wider than `width`, no more lines than `height`."""
    lines = [*_head(view), Text(), *_phases(view), *_load(view, width), *_gpus(view)]
    lines += [*_diagnosis(view)]
    room = height - len(lines) - 2
    if room > 1 and view.log:
        lines.append(Text())
        lines += [Text(line, style="dim") for line in view.log[-(room - 1) :]]
    lines.append(Text("q or Ctrl-C leaves; the deployment goes on", style="dim italic"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Group(*lines[-height:] if len(lines) > height else lines)


def _head(view: View) -> list[Text]:
    status = view.status
    head = Text(str(status["name"]), style="bold")
    head.append("  ")
    head.append(str(status["state"]), style=STYLES.get(str(status["state"]), "bold cyan"))
    if status["started_at"] and status["state"] in LIVE_STATES:
        head.append(f"  for {duration(seconds_between(status['started_at'], view.now))}", style="dim")
    return [head, Text(f"{status['model']}  {status['url']}", style="dim")]


def _phases(view: View) -> list[Text]:
    lines = []
    for number, entry in enumerate(view.status["phases"], 1):
        name, seconds = entry["phase"], entry["seconds"]
        usual = view.learned.get(name)
        line = Text(f"{number:2} {name:<9}")
        if seconds is not None:
            line.append(f"{duration(seconds):>10}")
        elif view.status["state"] == "starting":
            line.append(f"{duration(max(0.0, seconds_between(entry['started_at'], view.now))):>10}", style="bold")
        if usual is not None:
            line.append(f"   usually {duration(usual)}", style="dim")
        lines.append(line)
    return lines


def _load(view: View, width: int) -> list[Text]:
    load, total = view.status["load"], view.status["load"]["bytes_total"]
    if not total or view.status["state"] != "starting":
        return []
    read, loaded = load["bytes_read"], load["bytes_done"]
    line = Text("   ")
    line.append(bar(read, loaded, total, BAR if width >= 100 else BAR // 2), style="cyan")
    line.append(f"  read {100 * read // total} %  loaded {100 * loaded // total} %  of {size(total)}")
    parts = [f"{size(load['bytes_per_s'])}/s"] if load["bytes_per_s"] else []
    parts += [f"weights in {duration(load['eta_s'])}"] if load["eta_s"] else []
    parts += [f"ready in about {duration(load['eta_ready_s'])}"] if load["eta_ready_s"] else []
    parts += [f"source {load['source']}"] if load["source"] else []
    return [Text(), line, Text("   " + ", ".join(parts), style="dim")]


def _gpus(view: View) -> list[Text]:
    gpus = view.status["gpus"]
    known = [f"{gpu['index']}: {gpu['memory_used_mib'] / 1024:.0f}" for gpu in gpus if gpu["memory_used_mib"]]
    return [Text("   GPU memory, GiB   " + "  ".join(known))] if known else []


def _diagnosis(view: View) -> list[Text]:
    found = view.status["diagnosis"]
    return [Text(f"{found['cause']}: {found['summary']}", style="red")] if found else []
