"""Numbers and events in words, shared by every renderer. Pure."""

from collections.abc import Callable
from typing import Any

from deploy.lifecycle.events import Event
from deploy.lifecycle.fold import Observed


def size(count: float | None) -> str:
    """Bytes for people, decimal units as disks and hubs use them."""
    if count is None:
        return "?"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float | None) -> str:
    """Seconds for people."""
    if seconds is None:
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def progress_line(load: dict[str, Any], phase: str | None) -> str:
    """Progress as a line of its own: before the weights phase it is only kdeploy that reads."""
    if phase == "weights" or load.get("bytes_done") or not load.get("bytes_total"):
        return f"weights  {progress(load)}"
    read, total = load.get("bytes_read") or 0, load["bytes_total"]
    parts = [f"{size(read)} of {size(total)} ({100 * read / total:.0f} %)", *_speed_and_eta(load)]
    return f"prewarm  {', '.join(parts)}"


def progress(load: dict[str, Any], *, brief: bool = False) -> str:
    """`load` of the status object in one line: shards, bytes, percent, rate, ETA; `brief` for narrow terminals."""
    parts = []
    if load.get("shards_total"):
        parts.append(f"{load['shards_done']}/{load['shards_total']} shards")
    done, total = load.get("bytes_done"), load.get("bytes_total")
    if total:
        percent = f"{100 * (done or 0) / total:.0f} %"
        read = load.get("bytes_read") or 0
        if read > (done or 0):
            percent = f"read {100 * read / total:.0f} % · loaded {percent}"
        parts.append(percent if brief else f"{size(done)} of {size(total)} ({percent})")
    return ", ".join([*parts, *_speed_and_eta(load, brief=brief)])


def _speed_and_eta(load: dict[str, Any], *, brief: bool = False) -> list[str]:
    parts = []
    if load.get("bytes_per_s"):
        parts.append(f"{size(load['bytes_per_s'])}/s")
    if load.get("eta_s"):
        parts.append(f"loaded in {duration(load['eta_s'])}")
    if load.get("eta_ready_s") and not brief:
        parts.append(f"ready in about {duration(load['eta_ready_s'])}")
    return parts


