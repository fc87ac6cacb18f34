"""The figures of docs/measuring.md, on timelines made by hand."""

from typing import Any

import pytest

from deploy.measure import metrics
from deploy.measure.metrics import NONE, TOKENIZE, USAGE, Split
from deploy.measure.timeline import CONTENT, REASONING, Timeline


def timeline(events: list[tuple[float, int, str]], asked: float = 0.0, **more: Any) -> Timeline:
    """Events as (time, tokens so far, kind)."""
    found = Timeline(0, asked, asked, events[-1][0] if events else asked + 1.0)
    found.times = [time for time, _, _ in events]
    found.counts = [count for _, count, _ in events]
    found.kinds = [kind for _, _, kind in events]
    found.reasoning_text = "r" * sum(kind == REASONING for found_kind in [found.kinds] for kind in found_kind)
    found.content_text = "c" * found.kinds.count(CONTENT)
    found.usage = {"completion_tokens": found.counts[-1] if events else 0, "prompt_tokens": 10}
    for key, value in more.items():
        setattr(found, key, value)
    return found


def one(events: list[tuple[float, int, str]], **more: Any) -> metrics.Figures:
    found = timeline(events, **more)
    tokens = metrics.split(found)
    assert tokens is not None
    figures = metrics.figures(found, tokens)
    assert figures is not None
    return figures


def test_the_story_of_80_tokens_a_second() -> None:
    """512 tokens in 6.39 s, half of them reasoning: 80.1 by the clock, and half of that for a reader."""
    # the first token after 0.21 s, then one each (6.39 - 0.21) / 511 s
    step = (6.39 - 0.21) / 511
    events = [(0.21 + step * n, n + 1, REASONING if n < 251 else CONTENT) for n in range(512)]
    found = one(events, first_visible=events[251][0])
    assert found.wall_tok_s == pytest.approx(80.1, abs=0.05)
    assert found.raw_tok_s == pytest.approx(511 / 6.18)
    assert found.visible_tok_s == pytest.approx(261 / 6.18)
    assert (found.reasoning_tokens, found.content_tokens) == (251, 261)
    assert found.ttft_s == pytest.approx(0.21)
    assert found.ttft_visible_s == pytest.approx(0.21 + 251 * step)


def test_a_chunk_is_not_a_token() -> None:
    found = one([(1.0, 3, CONTENT), (1.1, 6, CONTENT), (1.2, 9, CONTENT)])
    assert found.raw_tok_s == pytest.approx(30)
    assert found.visible_tok_s == pytest.approx(30)
    assert found.tpot_s == pytest.approx(1 / 30)
    assert found.events == 3


def test_one_event_has_no_decode_window() -> None:
    found = one([(1.0, 3, CONTENT)])
    assert (found.raw_tok_s, found.visible_tok_s, found.tpot_s) == (None, None, None)
    assert found.wall_tok_s == 3


@pytest.mark.parametrize(
    ("usage", "counts", "texts", "tokenizer", "wanted"),
    [
        # the server tells the reasoning tokens
        (
            {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}},
            True,
            "rc",
            (1, 1),
            (4, 5, USAGE),
        ),
        # a server that counts no reasoning although it sent some is not believed: the events tell
        (
            {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 0}},
            True,
            "rc",
            (1, 1),
            (6, 3, USAGE),
        ),
        ({"completion_tokens": 9}, True, "rc", (None, None), (6, 3, USAGE)),
        # only a final count: shared out by the tokenizer
        ({"completion_tokens": 9}, False, "rc", (2, 4), (3, 6, TOKENIZE)),
        ({"completion_tokens": 9}, False, "rc", (None, None), (None, None, NONE)),
        ({"completion_tokens": 9}, False, "c", (None, None), (0, 9, USAGE)),
        ({"completion_tokens": 9}, False, "r", (None, None), (9, 0, USAGE)),
        # no usage at all
        ({}, False, "rc", (2, 4), (2, 4, TOKENIZE)),
    ],
)
def test_how_tokens_divide(
    usage: dict[str, Any],
    counts: bool,
    texts: str,
    tokenizer: tuple[int | None, int | None],
    wanted: tuple[int | None, int | None, str],
) -> None:
    found = timeline([(1.0, 3, REASONING), (2.0, 6, REASONING), (3.0, 9, CONTENT)], usage=usage)
    found.counts = found.counts if counts else []
    found.reasoning_text = "r" if "r" in texts else ""
    found.content_text = "c" if "c" in texts else ""
    tokens = metrics.split(found, *tokenizer)
    assert tokens is not None
    assert tokens[1:] == wanted


