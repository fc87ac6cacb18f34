"""The readiness gate: what is asked, in which order, and what the answers mean."""

import json
from typing import Any

import pytest

from deploy.engine.http import Answer
from deploy.plan.launch_plan import LaunchPlan
from deploy.supervise.canary import BARE_TOKENS, SUM
from deploy.supervise.gate import Gate

REFUSED = Answer(None, b"", "Connection refused")
SLOW = Answer(None, b"", "no answer in time")
WELL = Answer(200, b"")
SENSE = Answer(200, json.dumps({"choices": [{"message": {"content": "42"}}]}).encode())
RUBBISH = Answer(200, json.dumps({"choices": [{"message": {"content": "!" * 50}}]}).encode())
TEXT = Answer(200, json.dumps({"choices": [{"text": " 42"}]}).encode())
NOT_FOUND = Answer(404, b'{"detail":"Not Found"}')
NO_TEMPLATE = Answer(400, b'{"error":{"message":"default chat template is no longer allowed"}}')


def models(*names: str) -> Answer:
    return Answer(200, json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode())


def plan(*, served: tuple[str, ...] = ("kimi",), **canary: Any) -> LaunchPlan:
    return LaunchPlan(
        name="kimi",
        profile="kimi",
        profile_file="",
        digest="",
        model="/models/kimi",
        served_names=list(served),
        argv=["vllm", "serve", "/models/kimi"],
        env={},
        host="127.0.0.1",
        port=8000,
        engine={},
        limits={},
        health={"interval_s": 2.0, "failures": 3, "timeout_s": 5.0},
        canary={"enabled": True, "timeout_s": 120.0, "coherence": True, "max_model_len": 4096, **canary},
    )


def gate(*answers: Answer, served: tuple[str, ...] = ("kimi",), **canary: Any) -> Gate:
    opened = Gate(plan(served=served, **canary))
    for answer in answers:
        assert opened.verdict is None, "nothing is asked once it is decided"
        opened.next_ask(0.0)
        opened.take(answer, 0.0)
    return opened


def diagnosis(opened: Gate) -> dict[str, Any]:
    assert isinstance(opened.verdict, dict)
    assert set(opened.verdict) == {"cause", "summary", "evidence", "fix", "retryable"}
    return opened.verdict


