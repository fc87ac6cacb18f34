"""The likelihood of a fixed text: what is read from an answer, and what counts as too low."""

import json
from typing import Any

import pytest

from deploy.engine.http import Answer
from deploy.supervise import likelihood


def answer(entries: Any) -> Answer:
    return Answer(200, json.dumps({"choices": [{"text": "", "prompt_logprobs": entries}]}).encode())


def entries(*values: Any) -> list[Any]:
    return [None, *({str(n): {"logprob": value, "rank": 1}} for n, value in enumerate(values))]


def test_what_is_asked_for() -> None:
    body = json.loads(likelihood.body("kimi"))
    assert body["model"] == "kimi"
    assert body["prompt"] == likelihood.REFERENCE
    assert (body["prompt_logprobs"], body["temperature"], body["max_tokens"]) == (0, 0, 1)


def test_the_mean_leaves_out_the_first_token_which_has_none() -> None:
    reading = likelihood.read(answer(entries(*[-1.0] * 6, *[-2.0] * 6)))
    assert (reading.mean, reading.tokens, reading.broken) == (-1.5, 12, None)


@pytest.mark.parametrize(
    ("came", "told"),
    [
        (answer(entries(*[-1.0] * 9, float("nan"))), "1 of 10 log-probabilities"),
        (answer(entries(*[-1.0] * 9, None)), "1 of 10 log-probabilities"),
        (answer([None, *[{}] * 10]), "10 of 10 log-probabilities"),
        (answer(entries(*[-9999.0] * 10)), "no likelihood at all"),
        (Answer(500, b'{"error":{"message":"Out of range float values are not JSON compliant: nan"}}'), "no numbers"),
        (Answer(500, b'{"error":{"message":"EngineCore encountered an issue"}}'), "HTTP 500"),
        (Answer(None, b"", "no answer in time"), "no answer in time"),
    ],
)
def test_numbers_that_are_none_are_a_fault(came: Answer, told: str) -> None:
    reading = likelihood.read(came)
    assert reading.mean is None
    assert told in (reading.broken or "")


@pytest.mark.parametrize(
    "came",
    [
        Answer(400, b"prompt_logprobs is not supported"),
        Answer(404, b""),
        answer(None),
        answer(entries(-1.0, -1.0)),
        Answer(200, b"<html>"),
        Answer(200, b'{"choices": []}'),
    ],
)
def test_an_engine_that_does_not_offer_it_is_no_fault(came: Answer) -> None:
    reading = likelihood.read(came)
    assert (reading.mean, reading.broken) == (None, None)
    assert reading.why


@pytest.mark.parametrize(
    ("mean", "expected", "low"),
    [(-1.6, None, False), (-1.6, -1.5, False), (-2.0, -1.5, False), (-2.01, -1.5, True), (-1.0, -1.5, False)],
)
def test_only_far_below_the_expected_is_too_low(mean: float, expected: float | None, low: bool) -> None:
    assert (likelihood.too_low(mean, expected) is not None) is low
