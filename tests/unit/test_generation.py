"""Does an engine that answers also generate: readings of counters and what they mean."""

import pytest

from deploy.engine.http import Answer
from deploy.supervise.generation import Counters, Generation, one_token, read_counters

METRICS = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.79e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 1.5e+03
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 7.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 7.0
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 9.0
"""


def reading(busy: float, moving: str, generated: float = 0) -> Counters:
    return Counters(busy, (moving.encode(),), generated)


def test_a_metrics_page_is_read() -> None:
    counters = read_counters(Answer(200, METRICS, ""))
    assert counters is not None
    assert (counters.busy, counters.generated) == (3.0, 1500.0)
    assert counters.moving == (b"0.25", b"1000.0", b"1.5e+03", b"7.0", b"9.0")


@pytest.mark.parametrize("answer", [Answer(404, b"", ""), Answer(None, b"", "no answer"), Answer(200, b"x 1\n", "")])
def test_no_counters_are_no_verdict(answer: Answer) -> None:
    assert read_counters(answer) is None


def test_requests_that_run_while_nothing_moves_are_stuck_again_and_again() -> None:
    generation = Generation(stuck_s=10, probe_s=0, now=0)
    said = [generation.take(reading(1, "same"), now) for now in range(0, 35, 5)]
    assert said == [None, None, "stuck", None, "stuck", None, "stuck"]


def test_a_long_prompt_moves_the_cache_and_is_not_stuck() -> None:
    generation = Generation(stuck_s=10, probe_s=0, now=0)
    assert not any(generation.take(reading(1, str(now)), now) for now in range(0, 100, 5))


def test_time_without_requests_does_not_count() -> None:
    generation = Generation(stuck_s=10, probe_s=0, now=0)
    assert not any(generation.take(reading(0, "same"), now) for now in range(0, 100, 5))
    assert generation.take(reading(1, "same"), 101) is None, "the request may have come a moment ago"
    assert generation.take(reading(1, "same"), 106) is None
    assert generation.take(reading(1, "same"), 112) == "stuck"


def test_tokens_are_a_proof_and_put_the_probe_off() -> None:
    generation = Generation(stuck_s=0, probe_s=60, now=0)
    generation.take(reading(0, "a", 5), 50)
    assert not generation.probe_due(59)
    assert generation.take(reading(0, "b", 6), 59) == "generating"
    assert not generation.probe_due(100)
    assert generation.probe_due(119)
    generation.take(reading(1, "b", 6), 119)
    assert not generation.probe_due(200), "with requests under way their own progress tells"


def test_answers_to_the_probe() -> None:
    generation = Generation(stuck_s=0, probe_s=60, now=0)
    assert generation.take_probe(Answer(200, b"{}", ""), 60) == "generating"
    assert generation.take_probe(Answer(None, b"", "no answer in time"), 120) == "stuck"
    assert generation.take_probe(Answer(500, b"", ""), 180) == "stuck"
    assert generation.take_probe(Answer(404, b"", ""), 240) is None
    assert not generation.probe_due(10_000), "a server without this endpoint is not asked again"
    assert b'"max_tokens": 1' in one_token("m")


def test_zero_switches_off() -> None:
    generation = Generation(stuck_s=0, probe_s=0, now=0)
    assert not any(generation.take(reading(1, "same"), now) for now in range(0, 100_000, 500))
    assert not generation.probe_due(1e9)
