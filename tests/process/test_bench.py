"""`kdeploy bench` against a server that knows the truth: what it reports is what happened."""

import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.box import KDEPLOY, LIMIT_S, Box, Result, free_port
from tests.truth_server import TruthServer, truth_server

WITHIN = 0.03


def bench(box: Box, server: TruthServer, *args: str, **more: Any) -> Result:
    return box.run("bench", "--url", server.url, "--runs", "1", *args, timeout=2 * LIMIT_S, **more)


def near(value: float) -> Any:
    return pytest.approx(value, rel=WITHIN)


def test_figures_are_the_truth(box: Box) -> None:
    """3 tokens a chunk, reasoning then content, first request slow, seen prompts fast, 10 % failures."""
    options: dict[str, Any] = {
        "tokens_per_event": 3,
        "itl_s": 0.03,
        "ttft_s": 0.2,
        "reasoning": 0.5,
        "first_slow_s": 1.5,
        "seen_fast": True,
        "fail_every": 10,
        "fail_how": "reset",
    }
    with truth_server(**options) as server:
        result = bench(box, server, "--output-tokens", "120", "--concurrency", "10", "--requests", "20", "--json")
        assert result.rc == 0, result
        found = result.json
        truth = server.truth()
    # two probes, three prompts, the cross-check, ten to warm the level up, then the level
    single = [entry for entry in truth[2:5] if not entry["failed"]]
    (check,) = [entry for entry in truth if not entry["stream"]]
    level = truth[-20:]
    assert check["number"] == 5

    def median(value: Any) -> float:
        return float(statistics.median(value(entry) for entry in single))

    def window(entry: Any) -> Any:
        return entry["sent"][-1] - entry["sent"][0]

    assert (found["single"]["requests"], found["single"]["failed"]) == (3, 0)
    assert found["single"]["split_by"] == "usage"
    assert found["single"]["completion_tokens"] == 120
    assert found["single"]["reasoning_tokens"] == found["single"]["content_tokens"] == 60
    assert found["single"]["raw_tok_s"] == near(median(lambda one: 117 / window(one)))
    assert found["single"]["visible_tok_s"] == near(median(lambda one: 60 / window(one)))
    assert found["single"]["wall_tok_s"] == near(median(lambda one: 120 / (one["ended"] - one["read"])))
    assert found["single"]["tpot_s"] == near(median(lambda one: window(one) / 117))
    # the slow first request and the cache are kept out; the rest is set-up of the connection
    true_ttft = median(lambda one: one["sent"][0] - one["read"])
    assert true_ttft > 0.19
    assert true_ttft * (1 - WITHIN) < found["single"]["ttft_s"] < true_ttft * (1 + WITHIN) + 0.02
    visible = median(lambda one: one["sent"][20] - one["read"])
    assert visible * (1 - WITHIN) < found["single"]["ttft_visible_s"] < visible * (1 + WITHIN) + 0.02
    assert found["crosscheck"]["completion_tokens"] == 120
    assert found["crosscheck"]["wall_s"] == near(check["ended"] - check["read"])
    # the level: good tokens over the wall time of all, failures counted
    failed = [entry for entry in level if entry["failed"]]
    wall = max(entry["ended"] for entry in level) - min(entry["read"] for entry in level)
    (entry,) = found["sweep"]
    assert (entry["concurrency"], entry["requests"], entry["failed"]) == (10, 20, len(failed))
    assert len(failed) == 2
    assert entry["raw_tok_s"] == near(120 * 18 / wall)
    assert entry["visible_tok_s"] == near(60 * 18 / wall)
    assert sum(entry["failures"].values()) == 2
    assert entry["e2e_s"]["p50"] == near(
        statistics.median(one["ended"] - one["read"] for one in level if not one["failed"])
    )


