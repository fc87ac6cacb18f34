"""From timelines to figures. Pure; every formula stands in docs/measuring.md."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from deploy.measure.timeline import CONTENT, REASONING, Timeline

USAGE, TOKENIZE, NONE = "usage", "tokenize", "none"
NOT_COUNTED = "no tokens came, or nothing counted them"
PERCENTILES = (50, 90, 99)


class Split(NamedTuple):
    """Completion tokens of one answer, by what a reader sees. `by`: USAGE, TOKENIZE or NONE (not known)."""

    completion: int
    reasoning: int | None
    content: int | None
    by: str


class Figures(NamedTuple):
    """One streamed answer. Rates in tokens a second, times in seconds; None where it cannot be said."""

    completion_tokens: int
    reasoning_tokens: int | None
    content_tokens: int | None
    prompt_tokens: int | None
    reasoning_characters: int
    content_characters: int
    split_by: str
    raw_tok_s: float | None
    visible_tok_s: float | None
    wall_tok_s: float
    ttft_s: float
    ttft_visible_s: float | None
    tpot_s: float | None
    e2e_s: float
    connect_s: float
    events: int


def split(timeline: Timeline, reasoning: int | None = None, content: int | None = None) -> Split | None:
    """How the tokens of an answer divide; None when neither the server nor a tokenizer counted them.

    Args:
        reasoning: tokens of the reasoning text by the engine's own tokenizer, where it was asked.
        content: likewise.
    """
    told = timeline.usage.get("completion_tokens")
    if told is None:
        if reasoning is None or content is None:
            return None
        return Split(reasoning + content, reasoning, content, TOKENIZE)
    if not timeline.reasoning_text:
        return Split(told, 0, told, USAGE)
    details = timeline.usage.get("completion_tokens_details") or {}
    if details.get("reasoning_tokens"):
        return Split(told, details["reasoning_tokens"], told - details["reasoning_tokens"], USAGE)
    if not timeline.content_text:
        return Split(told, told, 0, USAGE)
    if timeline.counts:
        counted = _by_kind(timeline)
        return Split(told, told - counted[CONTENT], counted[CONTENT], USAGE)
    if reasoning is not None and content is not None and reasoning + content:
        # tokens that are no text (the end of the reasoning, of the answer) belong to neither: shared out by size
        share = round(told * reasoning / (reasoning + content))
        return Split(told, share, told - share, TOKENIZE)
    return Split(told, None, None, NONE)


def _by_kind(timeline: Timeline) -> Counter[str]:
    found: Counter[str] = Counter()
    before = 0
    for count, kind in zip(timeline.counts, timeline.kinds, strict=True):
        found[kind] += count - before
        before = count
    return found


def figures(timeline: Timeline, tokens: Split) -> Figures | None:
    """The figures of one streamed answer; None when no token came.

    raw = (completion tokens - those of the first event) / (time of the last event - time of the first);
    visible = (content tokens - those of the first event, if it was content) / the same window.
    """
    times = timeline.times
    if not times or tokens.completion <= 0:
        return None
    window = times[-1] - times[0]
    first = timeline.counts[0] if timeline.counts else max(1, round(tokens.completion / len(times)))
    raw = visible = tpot = None
    if window > 0 and tokens.completion > first:
        raw = (tokens.completion - first) / window
        tpot = window / (tokens.completion - first)
        if tokens.content is not None:
            seen_first = first if timeline.kinds[0] != REASONING else 0
            visible = max(0, tokens.content - seen_first) / window
    e2e = max(timeline.ended - timeline.asked, 1e-9)
    return Figures(
        tokens.completion,
        tokens.reasoning,
        tokens.content,
        timeline.usage.get("prompt_tokens"),
        len(timeline.reasoning_text),
        len(timeline.content_text),
        tokens.by,
        raw,
        visible,
        tokens.completion / e2e,
        times[0] - timeline.asked,
        None if timeline.first_visible is None else timeline.first_visible - timeline.asked,
        tpot,
        e2e,
        (timeline.connected or timeline.asked) - timeline.asked,
        len(times),
    )


def gaps(timeline: Timeline) -> list[float]:
    """Inter-token latencies: the times between events that brought tokens."""
    return [after - before for before, after in zip(timeline.times, timeline.times[1:], strict=False)]


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile with linear interpolation between neighbours. `values` must not be empty."""
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """{"p50", "p90", "p99"}; None without values."""
    return {f"p{percent}": percentile(values, percent) for percent in PERCENTILES} if values else None


