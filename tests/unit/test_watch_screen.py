"""What a person sees while a load runs."""

import io
from typing import Any

import pytest
from rich.console import Console

from deploy.console.watch_screen import View, bar, screen
from deploy.console.words import load_summary

STATUS: dict[str, Any] = {
    "name": "kimi",
    "state": "starting",
    "model": "kimi-k2.5",
    "url": "http://127.0.0.1:8000",
    "started_at": "2026-12-01T10:00:00Z",
    "phases": [
        {"phase": "spawn", "started_at": "2026-12-01T10:00:00Z", "seconds": 0.4},
        {"phase": "weights", "started_at": "2026-12-01T10:00:10Z", "seconds": None},
    ],
    "load": {
        "bytes_total": 500 * 10**9,
        "bytes_read": 300 * 10**9,
        "bytes_done": 100 * 10**9,
        "bytes_per_s": 11e9,
        "eta_s": 20.0,
        "eta_ready_s": 200.0,
        "source": "maps",
    },
    "gpus": [{"index": 0, "memory_used_mib": 71 * 1024}],
    "diagnosis": None,
}


def shown(status: dict[str, Any], width: int, height: int) -> list[str]:
    log = [f"log line {number} " + "x" * 200 for number in range(100)]
    view = View(status, "2026-12-01T10:00:40Z", {"weights": 55.0}, log)
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(screen(view, width, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_bar_shows_both_counts() -> None:
    assert bar(6, 2, 10, 10) == "██▓▓▓▓░░░░"
    assert bar(10, 10, 10, 4) == "████"
    assert bar(0, 0, 10, 4) == "░░░░"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 10)])
def test_the_screen_keeps_its_size(width: int, height: int) -> None:
    lines = shown(STATUS, width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert lines[-1].startswith("q or Ctrl-C")


def test_the_screen_says_how_far_it_is() -> None:
    text = "\n".join(shown(STATUS, 120, 40))
    for words in ("kimi", "read 60 %", "loaded 20 %", "11.0 GB/s", "ready in about 3 min 20 s", "usually 55 s", "30 s"):
        assert words in text
    assert "log line 99" in text
    failed = {**STATUS, "state": "failed", "diagnosis": {"cause": "stalled", "summary": "no progress for 600 s"}}
    assert "stalled: no progress for 600 s" in "\n".join(shown(failed, 120, 40))


def test_a_load_is_held_against_the_disk_and_the_past() -> None:
    took = {
        "phases": {"weights": 42.0},
        "bytes_per_s": 11.2e9,
        "probe_bytes_per_s": 11.7e9,
        "cold": True,
        "total_s": 200.0,
    }
    past = [{"total_s": 400.0}, {"total_s": 300.0}, {"total_s": 210.0}]
    first, second = load_summary(took, past)
    assert first == "weights 42 s at 11.2 GB/s, 96 % of the probe's 11.7 GB/s"
    assert second == "ready after 3 min 20 s; before it 5 min 0 s (median of 3 starts)"
    assert load_summary({}, []) == []


def test_what_was_read_ahead_is_held_against_the_disk_and_what_came_from_memory_is_not() -> None:
    took = {"phases": {"weights": 2.0}, "bytes_per_s": 50e9, "probe_bytes_per_s": 10e9}
    ahead = {**took, "read_ahead": {"bytes": 100e9, "seconds": 10.5}, "cold": True}
    assert load_summary(ahead, []) == [
        "100 GB read ahead in 10 s at 9.5 GB/s, 95 % of the probe's 10.0 GB/s",
        "weights 2.0 s at 50.0 GB/s",
    ]
    warm = {**took, "read_ahead": {"bytes": 0, "seconds": 0.0}, "cold": False}
    assert load_summary(warm, []) == ["weights 2.0 s at 50.0 GB/s"]
