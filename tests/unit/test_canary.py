"""The canary: what is asked, and which answers count as rubbish."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.supervise import canary


def chat_answer(**message: Any) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", **message}}]}).encode()


def completion_answer(text: Any) -> bytes:
    return json.dumps({"choices": [{"text": text}]}).encode()


def test_a_short_and_a_longer_prompt_are_asked() -> None:
    short, long = canary.prompts(131072)
    assert short == canary.SHORT
    assert len(long) == canary.LONG_CHARACTERS
    assert canary.prompts(None) == [short, long]


@pytest.mark.parametrize("context", [1, 16, 64, 128, 256, 512, 2048, 4096])
def test_the_longer_prompt_fits_even_at_a_token_a_character_or_is_left_out(context: int) -> None:
    short, *longer = canary.prompts(context)
    assert short == canary.SHORT
    for prompt in longer:
        assert len(prompt) + canary.ANSWER_TOKENS <= context


def test_a_chat_request_as_the_openai_api_wants_it() -> None:
    ask = canary.chat("kimi-k2.5", "hello")
    assert ask.path == "/v1/chat/completions"
    body = json.loads(ask.body)
    assert body["model"] == "kimi-k2.5"
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert body["temperature"] == 0
    assert body["max_tokens"] == canary.ANSWER_TOKENS


def test_a_plain_completion_for_models_that_cannot_chat() -> None:
    ask = canary.completion("kimi-k2.5", "hello")
    assert ask.path == "/v1/completions"
    assert json.loads(ask.body)["prompt"] == "hello"


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (404, b'{"detail":"Not Found"}', True),
        (400, b'{"error":{"message":"As of transformers v4.44, default chat template is no longer allowed"}}', True),
        (400, b"This model has no Chat Template", True),
        (400, b"This model's maximum context length is 64 tokens", False),
        (500, b"chat template", False),
        (200, b"chat template", False),
    ],
)
def test_a_model_that_cannot_chat_is_told_from_one_that_fails(status: int, body: bytes, expected: bool) -> None:
    assert canary.has_no_chat(status, body) is expected


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (chat_answer(content="4"), "4"),
        (chat_answer(content=None, reasoning="two and two"), "two and two"),
        (chat_answer(content="4", reasoning_content="two and two: "), "two and two: 4"),
        (chat_answer(content="4", reasoning_text="so "), "so 4"),
        (chat_answer(content=None, tool_calls=[]), ""),
        (completion_answer(" 4"), " 4"),
        (completion_answer(None), ""),
    ],
)
def test_everything_that_the_model_wrote_counts_its_reasoning_too(body: bytes, text: str) -> None:
    assert canary.text_of(body) == text


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
    assert canary.text_of(body) is None
    assert "not a completion" in (canary.judge(200, body, coherence=False) or "")


@pytest.mark.parametrize(
    "text",
    [
        "4",
        "The answer is 4.",
        " 4\n",
        "2 + 2 = 4. Therefore, the number is 4.",
        "No, no, no, no.",
        "ha ha ha, that is 4, of course",
        "四",
        "Vier 🙂",
        "The dog is lazy \ufffd",  # cut by the limit of tokens in the middle of a character
        "1, 2, 3, 4, 5, 6, 7, 8",
    ],
)
def test_a_sensible_answer_passes(text: str) -> None:
    assert canary.judge(200, chat_answer(content=text), coherence=True) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("!!!!!!!!!!!!!!!!", "over and over"),
        ("The !!!!!!!!!!!!!!!!", "over and over"),
        ("foo bar foo bar foo bar foo bar foo bar foo bar foo bar foo bar ", "over and over"),
        ("\n\n\n\n\n\n\n\n\n\nx", "over and over"),
        ("a\ufffdb\ufffdc", "no text"),
        ("\ufffd\ufffdx", "no text"),
    ],
)
def test_rubbish_does_not_pass_but_where_sense_is_not_asked_for(text: str, why: str) -> None:
    body = chat_answer(content=text)
    assert why in (canary.judge(200, body, coherence=True) or "")
    assert canary.judge(200, body, coherence=False) is None


def test_rubbish_in_the_reasoning_alone_is_rubbish() -> None:
    body = chat_answer(reasoning="!" * 40, content="4")
    assert "over and over" in (canary.judge(200, body, coherence=True) or "")


@pytest.mark.parametrize("status", [400, 401, 404, 500, 503])
def test_an_error_is_told_with_what_the_server_said(status: int) -> None:
    problem = canary.judge(status, b'{"error": "EngineCore encountered an issue"} \xff' + b"x" * 5000, coherence=False)
    assert problem is not None
    assert f"HTTP {status}" in problem
    assert "EngineCore" in problem
    assert len(problem) < 400


@given(st.text(max_size=200), st.booleans())
def test_no_answer_breaks_the_judge(text: str, coherence: bool) -> None:
    canary.judge(200, chat_answer(content=text), coherence=coherence)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_judge(body: bytes) -> None:
    canary.judge(200, body, coherence=True)
