"""The bytes of one answer, with the times they came at, as token events. Pure.

Bytes are kept as they arrive and read afterwards, so that reading them costs no time while others are being measured.
All times are seconds on one monotonic clock.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

REASONING, CONTENT, OTHER = "reasoning", "content", "other"
REASONING_KEYS = ("reasoning", "reasoning_content", "reasoning_text")
BODY_SHOWN = 300


@dataclass
class Exchange:
    """One request as it went over the wire.

    Attributes:
        asked: when it was due (the clock of everything that is told about it).
        connected: when the connection was there; None when it never was.
        pieces: (time, bytes) of every read.
        ended: when the answer was over.
        fault: why it did not end well: one of the slugs of FAULTS with details; empty when the bytes tell.
    """

    number: int
    asked: float
    connected: float | None = None
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    ended: float = 0.0
    fault: str = ""


@dataclass
class Timeline:
    """What an exchange said. Token events are the reads that brought tokens, one entry each in the parallel lists.

    Attributes:
        failure: why it does not count, in words; empty when it does.
        times: when each event came.
        counts: completion tokens up to and with each event, by the server's running count; empty without one.
        reasonings: reasoning tokens likewise; empty where the server does not tell them apart.
        kinds: REASONING, CONTENT or OTHER, by the text that the event brought.
        usage: the server's last word on tokens; {} when it said none.
    """

    number: int
    asked: float
    connected: float | None
    ended: float
    failure: str = ""
    status: int | None = None
    times: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    reasonings: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    reasoning_text: str = ""
    content_text: str = ""
    first_visible: float | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    finish: str | None = None
    body: bytes = b""

    @property
    def ok(self) -> bool:
        """Whether it counts as served."""
        return not self.failure


def read(exchange: Exchange) -> Timeline:
    """The timeline of an exchange, streamed or whole."""
    found = Timeline(exchange.number, exchange.asked, exchange.connected, exchange.ended, exchange.fault)
    data = b"".join(piece for _, piece in exchange.pieces)
    head, separator, rest = data.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].split(b" ")
    if not separator or len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        found.failure = found.failure or ("not HTTP" if data else "closed without an answer")
        return found
    found.status = int(words[1])
    headers = head.lower()
    marks = _marks(exchange.pieces, len(head) + 4)
    whole = True
    if re.search(rb"\r\ntransfer-encoding:[^\r]*chunked", headers):
        body, marks, whole = _dechunk(rest, marks)
    else:
        body = rest
        length = re.search(rb"\r\ncontent-length:\s*(\d+)", headers)
        whole = length is None or len(body) >= int(length[1])
    if found.status != 200:
        found.body = body
        found.failure = found.failure or f"HTTP {found.status}: {_words(body)}"
    elif b"\r\ncontent-type: text/event-stream" in headers or body.startswith((b"data:", b":")):
        _read_events(found, body, marks, whole)
    elif whole:
        _read_whole(found, body)
    else:
        found.failure = found.failure or "the answer was cut off"
    return found


def _words(body: bytes) -> str:
    try:
        error = json.loads(body)
        error = error.get("error", error)
        return str(error["message"] if isinstance(error, dict) else error)[:BODY_SHOWN]
    except (ValueError, KeyError, AttributeError):
        return body.decode(errors="replace").strip()[:BODY_SHOWN]


def _marks(pieces: list[tuple[float, bytes]], head: int) -> list[tuple[int, float]]:
    """(end offset in the body, time) of each read."""
    marks, offset = [], -head
    for time, piece in pieces:
        offset += len(piece)
        if offset > 0:
            marks.append((offset, time))
    return marks


def _dechunk(data: bytes, marks: list[tuple[int, float]]) -> tuple[bytes, list[tuple[int, float]], bool]:
    """The body without its chunk framing, the times moved along, and whether the last chunk came."""
    body: list[bytes] = []
    moved: list[tuple[int, float]] = []
    position = length = index = 0
    while True:
        end = data.find(b"\r\n", position)
        if end < 0:
            return b"".join(body), moved, False
        try:
            size = int(data[position:end].split(b";")[0], 16)
        except ValueError:
            return b"".join(body), moved, False
        start = end + 2
        if size == 0:
            return b"".join(body), moved, True
        piece = data[start : start + size]
        body.append(piece)
        length += len(piece)
        while index < len(marks) - 1 and marks[index][0] < start + len(piece):
            # a chunk that came in several reads is there with the last of them; its beginning may be there before
            inside = marks[index][0] - start
            if inside > 0:
                moved.append((length - len(piece) + inside, marks[index][1]))
            index += 1
        moved.append((length, marks[index][1] if marks else 0.0))
        if len(piece) < size:
            return b"".join(body), moved, False
        position = start + size + 2


def _read_events(found: Timeline, body: bytes, marks: list[tuple[int, float]], whole: bool) -> None:
    done = False
    position = mark = 0
    while (stop := body.find(b"\n", position)) >= 0:
        line = body[position:stop]
        position = stop + 1
        if not line.startswith(b"data:"):
            continue
        text = line[5:].strip()
        if text == b"[DONE]":
            done = True
            break
        while mark < len(marks) - 1 and marks[mark][0] < stop:
            mark += 1
        try:
            event = json.loads(text)
        except ValueError:
            found.failure = found.failure or f"an event is not JSON: {_words(text)}"
            return
        if not isinstance(event, dict):
            continue
        if event.get("error"):
            found.failure = found.failure or f"error in the stream: {_words(text)}"
            return
        _take(found, event, marks[mark][1] if marks else found.ended)
    if not done and not (found.finish and whole):
        found.failure = found.failure or "the stream ended before its end"


def _take(found: Timeline, event: dict[str, Any], time: float) -> None:
    choices = event.get("choices") or []
    usage = event.get("usage") or {}
    if usage.get("completion_tokens") is not None:
        found.usage = usage
    if not choices:
        return
    delta = choices[0].get("delta") or {}
    reasoning = next((value for key in REASONING_KEYS if (value := delta.get(key))), "")
    content = delta.get("content") or ""
    found.reasoning_text += reasoning
    found.content_text += content
    found.finish = choices[0].get("finish_reason") or found.finish
    if content.strip() and found.first_visible is None:
        found.first_visible = time
    count = usage.get("completion_tokens")
    if count is not None:
        if count <= (found.counts[-1] if found.counts else 0):
            return
        found.counts.append(count)
        details = usage.get("completion_tokens_details") or {}
        if details.get("reasoning_tokens") is not None:
            found.reasonings.append(details["reasoning_tokens"])
    elif not (reasoning or content or delta.get("tool_calls")):
        return
    found.times.append(time)
    last = found.kinds[-1] if found.kinds else OTHER
    empty = OTHER if delta.get("tool_calls") else last
    found.kinds.append(CONTENT if content else REASONING if reasoning else empty)


def _read_whole(found: Timeline, body: bytes) -> None:
    found.body = body
    try:
        document = json.loads(body)
        message = document["choices"][0]["message"]
    except (ValueError, KeyError, IndexError, TypeError):
        found.failure = found.failure or f"no chat completion: {_words(body)}"
        return
    found.usage = document.get("usage") or {}
    found.content_text = message.get("content") or ""
    found.reasoning_text = next((value for key in REASONING_KEYS if (value := message.get(key))), "")
    found.finish = document["choices"][0].get("finish_reason")