def test_the_document_has_the_shape_of_the_contract(box: Box) -> None:
    with truth_server(itl_s=0.005, ttft_s=0.02) as server:
        arguments = (
            "--output-tokens",
            "32",
            "--concurrency",
            "2",
            "--target",
            "40",
            "--metric",
            "raw",
            "--name",
            "box",
        )
        result = bench(box, server, *arguments, "--json")
        assert result.rc == 0, result
        found = result.json
        shown = box.ok("bench", "show", "box", "--json").json
        told = box.ok("bench", "show", found["id"]).stdout
    assert found == shown
    assert (found["schema"], found["name"]) == (1, "box")
    assert set(found["target"]) >= {"metric", "tok_s", "measured", "met"}
    assert (found["target"]["metric"], found["target"]["met"]) == ("raw", True)
    assert found["target"]["other"]["metric"] == "visible"
    assert set(found["single"]) >= {
        *("raw_tok_s", "visible_tok_s", "wall_tok_s", "ttft_s", "ttft_visible_s"),
        *("reasoning_tokens", "content_tokens", "split_by"),
    }
    assert set(found["crosscheck"]) >= {"completion_tokens", "wall_s", "tok_s"}
    assert set(found["sweep"][0]) >= {
        *("concurrency", "raw_tok_s", "visible_tok_s", "requests", "failed", "ttft_s", "tpot_s", "client_bound"),
    }
    assert set(found["sweep"][0]["ttft_s"]) >= {"p50", "p99"}
    assert "target raw 40 tok/s: met" in told
    assert "(beside it: visible" in told
    page = box.state / "bench" / f"{found['id']}.html"
    assert page.read_text().startswith("<!doctype html>")
    assert page.stat().st_mode & 0o777 == 0o600


def test_a_final_count_is_split_by_the_engines_tokenizer(box: Box) -> None:
    with truth_server(usage="final", details=False, reasoning=0.25, itl_s=0.004, ttft_s=0.02) as server:
        found = bench(box, server, "--output-tokens", "80", "--single", "--json").json["single"]
    assert (found["split_by"], found["reasoning_tokens"], found["content_tokens"]) == ("tokenize", 20, 60)


def test_a_split_that_nobody_knows_is_no_zero(box: Box) -> None:
    with truth_server(usage="final", details=False, reasoning=0.25, tokenize=False, itl_s=0.004) as server:
        result = bench(box, server, "--output-tokens", "40", "--single", "--json")
        assert result.rc == 0, result
    single = result.json["single"]
    assert (single["visible_tok_s"], single["reasoning_tokens"], single["split_by"]) == (None, None, "none")
    assert single["raw_tok_s"] > 0
    assert result.json["target"]["met"] is None


def test_a_server_that_refuses_options_is_measured_without_them(box: Box) -> None:
    with truth_server(refuse=["stream_options", "ignore_eos"], metrics=False, itl_s=0.004) as server:
        found = bench(box, server, "--output-tokens", "40", "--concurrency", "2", "--json").json
    assert found["request"]["stream_options"] is None
    assert found["request"]["fixed_output_length"] is False
    assert found["single"]["split_by"] == "tokenize"
    assert (found["single"]["content_tokens"], found["single"]["clean"]) == (40, None)


@pytest.mark.parametrize(
    ("how", "told"), [("429", "HTTP 429: told to fail"), ("half", "the stream ended before its end")]
)
def test_failures_are_counted_by_their_reason(box: Box, how: str, told: str) -> None:
    with truth_server(fail_every=5, fail_how=how, itl_s=0.004, ttft_s=0.02) as server:
        found = bench(box, server, "--output-tokens", "40", "--concurrency", "5", "--requests", "10", "--json").json
    (level,) = found["sweep"]
    assert (level["failed"], level["failures"]) == (2, {told: 2})
    assert level["raw_tok_s"] > 0


def test_when_every_request_fails_nothing_is_stored(box: Box) -> None:
    with truth_server(fail_every=1) as server:
        result = bench(box, server, "--single")
    assert result.rc == 1
    assert "every request failed" in result.stderr
    assert "3 times: HTTP 500: told to fail" in result.stderr
    assert not (box.state / "bench").exists()


