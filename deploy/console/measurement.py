"""Measurements in words. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any


def number(value: float | None, digits: int = 1) -> str:
    """A figure, or n/a."""
    return "n/a" if value is None else f"{value:.{digits}f}"


def seconds(value: float | None) -> str:
    """A time in the unit that suits it."""
    if value is None:
        return "n/a"
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"


def lines(found: Mapping[str, Any]) -> list[str]:
    """A whole measurement, line by line."""
    single, check = found["single"], found["crosscheck"]
    told = [target(found["target"]), ""]
    told += [f"{label:<16}{text}" for label, text in _single(single)]
    told += [f"{label:<16}{text}" for label, text in _check(check)]
    if found["sweep"]:
        told += ["", *table(sweep(found["sweep"]))]
        told += [f"{_level(entry)}: {mark}" for entry in found["sweep"] for mark in _marks(entry)]
    if found.get("sweep_ended"):
        told.append(f"the sweep ended: {found['sweep_ended']}")
    return told


def target(judged: Mapping[str, Any]) -> str:
    """The target and what came of it, never without the other metric."""
    beside = f"{judged['other']['metric']} {number(judged['other']['measured'])} tok/s"
    measured = f"{judged['metric']} {number(judged['measured'])} tok/s"
    if judged["tok_s"] is None:
        return f"no target; {measured}, {beside}"
    word = {True: "met", False: "missed", None: "not judged"}[judged["met"]]
    return f"target {judged['metric']} {judged['tok_s']:g} tok/s: {word} with {measured} (beside it: {beside})"


def _single(single: Mapping[str, Any]) -> list[tuple[str, str]]:
    split = f"{single['reasoning_tokens']} reasoning, {single['content_tokens']} content"
    if single["reasoning_tokens"] is None:
        split = "reasoning and content cannot be told apart"
    rows = [
        ("raw", _with_interval(single, "raw_tok_s")),
        ("visible", _with_interval(single, "visible_tok_s")),
        ("wall", _with_interval(single, "wall_tok_s")),
        ("TTFT", f"{seconds(single['ttft_s'])}, to the first visible token {seconds(single['ttft_visible_s'])}"),
        ("TPOT, ITL", f"{seconds(single['tpot_s'])}; {_percentiles(single['itl_s'])}"),
        ("tokens", f"{single['completion_tokens']}: {split} (split by {single['split_by']})"),
        ("characters", f"{single['reasoning_characters']} reasoning, {single['content_characters']} content"),
        ("requests", f"{single['requests']}, {single['failed']} failed, {single['prompt_tokens']} tokens in"),
    ]
    rows += [("failed", f"{count} times: {reason}") for reason, count in single["failures"].items()]
    rows.append(("GPUs", gpus(single["gpus"])))
    return rows + [("note", mark) for mark in _marks(single)]


def _check(check: Mapping[str, Any]) -> list[tuple[str, str]]:
    if check.get("tok_s") is None:
        return [("cross-check", f"failed: {check['failure']}")]
    figures = f"{check['completion_tokens']} tokens in {check['wall_s']:.2f} s, {number(check['tok_s'])} tok/s"
    return [("cross-check", figures), ("", check["explained"])]


def _with_interval(single: Mapping[str, Any], key: str) -> str:
    interval = single["interval"].get(key)
    text = f"{number(single[key])} tok/s"
    if interval is None:
        return text
    return f"{text}   [{number(interval['low'])}, {number(interval['high'])}], median of {interval['n']}"


def _percentiles(found: Mapping[str, float] | None) -> str:
    return "n/a" if not found else ", ".join(f"{key} {seconds(value)}" for key, value in found.items())


def gpus(found: Sequence[Mapping[str, Any]] | None) -> str:
    """Clocks, power and temperature of the GPUs in one line."""
    if not found:
        return "n/a"
    spans = [
        _span([gpu[key] for gpu in found], unit)
        for key, unit in (("sm_clock_mhz", "MHz"), ("power_w", "W"), ("temperature_c", "C"))
    ]
    reasons = sorted({text for gpu in found for text in gpu["throttled"] or ()})
    known = any(gpu["throttled"] is not None for gpu in found)
    return f"{', '.join(spans)}; throttled: {', '.join(reasons) or ('no' if known else 'n/a')}"


def _span(values: Sequence[float | None], unit: str) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return f"n/a {unit}"
    return f"{known[0]:g} {unit}" if known[0] == known[-1] else f"{known[0]:g}-{known[-1]:g} {unit}"


def sweep(levels: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The rows of the sweep's table."""
    rows: list[tuple[str, ...]] = [
        (
            "LEVEL",
            "RAW TOK/S",
            "VISIBLE",
            "REQUESTS",
            "FAILED",
            "TTFT P50",
            "P99",
            "TPOT P50",
            "P99",
            "E2E P50",
            "MARKS",
        )
    ]
    for entry in levels:
        rows.append(
            (
                _level(entry),
                number(entry["raw_tok_s"]),
                number(entry["visible_tok_s"]),
                str(entry["requests"]),
                str(entry["failed"]),
                *_pair(entry["ttft_s"]),
                *_pair(entry["tpot_s"]),
                _pair(entry["e2e_s"])[0],
                ", ".join(_short(entry)),
            )
        )
    return rows


