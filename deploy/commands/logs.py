"""`kdeploy logs NAME`: the engine's log as vLLM wrote it, or the journal of events."""

import contextlib
import itertools
import json
import os
import re
import time
from collections.abc import Iterator

import click

from deploy import errors
from deploy.commands import options
from deploy.commands.choosing import only
from deploy.console import output
from deploy.console.words import event_line
from deploy.engine.log import text_of
from deploy.errors import not_running, usage
from deploy.lifecycle.events import Event
from deploy.lifecycle.fold import Observed, apply
from deploy.store import journal
from deploy.store.deployments import Deployment, observe, previous
from deploy.store.launches import Launch, newest

POLL_S = 0.2
CHUNK = 1 << 16
STAMP = re.compile(rb"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@click.command()
@click.argument("name", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on as the log grows, also through a restart.")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--since", metavar="T", help="Only from T on: an age (30s, 10m, 2h) or a time (2026-12-01T10:15:00).")
@click.option("--previous", "before", is_flag=True, help="The launch before the newest one.")
@click.option("--events", is_flag=True, help="The journal of events instead of the engine's log.")
@options.as_json
def command(
    name: str | None, follow: bool, tail: int | None, since: str | None, before: bool, events: bool, as_json: bool
) -> int:
    """The engine's log (without NAME: of the only deployment)."""
    deployment = only(name, "logs")
    launch = deployment.launch
    if before:
        earlier = previous(deployment.name)
        if earlier is None:
            raise not_running(f"{deployment.name} has had one launch only", fix=[f"kdeploy logs {deployment.name}"])
        launch = earlier
    moment = _moment(since) if since else None
    try:
        if events:
            _show_events(deployment, launch, moment, tail, follow=follow and not before, as_json=as_json)
        else:
            _show_log(deployment, launch, moment, tail, follow=follow and not before, as_json=as_json)
    except KeyboardInterrupt:
        return errors.DETACHED
    return errors.OK


def _moment(text: str) -> float:
    """`--since` as wall-clock seconds."""
    age = AGE.fullmatch(text)
    if age:
        return time.time() - float(age[1]) * SECONDS[age[2]]
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise usage(
            f"--since wants an age or a time, not {text!r}", fix=["--since 10m", "--since 2026-12-01T10:15:00"]
        ) from None


# ---------------------------------------------------------------------- the engine's log


def _show_log(
    deployment: Deployment, launch: Launch, moment: float | None, tail: int | None, *, follow: bool, as_json: bool
) -> None:
    if not os.path.exists(launch.log) and not follow:
        output.say(f"{launch.log}: the engine has not written anything")
        return
    end = _size(launch.log)  # what is written while we read is not asked for, except by those who follow
    offset = _start(launch.log, moment, tail, end)
    chunks = _chunks(deployment, launch, offset, None if follow else end)
    if as_json:
        _show_json(chunks, _lines_before(launch.log, offset))
        return
    for _, chunk in chunks:
        output.raw(chunk)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _start(path: str, moment: float | None, tail: int | None, end: int) -> int:
    """Offset of the first byte to show."""
    offset = 0 if moment is None else _offset_since(path, moment)
    return offset if tail is None else max(offset, _offset_of_tail(path, tail, end))


def _offset_of_tail(path: str, count: int, end: int) -> int:
    """Where the last `count` lines of the first `end` bytes begin."""
    try:
        with open(path, "rb") as file:
            position = end
            if end == 0:
                return 0
            file.seek(end - 1)
            wanted = count + (file.read(1) == b"\n")
            while position > 0:
                step = min(CHUNK, position)
                position -= step
                file.seek(position)
                block = file.read(step)
                found = block.count(b"\n")
                if found >= wanted:
                    at = len(block)
                    for _ in range(wanted):
                        at = block.rfind(b"\n", 0, at)
                    return position + at + 1
                wanted -= found
    except OSError:
        return 0
    return 0


def _offset_since(path: str, moment: float) -> int:
    """Where the first line with a stamp at or after `moment` begins; vLLM's stamps are local time without a year."""
    year = time.localtime(moment).tm_year
    offset = 0
    try:
        with open(path, "rb") as file:
            for line in file:
                stamp = STAMP.search(line[:200])
                if stamp:
                    with contextlib.suppress(ValueError, OverflowError):
                        month, day, hour, minute, second = map(int, stamp.groups())
                        if time.mktime((year, month, day, hour, minute, second, 0, 0, -1)) >= int(moment):
                            return offset
                offset += len(line)
    except OSError:
        return 0
    return offset


def _lines_before(path: str, offset: int) -> int:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(offset).count(b"\n")
    return 0


def _chunks(deployment: Deployment, launch: Launch, offset: int, end: int | None) -> Iterator[tuple[str, bytes]]:
    """The log from `offset` up to `end`, each part with its launch; where `end` is None, as it grows."""
    while True:
        over = end is None and not _goes_on(deployment.name)
        with contextlib.suppress(FileNotFoundError), open(launch.log, "rb") as file:
            file.seek(offset)
            while chunk := file.read(CHUNK if end is None else max(0, min(CHUNK, end - offset))):
                offset += len(chunk)
                yield launch.id, chunk
        if end is not None:
            return
        later = newest(deployment.name)
        if later is not None and later.id != launch.id:
            output.say(f"--- launch {later.id}")
            launch, offset = later, 0
            continue
        if over:
            return
        time.sleep(POLL_S)


def _goes_on(name: str) -> bool:
    current = observe(name)
    return current is not None and current.active


def _show_json(chunks: Iterator[tuple[str, bytes]], before: int) -> None:
    """One object a line, numbered as a diagnosis does it: by line feeds. `before`: those before the first chunk."""
    number = before
    for _, parts in itertools.groupby(chunks, key=lambda part: part[0]):
        rest = b""
        for _, chunk in parts:
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                number += 1
                _show_line(number, line)
        if rest:
            _show_line(number + 1, rest)
        number = 0  # another launch has another log


def _show_line(number: int, line: bytes) -> None:
    shown = line.rstrip(b"\r").rpartition(b"\r")[2]  # of a bar that was redrawn, what a terminal shows in the end
    output.data(json.dumps({"line": number, "text": text_of(shown)}, ensure_ascii=False))


# ---------------------------------------------------------------------- the journal


def _show_events(
    deployment: Deployment, launch: Launch, moment: float | None, tail: int | None, *, follow: bool, as_json: bool
) -> None:
    from deploy.supervise.client import Follower

    observed = Observed()
    earliest = journal.timestamp(moment) if moment is not None else ""
    follower = Follower(launch)
    found = [event for event in journal.read(launch.events) if event.at >= earliest]
    skipped = len(found) - tail if tail is not None else 0
    list(follower.tail.poll())
    for index, event in enumerate(found):
        apply(observed, event)
        if index >= skipped:
            _show_event(event, observed, as_json=as_json)
    while follow:
        goes_on = _goes_on(deployment.name)
        for event in follower.poll():
            apply(observed, event)
            _show_event(event, observed, as_json=as_json)
        if not goes_on:
            return
        time.sleep(POLL_S)


def _show_event(event: Event, observed: Observed, *, as_json: bool) -> None:
    if as_json:
        output.data(json.dumps({"at": event.at, "kind": event.kind, **event.data}, ensure_ascii=False))
        return
    text = event_line(event, observed) or " ".join(f"{key}={value}" for key, value in event.data.items())
    output.data(f"{event.at}  {event.kind:<14} {text[:200]}")
