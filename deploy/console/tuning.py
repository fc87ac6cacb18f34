"""A tune in words: what it is going to do, what came of it, and the overlay that it offers. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from deploy.console.measurement import number, table
from deploy.tuning.budget import words
from deploy.tuning.document import CHANGE, KEPT, LEFT_OUT, NOT_TRIED

WIDE = 60
LONG = 140


def changes(env: Mapping[str, Any], args: Mapping[str, Any]) -> str:
    """What a candidate changes, on one line."""
    told = [f"-{key}" if value is None else f"{key}={value}" for key, value in env.items()]
    for key, value in args.items():
        told.append(
            f"-{key}" if value is None else f"{key}: {json.dumps(value) if not isinstance(value, str) else value}"
        )
    text = ", ".join(told)
    return text if len(text) <= WIDE else text[: WIDE - 1] + "…"


def plan(found: Mapping[str, Any]) -> list[str]:
    """What a tune is going to do: who is tried, who is not and why, how long it takes."""
    rows = [("CANDIDATE", "CHANGES", "")]
    for one in found["candidates"]:
        tried = one["status"] not in (NOT_TRIED, LEFT_OUT)
        rows.append((one["name"], changes(one["env"], one["args"]), "tried" if tried else f"no: {one['reason']}"))
    why_not = found["collective"]["why_not"]
    first = "first an all-reduce alone ranks those of NCCL" if why_not is None else f"no all-reduce alone: {why_not}"
    stream = "a single stream" if found["concurrency"] == 1 else f"{found['concurrency']} streams"
    return [
        *table(rows),
        "",
        first,
        f"then at most {found['rounds']} rounds, baseline and candidates launched in turn: "
        f"{found['metric']} tok/s of {stream}",
        "every launch answers the canary first"
        + ("" if found["canary"]["coherence"] else "; only that it answers counts here, as the profile says"),
        time(found["estimate"]),
    ]


def time(estimate: Mapping[str, Any]) -> str:
    """How long it may take, and what that stands on."""
    budget = f"; the budget is {words(estimate['budget_s'])}" if estimate["budget_s"] is not None else ""
    if estimate["launch_s"] is None:
        return f"how long: not known, this profile has never been launched; the first round tells{budget}"
    cell = "" if estimate["cell_s"] is None else f", {words(estimate['cell_s'])} to measure"
    loads = f"{words(estimate['launch_s'])} to load (median of the last {estimate['launches']}){cell}"
    without = "" if estimate["cell_s"] is not None else ", and what the measuring takes"
    return f"how long: at most {words(estimate['whole_s'])}{without}; each launch {loads}{budget}"


def result(found: Mapping[str, Any]) -> list[str]:
    """The table, the verdict and the overlay."""
    base = found["baseline"]
    rows: list[tuple[str, ...]] = [("CANDIDATE", "TOK/S", "CHANGE", "INTERVAL", "PAIRS", "ALL-REDUCE", "VERDICT")]
    rows.append(("baseline", number(base["tok_s"]), "", "", str(len(base["launches"])), "", ""))
    rows += [_row(one) for one in found["candidates"] if one["status"] not in (NOT_TRIED, LEFT_OUT)]
    told = table(rows)
    told += [
        f"{one['name']} is {one['status']}: {one['reason'][:LONG]}" for one in found["candidates"] if _explained(one)
    ]
    marks = sorted({mark for one in (base, *found["candidates"]) for cell in one["launches"] for mark in cell["marks"]})
    if marks:
        told.append(f"some launches are marked: {', '.join(marks)}")
    left = [one for one in found["candidates"] if one["status"] in (NOT_TRIED, LEFT_OUT)]
    if left:
        told.append(f"not tried: {', '.join(one['name'] for one in left)} (--json says why)")
    if found["ended"] == "budget":
        told.append("the budget ended it")
    return [*told, "", verdict(found)]


def _explained(one: Mapping[str, Any]) -> bool:
    return bool(one["reason"]) and one["status"] not in (NOT_TRIED, LEFT_OUT)


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    interval = "" if one["low"] is None else f"[{one['low']:+.1%}, {one['high']:+.1%}]"
    return (
        one["name"],
        number(one["tok_s"]) if one["tok_s"] else "",
        "" if one["change"] is None else f"{one['change']:+.1%}",
        interval,
        str(one["pairs"]),
        "" if one["collective_gain"] is None else f"{one['collective_gain']:+.1%}",
        one["status"],
    )


def verdict(found: Mapping[str, Any]) -> str:
    """The one line that counts."""
    decided = found["verdict"]
    if decided["decision"] == KEPT:
        return f"verdict: kept as it is: {decided['why']}"
    if decided["decision"] == CHANGE:
        return f"verdict: {decided['why']}"
    return f"verdict: {decided['why']}"


def overlay(found: Mapping[str, Any]) -> list[str]:
    """The overlay as YAML that a profile or host.yaml may hold; empty when the old setting is kept."""
    if not found["overlay"]:
        return []
    told = [f"# kdeploy tune {found['name']}, {found['id']}: {found['verdict']['why']}"]
    for section, entries in found["overlay"].items():
        told.append(f"{section}:")
        told += [f"  {_key(key)}: {_value(value)}" for key, value in entries.items()]
    return told


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z_][\w.-]*", key) else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[1-9][0-9]*", value):
        return value
    return json.dumps(value, ensure_ascii=False)


def steps(found: Mapping[str, Any], host: str, *, exists: bool) -> Sequence[str]:
    """What to do with a verdict that wants a change. `host`: the host's overlay, and whether there is one."""
    if found["verdict"]["decision"] != CHANGE:
        return []
    write = f"kdeploy tune {found['name']} --show --write-overlay {host}   writes it"
    return [
        f"{f'merge these keys into {host}' if exists else write}; it is laid over every profile of this host",
        f"or the same keys in the profile {found['profile']}; nothing is changed by itself",
    ]
