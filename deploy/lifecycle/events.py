"""The records of the journal: what happened to a launch, in order, for people and for the fold.

One JSON object a line: `{"v": 1, "at": "2026-12-01T10:15:00.123Z", "kind": "phase", …data}`. A record that
moves the deployment carries `state` (and `phase` while starting); all others leave the state as it was.
"""

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

VERSION = 1


class Event(NamedTuple):
    """One journal record: its kind, when (UTC, ISO 8601 with Z), and its data."""

    kind: str
    at: str
    data: dict[str, Any]

    def to_line(self) -> bytes:
        """The record as the journal holds it, newline included."""
        record = {"v": VERSION, "at": self.at, "kind": self.kind, **self.data}
        return json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def parse_line(line: bytes) -> Event | None:
    """The event of one journal line; None for a torn or foreign line (a crash or a full disk can cut one)."""
    try:
        record = json.loads(line)
        kind, at = record.pop("kind"), record.pop("at")
        if datetime.fromisoformat(at).tzinfo is None:
            return None
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    record.pop("v", None)
    return Event(str(kind), str(at), record)


def parse_lines(lines: Iterable[bytes]) -> Iterator[Event]:
    """Every whole record of `lines`; torn ones are passed over."""
    for line in lines:
        event = parse_line(line)
        if event is not None:
            yield event