def _level(entry: Mapping[str, Any]) -> str:
    if "concurrency" not in entry:
        return "single"
    return f"{entry['rate']:g}/s" if entry.get("loop") == "open" else str(entry["concurrency"])


def _pair(found: Mapping[str, float] | None) -> tuple[str, str]:
    return (seconds(found["p50"]), seconds(found["p99"])) if found else ("n/a", "n/a")


def _short(entry: Mapping[str, Any]) -> list[str]:
    throttled = any(gpu["throttled"] for gpu in entry["gpus"] or ())
    marks = (("void", entry["void"]), ("client-bound", entry["client_bound"]), ("throttled", throttled))
    return [word for word, is_so in marks if is_so]


def _marks(entry: Mapping[str, Any]) -> list[str]:
    """What a reader must know beside the figures."""
    told = []
    if entry["void"]:
        told.append(f"void: {entry['void']}")
    if entry["client_bound"]:
        client = entry["client"]
        told.append(
            f"the client may have been the limit: {client['busy']:.0%} busy, {seconds(client['lag_p99_s'])} late"
        )
    if entry["clean"] is None:
        told.append("whether others used the server meanwhile is not known: it has no /metrics of vLLM")
    reasons = sorted({text for gpu in entry["gpus"] or () for text in gpu["throttled"] or ()})
    if reasons:
        told.append(f"the GPUs were slowed: {', '.join(reasons)}")
    if "concurrency" in entry:
        told += [f"{count} failed: {reason}" for reason, count in entry["failures"].items()]
    return told


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def comparison(found: Mapping[str, Any]) -> list[str]:
    """Two measurements, row by row."""
    rows: list[tuple[str, ...]] = [("METRIC", "A", "B", "CHANGE", "95 % INTERVAL", "SAMPLES", "B IS")]
    for row in found["rows"]:
        rows.append(
            (
                row["what"],
                number(row["a"], 3),
                number(row["b"], 3),
                f"{row['change']:+.1%}",
                f"[{row['low']:+.1%}, {row['high']:+.1%}]",
                f"{row['n'][0]}, {row['n'][1]}",
                row["verdict"],
            )
        )
    told = [f"A  {found['a']}", f"B  {found['b']}", "", *table(rows)]
    told += ["", f"practically equal: the interval lies within {found['margin']:.0%}"]
    for key, (a, b) in {**found["differs"], **found["request_differs"]}.items():
        told += [f"differs: {key}", f"  A  {_brief(a)}", f"  B  {_brief(b)}"]
    return told


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={entry}" for key, entry in value.items()) or "-"
    return " ".join(map(str, value)) or "-" if isinstance(value, list) else str(value)
