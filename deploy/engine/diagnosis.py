"""Why an engine failed: its words held against known failures (knowledge.yaml). Pure.

Which of several lines is the reason: what is known as a reason stands before what usually follows another failure, and
closing lines that only say that another process failed are none. Then lines of ranks before those of EngineCore before
those of the API server; of equals the earliest. Once the engine has served, what it said while it loaded no longer
counts, and an API server's errors are those of single requests: of these the last one.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from deploy.engine.knowledge import AFTERMATH, FATAL, WRAPPER, entries
from deploy.engine.log import Line, LogReader
from deploy.engine.remedies import REMEDIES, Context
from deploy.engine.trouble import SERVER, Told, Trouble, gathered

# A line that ends in an exception.
EXCEPTION = re.compile(r"\b(\w*(?:Error|Exception)): (?=\S)(.+)")
SHOWN = 500
KERNEL_LINES = 8

NO_CONTEXT = Context()


def diagnose(
    trouble: Trouble | Iterable[Line],
    *,
    exit_code: int | None,
    signal: str | None,
    tail: Sequence[Line],
    context: Context = NO_CONTEXT,
) -> dict[str, Any]:
    """The diagnosis of an engine that ended by itself.

    Args:
        trouble: the log's lines that speak of trouble, oldest first.
        exit_code: of the engine's first process; None when a signal ended it or it is not known.
        signal: name of the signal that ended it.
        tail: the last lines of the log, shown when nothing is known.
        context: what is known about the launch.
    """
    told = _counting(trouble, context)
    for severity in (FATAL, AFTERMATH):
        candidates = [one for one in told if one.entry is not None and one.entry.severity == severity]
        if candidates:
            return _found(_reason(candidates, context), context)
    return _unknown(told, exit_code, signal, tail, context)


def with_kernel(found: dict[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """A diagnosis together with what the kernel said of the engine's processes and GPUs meanwhile (oldest first).

    The OOM killer and a GPU that is lost are seen by the engine only as something else that went wrong: where its log
    names no reason, or one that usually follows another, theirs is the reason. Else it is evidence beside.
    """
    if not texts:
        return found
    evidence = [{"line": 0, "text": f"kernel: {text}"} for text in texts[:KERNEL_LINES]]
    known = gathered([Line(0, text) for text in texts], entries())
    theirs = diagnose(known, exit_code=None, signal=None, tail=())
    mine = next((entry for entry in entries() if entry.id == found.get("entry")), None)
    if theirs["cause"] != "engine-died" and (mine is None or mine.severity != FATAL):
        return {**theirs, "evidence": [*evidence, *found["evidence"]]}
    return {**found, "evidence": [*found["evidence"], *evidence]}


def context_of(plan: dict[str, Any], reader: LogReader) -> Context:
    """What is known about a launch: from its plan (empty for a log of somebody else's), else from its log."""
    return Context(
        ranks=reader.ranks,
        gpus=tuple(int(gpu["index"]) for gpu in plan.get("gpus", ())),
        utilization=reader.utilization or plan.get("gpu_memory_utilization"),
        serving_since=reader.serving_since,
        kv_cache_taken="kv_cache_tokens" in reader.facts,
    )


def explain(trouble: Trouble, *, tail: Sequence[Line], context: Context = NO_CONTEXT) -> dict[str, Any] | None:
    """The diagnosis of a log of which nothing else is known; None when it speaks of no failure."""
    told = _counting(trouble, context)
    if not any(one.entry is not None or EXCEPTION.search(one.words) for one in told):
        return None
    found = diagnose(trouble, exit_code=None, signal=None, tail=tail, context=context)
    if found["cause"] == "engine-died":
        found["summary"] = found["summary"].replace("the engine is gone; its exit code is not known", "the engine died")
    return found


def _counting(trouble: Trouble | Iterable[Line], context: Context) -> list[Told]:
    told = (trouble if isinstance(trouble, Trouble) else gathered(trouble, entries())).all()
    since = context.serving_since
    return told if since is None else [one for one in told if one.last > since]


def _reason(candidates: Sequence[Told], context: Context) -> Told:
    deepest = min(one.depth for one in candidates)
    equals = [one for one in candidates if one.depth == deepest]
    if context.serving_since is not None and deepest == SERVER:
        return max(equals, key=lambda one: one.last)
    return equals[0]


def _found(told: Told, context: Context) -> dict[str, Any]:
    entry, match = told.entry, told.match
    assert entry is not None
    assert match is not None
    groups = ["", *(group or "" for group in match.groups())]
    settings = [setting.format(*groups) for setting in entry.settings]
    if entry.remedy is not None:
        settings += REMEDIES[entry.remedy](groups, context)
    fix = [" ".join(f"--set {setting}" for setting in settings)] if settings else []
    summary = " ".join(entry.summary.format(*groups).split())
    return {
        "cause": entry.cause,
        "summary": summary[:SHOWN] + _whose(told, context, hardware=entry.hardware),
        "evidence": [_evidence(told)],
        "fix": fix + [text.format(*groups) for text in entry.fix],
        "retryable": entry.retryable,
        "entry": entry.id,
        "settings": settings,
        "explanation": entry.explanation,
    }


def _whose(told: Told, context: Context, *, hardware: bool) -> str:
    """What it says that one rank or all of them have it; nothing for a single rank or an unknown number."""
    if context.ranks is None or context.ranks < 2 or not told.ranks or not hardware:
        return ""
    if len(told.ranks) >= context.ranks:
        return f"; all {context.ranks} ranks say so: suspect the configuration or the version"
    if len(told.ranks) > 1:
        return f"; ranks {', '.join(map(str, sorted(told.ranks)))} of {context.ranks} say so"
    (rank,) = told.ranks
    gpu = f"GPU {context.gpus[rank]}" if rank < len(context.gpus) else f"GPU {rank} of those it was given"
    return f"; only rank {rank} of {context.ranks} says so: suspect {gpu}"


def _evidence(told: Told) -> dict[str, Any]:
    found: dict[str, Any] = {"line": told.line.number, "text": told.line.text[:SHOWN]}
    if told.times > 1:
        found["times"] = told.times
    return found


def _unknown(
    told: Sequence[Told], exit_code: int | None, signal: str | None, tail: Sequence[Line], context: Context
) -> dict[str, Any]:
    """No known failure: the first exception of the deepest process that has one, and the log's last lines."""
    if exit_code == 2:
        cause, summary = "bad-arguments", "vLLM refused the command line (exit code 2)"
    elif signal is not None:
        cause, summary = "engine-died", f"the engine was ended by {signal}, and not by kdeploy"
    elif exit_code is None:
        cause, summary = "engine-died", "the engine is gone; its exit code is not known"
    else:
        cause, summary = "engine-died", f"the engine exited by itself with code {exit_code}"
    roots = [one for one in told if one.entry is None and EXCEPTION.search(one.words)]
    shown = {one.line.number: _evidence(one) for one in told[-3:] if one.entry is None or one.entry.severity == WRAPPER}
    shown |= {line.number: {"line": line.number, "text": line.text[:SHOWN]} for line in tail}
    shown = {number: shown[number] for number in sorted(shown)[-6:]}
    if roots:
        root = _reason(roots, context)
        words = EXCEPTION.search(root.words)
        assert words is not None
        summary += f"; its log says: {words[0][:300]}" + _whose(root, context, hardware=True)
        shown[root.line.number] = _evidence(root)
    return {
        "cause": cause,
        "summary": summary,
        "evidence": [shown[number] for number in sorted(shown)],
        "fix": [],
        "retryable": cause != "bad-arguments",
        "settings": [],
    }