def test_requests_of_others_void_a_level(box: Box) -> None:
    arguments = ("--output-tokens", "50", "--requests", "4", "--clean-wait", "0.5", "--json")
    # two probes, three prompts, the cross-check, two to warm up: others come with the first request of the level
    with truth_server(foreign=1, foreign_after=9, itl_s=0.01, ttft_s=0.02) as server:
        result = bench(box, server, *arguments, "--concurrency", "2,4")
    assert result.rc == 0, result
    (level,) = result.json["sweep"]
    assert level["void"] == "the engine served 1 requests of others meanwhile"
    assert (level["raw_tok_s"], level["visible_tok_s"], level["clean"]) == (None, None, False)
    assert level["requests"] == 4
    # the level after it could not begin at all
    assert result.json["sweep_ended"].startswith("at 4: ")
    assert result.json["single"]["raw_tok_s"] > 0


def test_a_busy_server_is_not_measured(box: Box) -> None:
    with truth_server(foreign=1) as server:
        result = bench(box, server, "--single", "--clean-wait", "0.2")
    assert result.rc == 1
    assert "serves other requests; nothing was measured" in result.stderr
    assert not (box.state / "bench").exists()


def test_bad_input(box: Box) -> None:
    nobody = box.run("bench", "--url", f"http://127.0.0.1:{free_port()}")
    assert nobody.rc == 3
    assert "no server answers" in nobody.stderr
    assert box.run("bench", "tiny").rc == 3
    assert box.run("bench", "--url", "ftp://x").rc == 2
    wrong: tuple[tuple[tuple[str, ...], str], ...] = (
        (("--concurrency", "0"), "whole numbers from 1"),
        (("--concurrency", "1,x"), "whole numbers from 1"),
        (("--metric", "felt"), "'raw', 'visible'"),
        (("--runs", "0"), "--runs"),
        (("--rate", "0"), "--rate"),
        (("--api-key", "hunter2"), "takes a reference"),
        (("tiny",), "not both"),
    )
    for words, told in wrong:
        result = box.run("bench", "--url", "http://127.0.0.1:1", *words)
        assert result.rc == 2, (words, result)
        assert told in result.stderr
        assert "hunter2" not in result.stderr
    with truth_server(api_key="hunter2", itl_s=0.002) as server:
        assert box.run("bench", "--url", server.url).rc == 6
        arguments = ("--single", "--output-tokens", "8", "--api-key", "${env:KEY}")
        assert bench(box, server, *arguments, env={"KEY": "hunter2"}).rc == 0
        other = bench(box, server, *arguments, "--model", "gpt", env={"KEY": "hunter2"})
        assert other.rc == 2
        assert "it serves: truth" in other.stderr
        long = bench(
            box, server, *arguments[:1], "--output-tokens", "9000", "--api-key", "${env:KEY}", env={"KEY": "hunter2"}
        )
        assert long.rc == 2
        assert "max_model_len 8192" in long.stderr
    assert "hunter2" not in "".join(path.read_text() for path in (box.state / "bench").glob("*/*.*"))


def test_results_that_cannot_be_stored_are_shown_all_the_same(box: Box) -> None:
    box.state.mkdir()
    (box.state / "bench").write_text("in the way")
    with truth_server(itl_s=0.002) as server:
        result = bench(box, server, "--single", "--output-tokens", "8", "--json")
    assert result.rc == 6
    assert result.json["single"]["raw_tok_s"] > 0
    assert "cannot make the folder" in result.stderr


