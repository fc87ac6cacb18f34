"""Bytes and the times they came at, as token events."""

import json
from typing import Any

import pytest

from deploy.measure.timeline import CONTENT, OTHER, REASONING, Exchange, Timeline, read

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def event(delta: dict[str, Any] | None, count: int | None = None, finish: str | None = None, **more: Any) -> bytes:
    """One event in one HTTP chunk."""
    document: dict[str, Any] = {"choices": [] if delta is None else [{"delta": delta, "finish_reason": finish}], **more}
    if count is not None:
        document["usage"] = {"prompt_tokens": 7, "completion_tokens": count, **more.get("details", {})}
    return chunk(f"data: {json.dumps(document)}\n\n".encode())


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


DONE = chunk(b"data: [DONE]\n\n") + END


def timeline(*pieces: bytes, fault: str = "") -> Timeline:
    """Piece N comes at N + 1 seconds; the request was made at 0."""
    timed = [(float(number), piece) for number, piece in enumerate(pieces, 1)]
    return read(Exchange(0, 0.0, 0.1, timed, float(len(pieces)), fault))


def test_events_carry_the_running_count_and_the_kind_of_their_text() -> None:
    found = timeline(
        HEAD + event({"role": "assistant", "content": ""}, 0),
        event({"reasoning": "hm"}, 3),
        event({"content": "\n\n"}, 4),
        event({"content": "yes"}, 7),
        event({"content": ""}, 8, "stop") + event(None, 8) + DONE,
    )
    assert found.ok
    assert found.times == [2, 3, 4, 5]
    assert found.counts == [3, 4, 7, 8]
    assert found.kinds == [REASONING, CONTENT, CONTENT, CONTENT]
    assert found.first_visible == 4  # blank text is nothing that a reader sees
    assert (found.reasoning_text, found.content_text, found.finish) == ("hm", "\n\nyes", "stop")
    assert found.usage["completion_tokens"] == 8


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content", "reasoning_text"])
def test_reasoning_goes_by_three_names(key: str) -> None:
    assert timeline(HEAD + event({key: "hm"}) + DONE).kinds == [REASONING]


def test_without_a_count_an_event_without_text_is_no_token() -> None:
    found = timeline(HEAD, event({"content": "a"}), event({"content": ""}, finish="stop") + DONE)
    assert found.times == [2]
    assert found.counts == []


def test_a_tool_call_is_neither_reasoning_nor_content() -> None:
    assert timeline(HEAD + event({"tool_calls": [{}]}) + DONE).kinds == [OTHER]


@pytest.mark.parametrize("cut", range(1, 60))
def test_any_cut_of_the_bytes_gives_the_same_tokens(cut: int) -> None:
    whole = HEAD + event({"content": "one"}, 1) + event({"content": "two"}, 2, "stop") + DONE
    data = [whole[start : start + cut] for start in range(0, len(whole), cut)]
    found = timeline(*data)
    assert (found.ok, found.counts, found.content_text) == (True, [1, 2], "onetwo")
    # an event is there when its last byte is, and not before
    lengths = [len(HEAD) + len(event({"content": "one"}, 1)), len(whole) - len(DONE)]
    assert all(abs(time - -(-length // cut)) <= 1 + 4 / cut for time, length in zip(found.times, lengths, strict=True))


def test_an_answer_that_is_not_chunked_is_read_until_the_connection_ends() -> None:
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    found = timeline(head, b'data: {"choices":[{"delta":{"content":"a"}}]}\r\n\r\n', b"data: [DONE]\r\n\r\n")
    assert (found.ok, found.times) == (True, [2])


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([], "closed without an answer"),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "not HTTP"),
        ([HEAD + event({"content": "a"}, 1)], "the stream ended before its end"),
        ([HEAD + event({"content": "a"}, 1, "stop")], "the stream ended before its end"),
        ([HEAD + chunk(b"data: {nonsense\n\n") + DONE], "an event is not JSON"),
        ([HEAD + chunk(b'data: {"error": {"message": "engine died"}}\n\n') + DONE], "engine died"),
        ([b'HTTP/1.1 429 X\r\ncontent-length: 28\r\n\r\n{"error":{"message":"slow"}}'], "HTTP 429: slow"),
        ([b"HTTP/1.1 500 X\r\n\r\nboom"], "HTTP 500: boom"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{}"], "the answer was cut off"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"], "no chat completion"),
    ],
)
def test_what_went_wrong_is_said(pieces: list[bytes], why: str) -> None:
    assert why in timeline(*pieces).failure


def test_a_fault_of_the_connection_comes_first() -> None:
    assert timeline(HEAD, fault="connection broke: reset").failure == "connection broke: reset"


def test_a_whole_answer() -> None:
    body = {"choices": [{"message": {"content": "c", "reasoning": "r"}}], "usage": {"completion_tokens": 2}}
    data = json.dumps(body).encode()
    found = timeline(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(data), data))
    assert (found.ok, found.content_text, found.reasoning_text, found.usage) == (True, "c", "r", body["usage"])
