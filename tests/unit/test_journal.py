"""The journal: append-only, readable after any crash, and never a reason for the engine to die."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.lifecycle.events import Event
from deploy.store import journal
from deploy.store.journal import PENDING_LIMIT, Journal, Tail, read, timestamp


def kinds(path: Path) -> list[str]:
    return [event.kind for event in read(str(path))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_what_is_appended_is_read_again_in_order(path: Path) -> None:
    writer = Journal(str(path))
    written = [
        writer.append("launch", {"state": "starting"}, wall=1_796_000_000.25),
        writer.append("exited", {"signal": None}),
    ]
    assert read(str(path)) == written
    assert not writer.pending
    first = json.loads(path.read_bytes().splitlines()[0])
    assert first == {"v": 1, "at": "2026-11-30T00:53:20.250Z", "kind": "launch", "state": "starting"}
    assert path.stat().st_mode & 0o777 == 0o600


def test_odd_characters_cannot_break_a_line(path: Path) -> None:
    text = "a\nb\r\u2028\x85\x00\udc80 ü 🙂"
    writer = Journal(str(path))
    writer.append("fact", {"text": text})
    writer.append("next", {})
    assert path.read_bytes().count(b"\n") == 2
    assert read(str(path))[0].data == {"text": text}
    assert kinds(path) == ["fact", "next"]


@pytest.mark.parametrize(
    ("wall", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1_796_000_000.9999, "2026-11-30T00:53:20.999Z"),
        (1_796_000_001.001, "2026-11-30T00:53:21.001Z"),
    ],
)
def test_stamps_are_utc_with_milliseconds(wall: float, text: str) -> None:
    assert abs(float(timestamp(wall)[-5:-1]) - float(text[-5:-1])) <= 1
    assert timestamp(wall)[:19] == text[:19]
    assert timestamp(wall).endswith("Z")


def test_no_journal_is_an_empty_one(path: Path) -> None:
    assert read(str(path)) == []
    assert list(Tail(str(path)).poll()) == []


def test_a_second_writer_goes_on_behind_the_first(path: Path) -> None:
    Journal(str(path)).append("launch", {})
    Journal(str(path)).append("adopted", {})
    assert kinds(path) == ["launch", "adopted"]


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_record_that_a_crash_has_torn_is_lost_alone(path: Path, cut: int) -> None:
    Journal(str(path)).append("launch", {"n": 1})
    whole = path.stat().st_size
    Journal(str(path)).append("spawned", {"n": 2, "text": "x" * 40})
    os.truncate(path, whole + cut)
    after = Journal(str(path))
    after.append("adopted", {"n": 3})
    after.append("stopped", {"n": 4})
    assert kinds(path) == ["launch", "adopted", "stopped"]


def test_an_empty_or_whole_journal_gets_no_empty_line(path: Path) -> None:
    path.touch()
    Journal(str(path)).append("launch", {})
    Journal(str(path)).append("adopted", {})
    assert b"\n\n" not in path.read_bytes()
    assert not path.read_bytes().startswith(b"\n")


# ---------------------------------------------------------------- followers


def test_a_follower_gets_every_record_once_however_it_is_cut(path: Path) -> None:
    lines = b"".join(Event("progress", timestamp(0.0), {"n": number}).to_line() for number in range(5))
    tail = Tail(str(path))
    seen = []
    for size in range(0, len(lines), 7):
        with path.open("ab") as file:
            file.write(lines[size : size + 7])
        seen += [event.data["n"] for event in tail.poll()]
    assert seen == [0, 1, 2, 3, 4]
    assert list(tail.poll()) == []


def test_a_follower_passes_over_what_is_no_record(path: Path) -> None:
    path.write_bytes(b'{"torn":\n\xff\n' + Event("ready", timestamp(0.0), {}).to_line())
    assert [event.kind for event in Tail(str(path)).poll()] == ["ready"]


# ---------------------------------------------------------------- a disk that is full

# Runs apart: the limit on a file's size holds for a whole process. `room` bytes fit, then there is none, then there is.
FULL_DISK = """
import json, resource, signal, sys
from deploy.store import journal

path, room, records = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = journal.Journal(path)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
for number in range(records):
    writer.append("fact", {"n": number}, wall=1000.0 + number)
held = bool(writer.pending)
assert writer.flush() is not held
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
if len(sys.argv) > 4:
    writer.append("late", {}, wall=5000.0)
else:
    assert writer.flush()
print(json.dumps({"held": held, "pending": bool(writer.pending)}))
"""


def on_a_full_disk(path: Path, *, room: int, records: int, late: bool = False) -> bool:
    """Write `records` records where only `room` bytes fit, then make room; whether anything had to wait."""
    arguments = [str(path), str(room), str(records), *(["late"] if late else [])]
    result = subprocess.run(
        [sys.executable, "-P", "-c", FULL_DISK, *arguments], capture_output=True, text=True, check=True
    )
    outcome = json.loads(result.stdout)
    assert outcome["pending"] is False
    assert isinstance(outcome["held"], bool)
    return outcome["held"]


@pytest.mark.parametrize("room", [0, 1, 30, 56, 57, 100, 500])
def test_on_a_full_disk_records_wait_in_order_and_with_their_own_time(path: Path, room: int) -> None:
    assert on_a_full_disk(path, room=room, records=20)
    events = read(str(path))
    assert [event.data["n"] for event in events] == list(range(20))
    assert [event.at for event in events] == [timestamp(1000.0 + number) for number in range(20)]
    assert not any("records_lost" in event.data for event in events)


def test_a_new_record_brings_the_waiting_ones_with_it(path: Path) -> None:
    assert on_a_full_disk(path, room=10, records=3, late=True)
    assert kinds(path) == ["fact", "fact", "fact", "late"]


@pytest.mark.parametrize("room", [0, 30, 500])
def test_when_too_many_wait_the_oldest_are_lost_and_the_loss_is_told(path: Path, room: int) -> None:
    written = PENDING_LIMIT + 100
    assert on_a_full_disk(path, room=room, records=written)
    events = read(str(path))
    numbers = [event.data["n"] for event in events]
    assert numbers[-PENDING_LIMIT:] == list(range(100, written))
    assert numbers == sorted(numbers)
    lost = sum(event.data.get("records_lost", 0) for event in events)
    assert lost == written - len(numbers) > 0


def test_where_nothing_can_ever_be_written_nothing_breaks() -> None:
    writer = Journal("/dev/full")
    for number in range(PENDING_LIMIT + 50):
        event = writer.append("fact", {"n": number})
        assert event.data == {"n": number}
    assert writer.pending
    assert writer.flush() is False


def test_room_on_the_disk_is_not_needed_to_read(path: Path) -> None:
    Journal(str(path)).append("launch", {})
    path.chmod(0o400)
    assert [event.kind for event in journal.read(str(path))] == ["launch"]
