"""A measurement as one HTML page that opens offline: no script, no font, no address. Pure."""

import html
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

WIDTH, HEIGHT = 560, 260
LEFT, BOTTOM, TOP, RIGHT = 62, 40, 16, 12
COLOURS = ("#1f6feb", "#d1662a", "#2f8f4e")
STYLE = """body{font:15px/1.45 system-ui,sans-serif;max-width:1180px;margin:2em auto;padding:0 1em;color:#1c2128}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .8em;text-align:right;border-bottom:1px solid #d8dee4}
td:first-child,th:first-child{text-align:left}figure{display:inline-block;margin:0 1em 1em 0}
figcaption{font-weight:600}pre{background:#f6f8fa;padding:.8em;overflow:auto}.bad{color:#b42318}"""

Series = tuple[str, Sequence[tuple[float, float]]]


def page(document: Mapping[str, Any]) -> str:
    """The whole page."""
    name = html.escape(document["name"])
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{name}: measured by kdeploy</title>",
        f"<style>{STYLE}</style><h1>{name}</h1><p>{html.escape(document['measured_at'])}</p>",
        _target(document["target"]),
        _table("Single stream", _single(document)),
        _table("Sweep", _sweep(document["sweep"])) if document["sweep"] else "",
        *(plot(title, unit, series) for title, unit, series in charts(document)),
        _facts(document),
    ]
    return "\n".join(part for part in parts if part) + "\n"


def charts(document: Mapping[str, Any]) -> list[tuple[str, str, list[Series]]]:
    """(title, unit, series by concurrency) of every plot that the sweep allows."""
    levels = [entry for entry in document["sweep"] if not entry["void"]]
    if not levels:
        return []

    def by_level(value: Callable[[Mapping[str, Any]], float | None]) -> list[tuple[float, float]]:
        return [(entry["concurrency"], found) for entry in levels if (found := value(entry)) is not None]

    def percentile(key: str, which: str) -> list[tuple[float, float]]:
        return by_level(lambda entry: (entry[key] or {}).get(which))

    return [
        (
            "Throughput",
            "tok/s",
            [
                ("raw", by_level(lambda entry: entry["raw_tok_s"])),
                ("visible", by_level(lambda entry: entry["visible_tok_s"])),
            ],
        ),
        ("TTFT", "s", [("p50", percentile("ttft_s", "p50")), ("p99", percentile("ttft_s", "p99"))]),
        ("TPOT", "s", [("p50", percentile("tpot_s", "p50")), ("p99", percentile("tpot_s", "p99"))]),
        ("End to end", "s", [("p50", percentile("e2e_s", "p50")), ("p99", percentile("e2e_s", "p99"))]),
    ]


def plot(title: str, unit: str, series: Sequence[Series]) -> str:
    """One line plot as SVG: concurrency on a logarithmic axis, values from zero."""
    points = [point for _, values in series for point in values]
    if not points:
        return ""
    xs = sorted({x for x, _ in points})
    top = nice(max(y for _, y in points))
    span = math.log2(xs[-1] / xs[0]) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log2(x / xs[0]) / span) if len(xs) > 1 else 0.5
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y / top * (HEIGHT - BOTTOM - TOP)

    drawn = []
    for step in range(5):
        value = top * step / 4
        _, y = at(xs[0], value)
        drawn.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#d8dee4"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for x in xs:
        drawn.append(f'<text x="{at(x, 0)[0]:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    drawn.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">concurrent requests</text>')
    for index, (name, values) in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        places = [at(x, y) for x, y in sorted(values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        drawn.append(f'<text x="{LEFT + 8 + 80 * index}" y="{TOP + 2}" fill="{colour}">{html.escape(name)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-size="11" role="img">'
    return f"<figure><figcaption>{html.escape(title)} ({unit})</figcaption>{head}{''.join(drawn)}</svg></figure>"


def nice(value: float) -> float:
    """The next round number above a value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 4, 5, 8, 10) if step * power >= value * (1 - 1e-9))


def _target(target: Mapping[str, Any]) -> str:
    other = target["other"]
    measured = (
        f"{target['metric']} {_cell(target['measured'])} tok/s, {other['metric']} {_cell(other['measured'])} tok/s"
    )
    if target["tok_s"] is None:
        return f"<p>No target. {measured}.</p>"
    word = {True: "met", False: "<span class=bad>missed</span>", None: "not judged"}[target["met"]]
    return f"<p>Target {target['metric']} {target['tok_s']:g} tok/s: <b>{word}</b>. Measured: {measured}.</p>"


def _single(document: Mapping[str, Any]) -> list[list[str]]:
    single, check = document["single"], document["crosscheck"]
    rows = [["", "median", "95 % interval"]]
    for key, label in (
        ("raw_tok_s", "raw tok/s"),
        ("visible_tok_s", "visible tok/s"),
        ("wall_tok_s", "wall tok/s"),
        ("ttft_s", "TTFT, s"),
        ("ttft_visible_s", "TTFT to the first visible token, s"),
        ("tpot_s", "TPOT, s"),
    ):
        interval = single["interval"].get(key)
        rows.append(
            [label, _cell(single[key]), f"{_cell(interval['low'])} to {_cell(interval['high'])}" if interval else ""]
        )
    rows.append(["reasoning tokens", _cell(single["reasoning_tokens"]), f"split by {single['split_by']}"])
    rows.append(["content tokens", _cell(single["content_tokens"]), ""])
    rows.append(["failed requests", f"{single['failed']} of {single['requests']}", ""])
    rows.append(["cross-check, tok/s", _cell(check.get("tok_s")), html.escape(check.get("explained", ""))])
    return rows


def _sweep(levels: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = [["concurrency", "raw tok/s", "visible", "requests", "failed", "TTFT p50", "p99", "TPOT p50", "p99", ""]]
    for entry in levels:
        marks = [word for word in ("void", "client_bound") if entry[word]]
        if any(gpu["throttled"] for gpu in entry["gpus"] or ()):
            marks.append("throttled")
        spread = [_cell((entry[key] or {}).get(which)) for key in ("ttft_s", "tpot_s") for which in ("p50", "p99")]
        rates = [_cell(entry["raw_tok_s"]), _cell(entry["visible_tok_s"])]
        counts = [str(entry["requests"]), str(entry["failed"])]
        rows.append([f"{entry['concurrency']}", *rates, *counts, *spread, f"<span class=bad>{', '.join(marks)}</span>"])
    return rows


def _table(title: str, rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{cell}</th>" for cell in rows[0])
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows[1:])
    return f"<h2>{title}</h2><table><tr>{head}</tr>{body}</table>"


def _facts(document: Mapping[str, Any]) -> str:
    text = json.dumps({key: document[key] for key in ("subject", "request")}, indent=1, ensure_ascii=False)
    return f"<h2>What was measured</h2><pre>{html.escape(text)}</pre>"


def _cell(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"