def test_stored_results_are_listed_and_compared_by_name(box: Box) -> None:
    for name, itl_s in (("kimi-int4", 0.010), ("kimi-nvfp4", 0.014)):
        with truth_server(itl_s=itl_s, ttft_s=0.01) as server:
            arguments = ("--single", "--output-tokens", "24", "--runs", "2", "--name", name)
            assert box.run("bench", "--url", server.url, *arguments).rc == 0
    listed = box.ok("bench", "list").stdout.splitlines()
    assert [line.split("/")[0] for line in listed[1:]] == ["kimi-int4", "kimi-nvfp4"]
    found = box.ok("bench", "compare", "kimi-int4", "kimi-nvfp4", "--json").json
    (raw,) = [row for row in found["rows"] if row["what"] == "single raw_tok_s"]
    assert raw["verdict"] == "worse"
    assert raw["change"] == pytest.approx(10 / 14 - 1, abs=0.03)
    assert "worse" in box.ok("bench", "compare", "kimi-int4", "kimi-nvfp4").stdout
    same = box.ok("bench", "compare", "kimi-int4", "kimi-int4").stdout
    assert "practically equal" in same
    assert "worse" not in same
    unknown = box.run("bench", "compare", "kimi-int4", "kimi-int8")
    assert unknown.rc == 3
    assert "measured: kimi-int4, kimi-nvfp4" in unknown.stderr


def test_the_open_loop_counts_from_the_time_a_request_was_due(box: Box) -> None:
    with truth_server(itl_s=0.002, ttft_s=0.02) as server:
        arguments = ("--rate", "40", "--requests", "30", "--output-tokens", "20", "--json")
        (level,) = bench(box, server, *arguments).json["sweep"]
    assert (level["loop"], level["rate"], level["requests"], level["failed"]) == ("open", 40, 30, 0)


def test_a_deployment_is_measured_with_its_profiles_target(box: Box) -> None:
    box.profile("tiny", "reasoning=6", {"bench": {"target": {"metric": "raw", "tok_s": 100000}}})
    box.ok("up", "tiny")
    arguments = ("--output-tokens", "32", "--input-tokens", "64", "--runs", "1", "--concurrency", "2")
    result = box.ok("bench", *arguments, "--json")
    found = result.json
    assert (found["name"], found["target"]["metric"], found["target"]["met"]) == ("tiny", "raw", False)
    assert found["single"]["reasoning_tokens"] == 6
    assert found["single"]["clean"] is True
    assert found["subject"]["profile"] == "tiny"
    assert found["subject"]["argv"][0] == "serve" or "serve" in found["subject"]["argv"]
    assert "missed" in box.ok("bench", "list").stdout
    box.down("tiny")
    stopped = box.run("bench", "tiny")
    assert stopped.rc == 3
    assert "stopped, not ready" in stopped.stderr


def test_a_name_that_is_a_word_of_bench_is_reached_by_run(box: Box) -> None:
    box.profile("list")
    box.ok("up", "list")
    assert box.ok("bench", "list").stdout == ""
    arguments = ("--single", "--output-tokens", "8", "--runs", "1", "--json")
    assert box.ok("bench", "run", "list", *arguments).json["name"] == "list"
    box.down("list")


def test_the_limit_of_open_files_is_raised_or_told(box: Box, tmp_path: Path) -> None:
    def limited(hard: int, *args: str) -> tuple[int, str]:
        script = tmp_path / "limited.sh"
        command = "ulimit -Sn 40; " + (f"ulimit -Hn {hard}; " if hard else "")
        script.write_text(f'{command}exec "$@"\n')
        done = subprocess.run(
            ["bash", script, *args], env=box.environment(), capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
        return done.returncode, done.stdout if done.returncode == 0 else done.stderr

    with truth_server(itl_s=0.002) as server:
        arguments = (str(KDEPLOY), "bench", "--url", server.url, "--output-tokens", "8", "--runs", "1", "--json")
        code, text = limited(0, *arguments, "--concurrency", "64", "--requests", "64")
        assert code == 0, text
        assert json.loads(text)["sweep"][0]["failed"] == 0
        code, text = limited(90, *arguments, "--concurrency", "64")
        assert code == 6
        assert "RLIMIT_NOFILE: soft 40, hard 90" in text
        assert "concurrency" not in text.partition("error:")[0]