def load_summary(took: dict[str, Any], past: list[dict[str, Any]]) -> list[str]:
    """What a load took, held against the disk's own rate and against earlier loads like it. `took`: the entry of the
    history, `past`: those before it."""
    phases = took.get("phases", {})
    lines = []
    ahead = took.get("read_ahead") or {}
    if ahead.get("bytes") and ahead.get("seconds"):
        words = f"{size(ahead['bytes'])} read ahead in {duration(ahead['seconds'])}"
        lines.append(words + _rate(ahead["bytes"] / ahead["seconds"], took.get("probe_bytes_per_s")))
    if "weights" in phases:
        text = f"weights {duration(phases['weights'])}"
        if took.get("bytes_per_s"):
            # what comes from memory says nothing about the disk
            from_disk = took.get("cold") and not ahead.get("bytes")
            text += _rate(took["bytes_per_s"], took.get("probe_bytes_per_s") if from_disk else None)
        lines.append(text)
    if took.get("total_s"):
        totals = sorted(entry["total_s"] for entry in past if entry.get("total_s"))
        text = f"ready after {duration(took['total_s'])}"
        if totals:
            middle, count = totals[len(totals) // 2], len(totals)
            text += f"; before it {duration(middle)} (median of {count} start{'s' if count > 1 else ''})"
        lines.append(text)
    return lines


def _rate(rate: float, probe: float | None) -> str:
    text = f" at {size(rate)}/s"
    return f"{text}, {100 * rate / probe:.0f} % of the probe's {size(probe)}/s" if probe else text


Words = Callable[[dict[str, Any], Observed], str]


def event_line(event: Event, observed: Observed) -> str | None:
    """One event as a line for people; None for those that only machines need. `observed` is the fold with it."""
    data = event.data
    words = _EVENT_WORDS.get(event.kind)
    if words is None:
        return None
    text = words(data, observed)
    return text if text else None


def _phase(data: dict[str, Any], observed: Observed) -> str:
    return f"{data['phase']:<8} after {duration(data.get('seconds'))} of {data.get('after')}"


def _ready(data: dict[str, Any], observed: Observed) -> str:
    text = f"ready    {data.get('url')}  model {data.get('model')}, after {duration(data.get('total_seconds'))}"
    text += "".join(f"\n         {line}" for line in _patches(data.get("patches", {})))
    return f"{text}\n         {data['reduced']}" if data.get("reduced") else text


def _patches(patches: dict[str, dict[str, int]]) -> list[str]:
    return [
        f"patch {name}: {', '.join(f'{outcome} in {count} processes' for outcome, count in counts.items())}"
        for name, counts in patches.items()
    ]


def _fact(data: dict[str, Any], observed: Observed) -> str:
    shown = {"kv_cache_tokens": "KV cache holds {:,} tokens", "model_gib": "weights take {:g} GiB a rank"}
    return "; ".join(shown[key].format(value) for key, value in data.items() if key in shown)


def _exited(data: dict[str, Any], observed: Observed) -> str:
    how = f"by {data['signal']}" if data.get("signal") else f"with code {data.get('exit_code')}"
    if data.get("exit_code") is None and not data.get("signal"):
        how = "(its exit code is not known)"
    return f"engine ended {how}" + ("" if data.get("asked") else ", unasked")


def _failed(data: dict[str, Any], observed: Observed) -> str:
    return f"failed   {data['diagnosis']['cause']}: {data['diagnosis']['summary']}"


def _stop(data: dict[str, Any], observed: Observed) -> str:
    return "stopping" + (", letting running requests finish" if data.get("drain") else "")


def _tree_gone(data: dict[str, Any], observed: Observed) -> str:
    removed = data.get("shared_memory_removed", ())
    extra = f", {len(removed)} shared memory files removed" if removed else ""
    return f"every process of the engine is gone{extra}{_memory_back(data)}"


def _memory_back(data: dict[str, Any]) -> str:
    """Each GPU's memory before and after, a line each."""
    if data.get("memory_unproven"):
        return f"\n         GPU memory is not proven to be back: {data['memory_unproven']}"
    told = "\n         GPU memory is back" if data.get("gpu_memory") else ""
    rows = [
        f"\n         GPU {gpu['index']}  {mib(gpu['before_mib'])} -> {mib(gpu['after_mib'])}"
        f", ours {mib(gpu['ours_before_mib'])} -> {mib(gpu['ours_after_mib'])}"
        for gpu in data.get("gpu_memory", ())
    ]
    return told + "".join(rows)


def mib(value: int | None) -> str:
    """MiB for people."""
    return "n/a" if value is None else f"{value} MiB"


def _prewarm(data: dict[str, Any], observed: Observed) -> str:
    state = data.get("state")
    if state == "resident":
        return "prewarm  the weights are in memory already"
    if state == "stopped":
        return f"prewarm  stopped: {data.get('why')}"
    if state == "done":
        return (
            f"prewarm  all {size(data.get('total'))} in memory, {size(data.get('read'))} read by {data.get('method')}"
        )
    return "prewarm  reading ahead of the engine" if state == "started" else ""


_EVENT_WORDS: dict[str, Words] = {
    "prewarm": _prewarm,
    "fell-back": lambda data, observed: f"again    {data.get('reason')}",
    "launch": lambda data, observed: f"launch   {data.get('launch')}",
    "spawned": lambda data, observed: f"spawn    engine pid {data.get('pid')}",
    "phase": _phase,
    "fact": _fact,
    "ready": _ready,
    "foreign-listener": lambda data, observed: f"port {data.get('port')} is answered by a process that is not ours",
    "unhealthy": lambda data, observed: (
        f"unhealthy: {data.get('why')}" + (f" ({data['failures']} times in a row)" if data.get("failures") else "")
    ),
    "healthy": lambda data, observed: "healthy again",
    "process-ended": lambda data, observed: f"{data.get('title')} (pid {data.get('pid')}) has ended",
    "exited": _exited,
    "failed": _failed,
    "teardown-incomplete": _failed,
    "stop-asked": _stop,
    "drained": lambda data, observed: (
        f"drained  after {duration(data.get('seconds'))}" + (f": {data['why']}" if data.get("why") else "")
    ),
    "drain-over": lambda data, observed: f"requests still run after {duration(data.get('seconds'))}; going on",
    "signal": lambda data, observed: f"{data.get('signal')} to {len(data.get('pids', ()))} process(es)",
    "tree-gone": _tree_gone,
    "stopped": lambda data, observed: "stopped  " + _tree_gone(data, observed),
    "retry": lambda data, observed: f"restart in {duration(data.get('in_s'))}: {data.get('reason')}",
    "gave-up": lambda data, observed: f"no restart: {data.get('reason')}",
    "adopted": lambda data, observed: f"adopted by a new supervisor: {data.get('why')}",
}
