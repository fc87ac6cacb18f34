"""The document of a measurement, and what two of them say together. Pure."""

from collections.abc import Mapping
from typing import Any

from deploy.measure import statistics

ENVIRONMENT = ("NCCL_", "VLLM_", "CUDA_", "OMP_", "TORCH_")
METRICS = {"raw": "raw_tok_s", "visible": "visible_tok_s"}
# what may explain a difference, in the order in which it is told
CIRCUMSTANCES = ("model", "profile", "digest", "engine", "patches", "driver", "gpus", "env", "argv")


def document(
    name: str, measured: Mapping[str, Any], target: Mapping[str, Any], subject: Mapping[str, Any], when: str
) -> dict[str, Any]:
    """The whole document. `target`: metric and tok_s as wanted; `subject`: what was measured, for later comparison."""
    return {
        "schema": 1,
        "name": name,
        "target": judge(target, measured["single"]),
        **measured,
        "measured_at": when,
        "subject": dict(subject),
    }


def judge(target: Mapping[str, Any], single: Mapping[str, Any]) -> dict[str, Any]:
    """The target in its own metric, the other metric beside it; met is None where nothing is asked or measured."""
    metric = target.get("metric") or "visible"
    wanted = target.get("tok_s")
    measured = single.get(METRICS[metric])
    other = "raw" if metric == "visible" else "visible"
    return {
        "metric": metric,
        "tok_s": wanted,
        "measured": measured,
        "met": None if wanted is None or measured is None else measured >= wanted,
        "other": {"metric": other, "measured": single.get(METRICS[other])},
    }


def subject(plan: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """What a deployment is, from its launch plan; secrets are references there."""
    env = {key: value for key, value in plan.get("env", {}).items() if key.startswith(ENVIRONMENT)}
    return {
        "profile": plan.get("profile"),
        "digest": plan.get("digest"),
        "engine": plan.get("engine"),
        "patches": plan.get("patches", []),
        "argv": plan.get("argv"),
        "env": env,
        **more,
    }


def compare(before: Mapping[str, Any], after: Mapping[str, Any], margin: float = statistics.MARGIN) -> dict[str, Any]:
    """Row by row what became of A in B: single stream metrics, and every level that both have."""
    rows = []
    for key, higher in (
        ("raw_tok_s", True),
        ("visible_tok_s", True),
        ("wall_tok_s", True),
        ("ttft_s", False),
        ("ttft_visible_s", False),
    ):
        samples = [one["samples"]["single"].get(key) or [] for one in (before, after)]
        rows.append(_row(f"single {key}", one_of(before, key), one_of(after, key), samples, higher, margin))
    levels = {_level(entry): entry for entry in after["sweep"]}
    for entry in before["sweep"]:
        other = levels.get(_level(entry))
        if other is None:
            continue
        samples = [one["samples"]["request_tok_s"] for one in (entry, other)]
        rows.append(
            _row(f"{_level(entry)} request tok_s", entry["raw_tok_s"], other["raw_tok_s"], samples, True, margin)
        )
    return {
        "schema": 1,
        "a": before.get("id"),
        "b": after.get("id"),
        "margin": margin,
        "rows": [row for row in rows if row],
        "differs": differing(before["subject"], after["subject"]),
        "request_differs": differing(before["request"], after["request"], tuple(before["request"])),
    }


def one_of(document: Mapping[str, Any], key: str) -> Any:
    """A figure of the single stream."""
    return document["single"].get(key)


def _level(entry: Mapping[str, Any]) -> str:
    return f"rate {entry['rate']:g}" if entry.get("loop") == "open" else f"c{entry['concurrency']}"


def _row(
    what: str, a: float | None, b: float | None, samples: list[list[float]], higher: bool, margin: float
) -> dict[str, Any] | None:
    found = statistics.compare(samples[0], samples[1], higher_is_better=higher, margin=margin)
    if found is None:
        return None
    return {
        "what": what,
        "a": a,
        "b": b,
        "verdict": found.verdict,
        "change": round(found.change, 4),
        "low": round(found.low, 4),
        "high": round(found.high, 4),
        "n": [len(one) for one in samples],
    }


def differing(a: Mapping[str, Any], b: Mapping[str, Any], keys: tuple[str, ...] = CIRCUMSTANCES) -> dict[str, Any]:
    """The circumstances that are not the same: {key: [in A, in B]}; of argv and env only what differs."""
    found: dict[str, Any] = {}
    for key in keys:
        one, other = a.get(key), b.get(key)
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            changed = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
            found[key] = [{name: side.get(name) for name in changed} for side in (one, other)]
        elif isinstance(one, list) and isinstance(other, list):
            found[key] = [
                [word for word in one if word not in other],
                [word for word in other if word not in one],
            ]
        else:
            found[key] = [one, other]
    return found
