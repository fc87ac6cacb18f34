"""The canary: what is asked, in which order, and what the answers mean."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.engine.http import Answer
from deploy.supervise import canary
from deploy.supervise.canary import QUESTIONS, Canary

RIGHT = {
    "sum": "42",
    "long": "13",
    "copy": "Seven amber lanterns hang over the quiet harbour.",
    "capital": "Paris",
    "count": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10",
}
ORDER = ["sum", "long", "likelihood", "copy", "capital", "count"]
NO_TEMPLATE = Answer(400, b'{"error":{"message":"default chat template is no longer allowed"}}')


def chat(content: Any, finish: str = "stop", **message: Any) -> Answer:
    choice = {"message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
    return Answer(200, json.dumps({"choices": [choice], "usage": {"completion_tokens": 5}}).encode())


def logprobs(value: float = -1.5) -> Answer:
    entries = [None, *({str(n): {"logprob": value}} for n in range(20))]
    return Answer(200, json.dumps({"choices": [{"text": "", "prompt_logprobs": entries}]}).encode())


def prompt_of(request: dict[str, Any]) -> str:
    return str(request["messages"][0]["content"] if "messages" in request else request["prompt"])


def question_of(request: dict[str, Any]) -> str:
    return next((one.id for one in QUESTIONS if one.prompt in prompt_of(request)), "likelihood")


def thinking_of(request: dict[str, Any]) -> bool | None:
    kwargs = request.get("chat_template_kwargs")
    return None if kwargs is None else kwargs["enable_thinking"]


def sane(request: dict[str, Any]) -> Answer:
    """A model without thinking, always right."""
    name = question_of(request)
    if name == "likelihood":
        return logprobs()
    if "prompt" in request:
        return Answer(200, json.dumps({"choices": [{"text": f" {RIGHT[name]}"}]}).encode())
    return chat(RIGHT[name])


def thinker(request: dict[str, Any]) -> Answer:
    """A model that thinks unless it is told not to."""
    name = question_of(request)
    if name == "likelihood" or thinking_of(request) is False:
        return sane(request)
    return chat(RIGHT[name], reasoning="The user asks a plain thing, and the answer is easy.")


def but(
    name: str, answer: Answer, rest: Callable[[dict[str, Any]], Answer] = sane
) -> Callable[[dict[str, Any]], Answer]:
    return lambda request: answer if question_of(request) == name else rest(request)


def ask_all(
    model: Callable[[dict[str, Any]], Answer], *, step_s: float = 0.1, **settings: Any
) -> tuple[Canary, list[tuple[str, bool | None]]]:
    """Let `model` answer everything, `step_s` seconds each; the canary, and what it asked."""
    asked, now = [], 0.0
    bird = Canary("kimi", **{"timeout_s": 120.0, **settings})
    while not bird.done:
        request = json.loads(bird.next_ask(now).body)
        asked.append((question_of(request), thinking_of(request)))
        now += step_s
        bird.take(model(request), now)
        assert len(asked) < 40
    return bird, asked


def test_five_questions_thinking_off_and_on_and_the_likelihood() -> None:
    bird, asked = ask_all(thinker)
    assert bird.problem is None
    off, on = [[(one.id, thinking) for one in QUESTIONS] for thinking in (False, True)]
    assert asked == [*off[:2], ("likelihood", None), *off[2:], *on]
    assert bird.learnable == pytest.approx(-1.5)


def test_a_model_without_thinking_is_asked_once_whether_it_has_it() -> None:
    bird, asked = ask_all(sane)
    assert bird.problem is None
    assert [name for name, thinking in asked if thinking] == ["sum"]


def test_the_request_is_greedy_bounded_and_to_the_served_name() -> None:
    body = json.loads(Canary("kimi", timeout_s=5).next_ask(0.0).body)
    assert (body["model"], body["temperature"]) == ("kimi", 0)
    assert 0 < body["max_tokens"] <= 64
    assert set(body["chat_template_kwargs"]) == {"enable_thinking", "thinking"}


@pytest.mark.parametrize("name", list(RIGHT))
@pytest.mark.parametrize("text", ["!" * 50, "the the the the the the the the the the ", "a\ufffdb\ufffdc", ""])
def test_garbage_in_one_of_five_fails(name: str, text: str) -> None:
    bird, _ = ask_all(but(name, chat(text)))
    assert name in (bird.problem or "")
    assert bird.learnable is None
    assert not bird.account()["passed"]


def test_garbage_only_where_it_thinks_fails() -> None:
    def model(request: dict[str, Any]) -> Answer:
        return (
            chat("13", reasoning="!" * 60)
            if (question_of(request), thinking_of(request)) == ("long", True)
            else thinker(request)
        )

    bird, _ = ask_all(model)
    assert "long, thinking on" in (bird.problem or "")


def test_two_of_five_wrong_are_a_weak_model_three_a_broken_one() -> None:
    wrong = chat("I would rather talk about the weather.")
    bird, _ = ask_all(but("sum", chat("41"), but("capital", wrong)))
    assert bird.problem is None
    bird, _ = ask_all(but("sum", chat("41"), but("capital", wrong, but("copy", wrong, but("count", wrong)))))
    assert "plain questions were answered wrongly" in (bird.problem or "")


def test_a_switch_that_is_refused_is_left_out() -> None:
    def model(request: dict[str, Any]) -> Answer:
        return Answer(400, b"chat_template_kwargs is not known") if thinking_of(request) is not None else sane(request)

    bird, asked = ask_all(model)
    assert bird.problem is None
    assert [name for name, thinking in asked if thinking is None] == ORDER
    assert any("chat_template_kwargs" in note for note in bird.notes)


def test_a_model_that_cannot_be_told_not_to_think_gets_room_for_it() -> None:
    sizes = []

    def model(request: dict[str, Any]) -> Answer:
        sizes.append(request["max_tokens"])
        return chat(RIGHT[question_of(request)], reasoning="I think.") if "messages" in request else sane(request)

    bird, asked = ask_all(model)
    assert bird.problem is None
    assert sizes[1] > sizes[0]
    assert [name for name, _ in asked] == ORDER


def test_a_model_without_a_chat_template_is_asked_plainly() -> None:
    bird, asked = ask_all(lambda request: NO_TEMPLATE if "messages" in request else sane(request))
    assert bird.problem is None
    assert bird.account()["endpoint"] == "completions"
    assert [name for name, _ in asked[1:]] == ORDER


@pytest.mark.parametrize("status", [400, 401, 404, 500, 503])
@pytest.mark.parametrize("coherence", [True, False])
def test_an_error_is_told_with_what_the_server_said(status: int, coherence: bool) -> None:
    said = b'{"error": "EngineCore encountered an issue"} \xff' + b"x" * 5000
    bird, _ = ask_all(lambda _: Answer(status, said), coherence=coherence)
    assert f"HTTP {status}" in (bird.problem or "")
    assert "EngineCore" in (bird.problem or "")
    assert len(bird.problem or "") < 400


def test_a_likelihood_far_below_the_expected_fails_and_names_the_file_to_remove() -> None:
    bird, _ = ask_all(but("likelihood", logprobs(-4.0)), expected=-1.5)
    assert "-4.00" in (bird.problem or "")
    assert any("rm /state/x.json" in fix for fix in bird.diagnosis({}, "/state/x.json")["fix"])
    bird, _ = ask_all(but("likelihood", logprobs(-1.6)), expected=-1.5)
    assert bird.problem is None
    assert bird.learnable is None, "what is expected stays as it was learned"


def test_a_slow_engine_is_still_asked_for_the_likelihood() -> None:
    bird, asked = ask_all(but("likelihood", logprobs(-4.0)), expected=-1.5, step_s=15.0, timeout_s=20.0)
    assert [name for name, _ in asked] == ["sum", "long", "likelihood"]
    assert "-4.00" in (bird.problem or "")


def test_the_texts_of_an_unlikely_model_are_kept() -> None:
    bird, asked = ask_all(but("likelihood", logprobs(-4.0)), expected=-1.5)
    assert [name for name, thinking in asked if not thinking] == ORDER
    assert len(bird.account()["asked"]) == len(ORDER)


def test_a_likelihood_that_no_language_model_gives_is_not_learned() -> None:
    bird, _ = ask_all(but("likelihood", logprobs(-11.0)))
    assert (bird.problem, bird.learnable) == (None, None)


def test_without_coherence_any_answer_will_do_and_two_are_asked_for() -> None:
    bird, asked = ask_all(lambda _: chat("!" * 60), coherence=False)
    assert (bird.problem, [name for name, _ in asked]) == (None, ["sum", "long"])


@pytest.mark.parametrize("context", [16, 64, 256, 512, 2048, 8192])
def test_what_is_asked_fits_a_small_context_even_at_a_token_a_character(context: int) -> None:
    def model(request: dict[str, Any]) -> Answer:
        assert request["max_tokens"] <= context
        if question_of(request) != "sum":
            assert len(prompt_of(request)) + request["max_tokens"] <= context
        return sane(request)

    bird, asked = ask_all(model, max_model_len=context)
    assert bird.problem is None
    assert asked[0][0] == "sum"


def test_a_slow_engine_is_asked_less_and_that_is_told() -> None:
    bird, asked = ask_all(thinker, step_s=15.0, timeout_s=60.0)
    assert bird.problem is None
    assert 2 <= len(asked) < 8
    assert any("timeout_s 60 is over" in note for note in bird.notes)


@pytest.mark.parametrize(
    ("answer", "content", "reasoning"),
    [
        (chat("4"), "4", ""),
        (chat(None, reasoning="two and two"), "", "two and two"),
        (chat("4", reasoning_content="two and two"), "4", "two and two"),
        (chat("4", reasoning_text="so"), "4", "so"),
        (chat("<think>so</think>4"), "4", "so"),
        (chat([{"type": "text", "text": "4"}]), "4", ""),
        (chat(None), "", ""),
        (Answer(200, b'{"choices":[{"text":" 4"}]}'), " 4", ""),
    ],
)
def test_reasoning_has_several_names(answer: Answer, content: str, reasoning: str) -> None:
    found = canary.read(answer.body)
    assert found is not None
    assert (found[0].content, found[0].reasoning) == (content, reasoning)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"choices":[]}',
        b'{"choices":[null]}',
        b'{"choices":{}}',
        b'{"choices":[{"message":null}]}',
        b'{"choices":[{"message":"4"}]}',
        b"<html>proxy</html>",
        b"\xff\xfe",
    ],
)
def test_an_answer_of_an_unknown_form_is_no_completion(body: bytes) -> None:
    bird, _ = ask_all(lambda _: Answer(200, body), coherence=False)
    assert "not a completion" in (bird.problem or "")


def test_what_the_journal_keeps_is_bounded() -> None:
    bird, _ = ask_all(lambda _: chat("word " + "another one, " * 5000), coherence=False)
    assert len(json.dumps(bird.account())) < 5000


@given(st.binary(max_size=200), st.integers(100, 599))
def test_no_bytes_break_the_judge(body: bytes, status: int) -> None:
    ask_all(lambda _: Answer(status, body))
