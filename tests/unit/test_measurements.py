"""What samples allow to be said; the document, its comparison and its page."""

import random
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from deploy.measure import prompts, report, results
from deploy.measure.gpu_watch import summarise
from deploy.measure.statistics import BETTER, EQUAL, UNDECIDED, WORSE, compare, estimate


def noisy(mean: float, spread: float, n: int = 12, seed: int = 1) -> list[float]:
    generator = random.Random(seed)
    return [generator.gauss(mean, spread) for _ in range(n)]


@pytest.mark.parametrize(
    ("before", "after", "higher", "verdict"),
    [
        (noisy(80, 0.5), noisy(90, 0.5), True, BETTER),
        (noisy(80, 0.5), noisy(70, 0.5), True, WORSE),
        (noisy(80, 0.5), noisy(70, 0.5), False, BETTER),
        (noisy(80, 0.1), noisy(80.5, 0.1), True, EQUAL),
        (noisy(80, 20), noisy(85, 20, seed=2), True, UNDECIDED),
        ([80.0], [80.4], True, EQUAL),
        ([79.0, 81.0], [80.0, 90.0], True, UNDECIDED),
        ([79.0, 81.0], [89.0, 90.0], True, BETTER),
    ],
)
def test_verdicts(before: list[float], after: list[float], higher: bool, verdict: str) -> None:
    found = compare(before, after, higher_is_better=higher)
    assert found is not None
    assert found.verdict == verdict
    assert found.low <= found.change <= found.high


def test_the_interval_of_a_median_holds_the_truth_nineteen_times_of_twenty() -> None:
    held = 0
    for seed in range(100):
        found = estimate(noisy(100, 5, 20, seed))
        assert found is not None
        held += found.low <= 100 <= found.high
    assert held >= 88


def test_nothing_is_said_without_samples() -> None:
    assert estimate([]) is None
    assert compare([], [1.0]) is None
    assert compare([0.0], [1.0]) is None


@pytest.mark.parametrize(
    ("target", "met", "other"),
    [
        ({"metric": "visible", "tok_s": 40}, True, ("raw", 80.9)),
        ({"metric": "raw", "tok_s": 90}, False, ("visible", 41.2)),
        ({"metric": None, "tok_s": None}, None, ("raw", 80.9)),
    ],
)
def test_the_target_is_judged_in_its_own_metric(
    target: dict[str, Any], met: bool | None, other: tuple[str, float]
) -> None:
    found = results.judge(target, {"raw_tok_s": 80.9, "visible_tok_s": 41.2})
    assert found["met"] is met
    assert found["other"] == {"metric": other[0], "measured": other[1]}


def test_a_metric_that_could_not_be_measured_is_not_judged() -> None:
    assert results.judge({"metric": "visible", "tok_s": 40}, {"raw_tok_s": 80.9, "visible_tok_s": None})["met"] is None


def document(name: str, raw: float, **subject: Any) -> dict[str, Any]:
    """A stored measurement, as far as comparison and page need it."""
    level = {
        "concurrency": 4,
        "loop": "closed",
        "raw_tok_s": raw * 3,
        "visible_tok_s": raw,
        "requests": 8,
        "failed": 0,
        "void": None,
        "client_bound": False,
        "gpus": None,
        **{key: {"p50": 0.1, "p99": 0.2} for key in ("ttft_s", "tpot_s", "e2e_s")},
        "samples": {"request_tok_s": noisy(raw, 0.5)},
    }
    single = dict.fromkeys(("ttft_s", "ttft_visible_s", "tpot_s", "wall_tok_s"), 0.2)
    single |= {"raw_tok_s": raw, "visible_tok_s": raw / 2, "reasoning_tokens": 4, "content_tokens": 4}
    counted = {"split_by": "usage", "failed": 0, "requests": 9, "interval": {"raw_tok_s": {"low": 1.0, "high": 2.0}}}
    measured = {
        "single": {**single, **counted},
        "crosscheck": {"tok_s": 1.0, "explained": "<agrees>"},
        "sweep": [level, {**level, "concurrency": 16}],
        "request": {"input_tokens": 512},
        "samples": {"single": {"raw_tok_s": noisy(raw, 0.5)}},
    }
    found = results.document(name, measured, {"metric": "raw", "tok_s": 1}, subject, "2026-12-01T10:15:00Z")
    return {**found, "id": f"{name}/20261201T101500-1"}


def test_two_measurements_are_compared_row_by_row_and_what_differs_is_named() -> None:
    a = document("kimi-int4", 80, argv=["serve", "--a", "1"], env={"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"})
    b = document("kimi-nvfp4", 60, argv=["serve", "--a", "2"], env={"NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring"})
    found = results.compare(a, b)
    rows = {row["what"]: row["verdict"] for row in found["rows"]}
    assert rows == {"single raw_tok_s": WORSE, "c4 request tok_s": WORSE, "c16 request tok_s": WORSE}
    assert found["differs"]["argv"] == [["1"], ["2"]]
    assert found["differs"]["env"] == [{"NCCL_PROTO": "LL"}, {"NCCL_PROTO": "Simple"}]


def test_the_page_opens_offline_and_draws_every_level() -> None:
    page = report.page(document("kimi-<int4>", 80, env={"X": "</pre><script>"}))
    assert "<script" not in page
    assert "kimi-&lt;int4&gt;" in page
    assert page.replace("http://www.w3.org/2000/svg", "").count("://") == 0
    plots = [part.partition("</svg>")[0] + "</svg>" for part in page.split("<figcaption>")[1:]]
    assert len(plots) == 4
    for plot in plots:
        svg = ElementTree.fromstring(plot[plot.index("<svg") :])
        lines = svg.findall("{http://www.w3.org/2000/svg}polyline")
        assert [len(line.attrib["points"].split()) for line in lines] == [2, 2]


def test_a_level_that_was_disturbed_is_not_drawn() -> None:
    found = document("a", 80)
    found["sweep"][1]["void"] = "others"
    assert report.charts(found)[0][2][0][1] == [(4, 240)]


@pytest.mark.parametrize(("value", "top"), [(0, 1), (0.03, 0.04), (1, 1), (77, 80), (1001, 2000)])
def test_axes_end_on_round_numbers(value: float, top: float) -> None:
    assert report.nice(value) == pytest.approx(top)


def test_gpus_are_told_by_medians_and_every_reason_to_slow_down() -> None:
    def gpu(clock: int | None, throttled: list[str] | None) -> dict[str, Any]:
        return {"uuid": "GPU-1", "sm_clock_mhz": clock, "power_w": 300, "temperature_c": 60, "throttled": throttled}

    samples = [[gpu(2000, [])], [gpu(1000, ["power cap"])], [gpu(2100, ["thermal"])]]
    (found,) = summarise(samples, ["GPU-1", "GPU-that-is-silent"])
    assert (found["sm_clock_mhz"], found["throttled"]) == (2000, ["power cap", "thermal"])
    (unknown,) = summarise([[gpu(None, None)]], ["GPU-1"])
    assert (unknown["sm_clock_mhz"], unknown["throttled"]) == (None, None)


def test_prompts_have_the_wanted_length_and_share_no_beginning() -> None:
    length = prompts.fit((4, 40), (204, 260))
    assert length.words(512) == pytest.approx((512 - 35.6) / 1.1, abs=1)
    texts = [prompts.prompt(0, str(seed), 50)[:20] for seed in range(50)]
    assert len(set(texts)) == 50
    assert prompts.prompt(1, "s", 9) == prompts.prompt(1, "s", 9)
    assert prompts.fit((4, 40), (204, 40)) == prompts.Length()