def test_health_then_the_model_then_two_requests_and_it_is_ready() -> None:
    opened = Gate(plan(coherence=False))
    asked = []
    for answer in (WELL, models("kimi"), SENSE, SENSE):
        asked.append(opened.next_ask(0.0))
        opened.take(answer, 0.0)
    assert opened.verdict == "passed"
    assert [(ask.method, ask.path) for ask in asked] == [
        ("GET", "/health"),
        ("GET", "/v1/models"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/chat/completions"),
    ]
    assert [ask.timeout_s for ask in asked] == [5.0, 5.0, 120.0, 120.0]
    prompts = [json.loads(ask.body)["messages"][0]["content"] for ask in asked[2:]]
    assert prompts[0] == SUM.prompt
    assert len(prompts[1]) > 10 * len(SUM.prompt)
    assert opened.reduced is None


@pytest.mark.parametrize("answer", [REFUSED, SLOW, Answer(503, b""), Answer(500, b""), NOT_FOUND, Answer(401, b"")])
def test_a_server_that_is_not_well_yet_is_asked_again(answer: Answer) -> None:
    opened = gate(answer, answer, answer)
    assert opened.verdict is None
    assert opened.next_ask(0.0).path == "/health"
    opened.take(WELL, 0.0)
    assert opened.next_ask(0.0).path == "/v1/models"


@pytest.mark.parametrize("answer", [REFUSED, SLOW, Answer(500, b""), Answer(503, b"")])
def test_a_server_that_falls_ill_again_must_be_well_again_first(answer: Answer) -> None:
    opened = gate(WELL, answer)
    assert opened.verdict is None
    assert opened.next_ask(0.0).path == "/health"


@pytest.mark.parametrize(
    ("answer", "offered"),
    [
        (models("other"), "other"),
        (models("other", "another"), "other, another"),
        (models(), "no model"),
        (Answer(200, b"<html>hello</html>"), "no model"),
        (Answer(200, b'{"data": null}'), "no model"),
        (Answer(200, b'{"data": [{"name": "kimi"}]}'), "no model"),
        (Answer(200, b'["kimi"]'), "no model"),
        (Answer(200, b"\xff\xfe"), "no model"),
    ],
)
def test_somebody_elses_server_or_a_wrong_model_is_not_ready(answer: Answer, offered: str) -> None:
    found = diagnosis(gate(WELL, answer))
    assert found["cause"] == "wrong-model"
    assert f"offers {offered}, not kimi" in found["summary"]
    assert found["retryable"] is False


def test_one_of_several_served_names_is_enough() -> None:
    assert gate(WELL, models("base", "alias"), served=("alias", "second"), enabled=False).verdict == "passed"


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_wants_a_key_is_alive_and_the_gap_is_told(status: int) -> None:
    opened = gate(WELL, Answer(status, b'{"error":"Unauthorized"}'))
    assert opened.verdict == "passed"
    assert str(status) in (opened.reduced or "")
    assert "canary" in (opened.reduced or "")


def test_without_the_canary_the_model_is_the_last_thing_asked() -> None:
    opened = gate(WELL, models("kimi"), enabled=False)
    assert opened.verdict == "passed"
    assert opened.canary is None


@pytest.mark.parametrize("cannot", [NOT_FOUND, NO_TEMPLATE])
def test_a_model_without_a_chat_template_is_asked_for_a_plain_completion(cannot: Answer) -> None:
    opened = gate(WELL, models("kimi"), cannot, coherence=False)
    assert opened.verdict is None
    ask = opened.next_ask(0.0)
    assert ask.path == "/v1/completions"
    assert SUM.prompt in json.loads(ask.body)["prompt"]
    opened.take(TEXT, 0.0)
    assert opened.next_ask(0.0).path == "/v1/completions"
    opened.take(TEXT, 0.0)
    assert opened.verdict == "passed"


def test_a_server_that_can_do_neither_is_not_ready() -> None:
    found = diagnosis(gate(WELL, models("kimi"), NOT_FOUND, NOT_FOUND))
    assert found["cause"] == "canary-failed"
    assert "404" in found["summary"]


@pytest.mark.parametrize(
    ("answer", "told", "retryable"),
    [
        (RUBBISH, "50 times over", False),
        (Answer(500, b'{"error":"EngineCore encountered an issue"}'), "HTTP 500", False),
        (Answer(200, b"{}"), "not a completion", False),
        (SLOW, "no answer in time", True),
        (REFUSED, "Connection refused", True),
    ],
)
def test_a_first_request_that_is_not_answered_well_keeps_it_from_being_ready(
    answer: Answer, told: str, retryable: bool
) -> None:
    for before in ((), (SENSE,)):
        found = diagnosis(gate(WELL, models("kimi"), *before, answer))
        assert found["cause"] == "canary-failed"
        assert told in found["summary"]
        assert found["retryable"] is retryable
        assert any("canary.coherence=false" in fix for fix in found["fix"])


def test_a_random_model_passes_where_only_an_answer_is_asked_for() -> None:
    assert gate(WELL, models("kimi"), RUBBISH, RUBBISH, coherence=False).verdict == "passed"
    assert diagnosis(gate(WELL, models("kimi"), SLOW, coherence=False))["cause"] == "canary-failed"


def test_a_small_context_gets_only_the_short_prompt() -> None:
    opened = gate(WELL, models("kimi"), SENSE, max_model_len=64, coherence=False)
    assert opened.verdict == "passed"


def test_a_context_that_is_not_known_is_no_obstacle() -> None:
    opened = gate(WELL, models("kimi"), max_model_len=None, coherence=False)
    assert json.loads(opened.next_ask(0.0).body)["max_tokens"] == BARE_TOKENS