def level(timelines: Sequence[Timeline], splits: Sequence[Split | None]) -> dict[str, Any]:
    """The figures of one level of a sweep: requests that failed are counted, and enter no other figure.

    raw and visible are tokens of all good requests over the level's wall time: from the first request to the end of
    the last one.
    """
    good: list[tuple[Timeline, Figures]] = []
    failures: Counter[str] = Counter()
    for timeline, tokens in zip(timelines, splits, strict=True):
        found = figures(timeline, tokens) if timeline.ok and tokens is not None else None
        if found is None:
            failures[timeline.failure or NOT_COUNTED] += 1
        else:
            good.append((timeline, found))
    wall = max((t.ended for t in timelines), default=0.0) - min((t.asked for t in timelines), default=0.0)
    known = all(found.content_tokens is not None for _, found in good)
    produced = sum(found.completion_tokens for _, found in good)
    seen = sum(found.content_tokens or 0 for _, found in good)
    return {
        "raw_tok_s": produced / wall if good and wall > 0 else None,
        "visible_tok_s": seen / wall if good and wall > 0 and known else None,
        "requests": len(timelines),
        "failed": sum(failures.values()),
        "failures": dict(failures.most_common()),
        "ttft_s": percentiles([found.ttft_s for _, found in good]),
        "ttft_visible_s": percentiles([f.ttft_visible_s for _, f in good if f.ttft_visible_s is not None]),
        "tpot_s": percentiles([found.tpot_s for _, found in good if found.tpot_s is not None]),
        "itl_s": percentiles([gap for timeline, _ in good for gap in gaps(timeline)]),
        "e2e_s": percentiles([found.e2e_s for _, found in good]),
        "connect_s": percentiles([found.connect_s for _, found in good]),
        "wall_s": wall,
        "completion_tokens": produced,
        "content_tokens": seen if known else None,
        "prompt_tokens": sum(found.prompt_tokens or 0 for _, found in good),
        "split_by": weakest([found.split_by for _, found in good]),
    }


def weakest(ways: Sequence[str]) -> str | None:
    """The least certain way of counting among several."""
    order = (NONE, TOKENIZE, USAGE)
    return min(ways, key=order.index) if ways else None


def foreign_seen(
    samples: Sequence[tuple[float, float]],
    timelines: Sequence[Timeline],
    most: int | None = None,
    slack_s: float = 0.5,
) -> float:
    """The most requests of others that the engine held while the timelines ran; 0 when all can have been ours.

    Args:
        samples: (time, running + waiting) as the engine told it.
        most: how many of ours there ever are at once (a closed loop's concurrency); None where nothing limits them.
        slack_s: how far apart the engine's count and our own view may be.
    """
    worst = 0.0
    for time, held in samples:
        ours = sum(1 for t in timelines if t.asked <= time + slack_s and t.ended >= time - slack_s)
        worst = max(worst, held - (ours if most is None else min(ours, most)))
    return worst


def client_bound(busy: float, lag_p99_s: float, tpot_p50_s: float | None) -> bool:
    """Whether the client, and not the server, may have been the limit.

    Args:
        busy: share of the time that the client computed or waited for a processor.
        lag_p99_s: how long bytes that were there waited to be read.
    """
    return busy >= 0.85 or lag_p99_s > max(0.02, 0.5 * (tpot_p50_s or 0.0))
