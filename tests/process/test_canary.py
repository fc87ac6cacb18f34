"""The canary before ready and on demand: a model that answers garbage is not served."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.box import Box

SPOILT = "!" * 60


def _canned(box: Box, *answers: Any) -> Path:
    path = box.root / "answers.json"
    path.write_text(json.dumps(answers))
    return path


def _canary(box: Box, *args: str, rc: int = 0) -> dict[str, Any]:
    result = box.run("canary", *args, "--json")
    assert result.rc == rc, result
    document: dict[str, Any] = result.json
    assert document["passed"] is (rc == 0)
    return document


def test_garbage_in_one_of_five_keeps_it_from_being_ready_and_the_texts_are_kept(box: Box) -> None:
    box.profile("tiny", f"answers={_canned(box, None, None, None, SPOILT, None, None)}")
    result = box.run("up", "tiny", "--json")
    assert result.rc == 1
    assert (result.json["state"], result.json["ready_at"]) == ("failed", None)
    diagnosis = result.json["diagnosis"]
    assert diagnosis["cause"] == "canary-failed"
    assert "copy" in diagnosis["summary"]
    assert any(SPOILT[:40] in entry["text"] for entry in diagnosis["evidence"])
    (record,) = box.events("canary")
    assert record["passed"] is False
    assert [(one["question"], one["content"]) for one in record["asked"]][-1] == ("copy", SPOILT)
    assert SPOILT in box.ok("logs", "tiny", "--events", "--json").stdout, "as the remedy says"
    box.await_no_engine()
    told = box.run("canary", "tiny")
    assert told.rc == 3
    assert "kdeploy up tiny" in told.stderr


def test_what_runs_is_asked_again_on_demand(box: Box) -> None:
    """One engine, whose answers change from one canary to the next."""
    path = _canned(box, None)
    box.up("tiny", f"answers={path}")
    healthy = _canary(box, "tiny")
    assert {one["question"] for one in healthy["asked"]} == {"sum", "long", "copy", "capital", "count"}
    assert all(one["right"] for one in healthy["asked"])
    for text, why in [
        (SPOILT, "times over"),
        ("the the the the the the the the the the the the", "times over"),
        ("the ответ 答案 שלום answer", "alphabets"),
        ("a\ufffdb\ufffdc", "no text"),
        ({"reasoning": "hm " * 30, "content": "42"}, "times over"),
        ("I like boats.", "answered wrongly"),
    ]:
        _canned(box, text)
        failed = _canary(box, "tiny", rc=1)
        assert why in failed["problem"], text
        assert failed["diagnosis"]["cause"] == "canary-failed"
    _canned(box, None)
    lines = box.ok("canary").stdout.splitlines()
    assert lines[-1] == "tiny: answers with sense"
    assert box.state_of("tiny") == "ready", "asking changes nothing"
    box.down("tiny")


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content", "reasoning_text"])
def test_thinking_is_asked_for_off_and_on_whatever_its_name(box: Box, key: str) -> None:
    box.up("tiny", f"reasoning=3;switch=1;reasoning_key={key}")
    asked = box.events("canary")[0]["asked"]
    assert [one["thinking"] for one in asked] == [False] * 5 + [True] * 5
    assert [bool(one["reasoning"]) for one in asked] == [False] * 5 + [True] * 5
    box.down("tiny")


@pytest.mark.parametrize(
    ("fake", "endpoint", "note"),
    [("refuse_kwargs=1", "chat", "chat_template_kwargs"), ("chat=0", "completions", "cannot chat")],
)
def test_a_server_that_lacks_something_is_asked_without(box: Box, fake: str, endpoint: str, note: str) -> None:
    box.up("tiny", fake)
    (record,) = box.events("canary")
    assert (record["passed"], record["endpoint"], len(record["asked"])) == (True, endpoint, 5)
    assert any(note in one for one in record["notes"])
    box.down("tiny")


def test_log_probabilities_that_are_no_numbers_keep_it_from_being_ready(box: Box) -> None:
    box.profile("tiny", "prompt_logprobs=nan")
    result = box.run("up", "tiny", "--json")
    assert result.rc == 1
    assert result.json["diagnosis"]["cause"] == "canary-failed"
    assert "no numbers" in result.json["diagnosis"]["summary"]
    box.await_no_engine()


def test_the_first_pass_says_which_likelihood_is_expected_of_a_checkpoint(box: Box) -> None:
    box.up("tiny", "logprob=-1.5")
    box.down("tiny")
    (learned,) = (box.state / "canary").glob("*.json")
    assert json.loads(learned.read_text())["mean"] == pytest.approx(-1.5, abs=0.05)

    box.profile("tiny", "logprob=-4")
    result = box.run("up", "tiny", "--json")
    assert result.rc == 1
    assert result.json["diagnosis"]["cause"] == "canary-failed"
    assert any(f"rm {learned}" in fix for fix in result.json["diagnosis"]["fix"])
    box.await_no_engine()
    box.await_released()

    box.up("tiny", "logprob=-4", {"canary.enabled": False})
    assert "expected of this checkpoint" in _canary(box, "tiny", rc=1)["problem"]
    assert _canary(box, "tiny", "--learn")["learned"] is True
    assert _canary(box, "tiny")["likelihood"]["expected"] == pytest.approx(-4, abs=0.05)
    box.down("tiny")