def test_nothing_is_made_up_when_nobody_counted() -> None:
    assert metrics.split(timeline([(1.0, 1, CONTENT)], usage={})) is None


def test_a_level_counts_its_failures_and_averages_only_the_good() -> None:
    good = [timeline([(1.0, 1, CONTENT), (3.0, 21, CONTENT)]), timeline([(1.0, 1, CONTENT), (4.0, 11, CONTENT)])]
    bad = timeline([(0.5, 1, CONTENT), (5.0, 1000, CONTENT)], failure="HTTP 500: boom")
    lines = [*good, bad, timeline([])]
    found = metrics.level(lines, [metrics.split(line) if line.ok else None for line in lines])
    assert (found["requests"], found["failed"]) == (4, 2)
    assert found["failures"] == {"HTTP 500: boom": 1, metrics.NOT_COUNTED: 1}
    # all good tokens over the level's wall time, which the failed request's end belongs to
    assert found["raw_tok_s"] == pytest.approx(32 / 5.0)
    assert found["ttft_s"] == {"p50": 1.0, "p90": 1.0, "p99": 1.0}


def test_a_level_in_which_everything_failed_has_no_figures() -> None:
    found = metrics.level([timeline([], failure="no connection")], [None])
    assert (found["raw_tok_s"], found["visible_tok_s"], found["ttft_s"]) == (None, None, None)
    assert found["failed"] == 1


def test_content_that_cannot_be_told_is_not_zero() -> None:
    line = timeline([(1.0, 1, CONTENT), (3.0, 21, CONTENT)])
    found = metrics.level([line], [Split(21, None, None, NONE)])
    assert found["raw_tok_s"] == pytest.approx(7)
    assert (found["visible_tok_s"], found["split_by"]) == (None, NONE)


def test_percentiles() -> None:
    assert metrics.percentile([4, 1, 3, 2], 50) == 2.5
    assert metrics.percentile([5], 99) == 5
    assert metrics.percentile(range(101), 99) == 99


@pytest.mark.parametrize(("held", "foreign"), [(2, 0), (3, 1), (0, 0)])
def test_requests_of_others(held: int, foreign: int) -> None:
    ours = [timeline([(9.0, 1, CONTENT)], asked=0.0), timeline([(9.0, 1, CONTENT)], asked=4.9)]
    assert metrics.foreign_seen([(5.0, held)], ours) == foreign


def test_our_next_request_does_not_hide_that_of_another() -> None:
    """A user of a closed loop asks again at once: both are near the sample, and only one of them was held."""
    ours = [timeline([(4.9, 1, CONTENT)], asked=4.0), timeline([(5.6, 1, CONTENT)], asked=4.9)]
    assert metrics.foreign_seen([(5.0, 2)], ours, 1) == 1
    assert metrics.foreign_seen([(5.0, 1)], ours, 1) == 0


@pytest.mark.parametrize(
    ("busy", "lag", "tpot", "bound"),
    [(0.3, 0.001, 0.02, False), (0.9, 0.001, 0.02, True), (0.3, 0.05, 0.02, True), (0.3, 0.05, 0.2, False)],
)
def test_a_client_at_its_limit_is_told(busy: float, lag: float, tpot: float, bound: bool) -> None:
    assert metrics.client_bound(busy, lag, tpot) is bound
