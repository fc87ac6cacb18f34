"""`kdeploy watch NAME`: a live screen from files alone; it touches nothing and costs the supervisor nothing."""

import contextlib
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import Any

import click

from deploy import errors
from deploy.commands import options
from deploy.commands.choosing import only
from deploy.commands.following import follow, outcome, settled
from deploy.console import output
from deploy.engine.log import text_of
from deploy.store import history
from deploy.store.deployments import Deployment, observe, to_json

LOOK_S = 0.5
GPUS_S = 5.0
TAIL_BYTES = 64 << 10


@click.command()
@click.argument("name", required=False)
@options.as_json
def command(name: str | None, as_json: bool) -> int:
    """Live screen: phase, bytes, rate, ETA, GPUs, last log lines (without NAME: of the only deployment).

    q or Ctrl-C leaves and touches nothing. Without a terminal: plain lines until it is ready or has failed.
    """
    deployment = only(name, "watch")
    try:
        if as_json:
            return _stream(deployment)
        if not output.is_terminal():
            follow(deployment.launch, deployment.plan, done=settled, replay=True)
            return outcome(deployment.name, as_json=False)
        return _watch(deployment)
    except KeyboardInterrupt:
        return errors.OK


def _stream(deployment: Deployment) -> int:
    """The status object, one a line, whenever it has changed; until nothing more will happen."""
    before: dict[str, Any] | None = None
    current: Deployment | None = deployment
    while current is not None:
        status = to_json(current)
        if status != before:
            output.data(json.dumps(status, ensure_ascii=False))
            before = status
        if not current.active:
            break
        time.sleep(LOOK_S)
        current = observe(deployment.name)
    return errors.OK


def _watch(deployment: Deployment) -> int:
    from rich.console import Console
    from rich.live import Live

    from deploy.console.watch_screen import View, screen

    plan = deployment.plan
    learned: dict[str, float] = {}
    if plan:
        key = history.fingerprint(plan["model"], plan["engine"], plan["argv"], len(plan["gpus"]))
        learned = history.learned(history.entries(key))
    console = Console(highlight=False)
    memory: dict[str, int | None] = {}
    asked = 0.0
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        current: Deployment | None = deployment
        while current is not None:
            if plan.get("gpus") and time.monotonic() - asked >= GPUS_S:
                from deploy.host.gpus import used_mib

                asked, memory = time.monotonic(), used_mib()
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            view = View(to_json(current, memory), now, learned, _tail(current.launch.log, console.size.height))
            live.update(screen(view, console.size.width, console.size.height), refresh=True)
            if pressed(LOOK_S) == "q":
                break
            current = observe(deployment.name)
    return errors.OK


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """Single keys without Enter; the terminal is left as it was."""
    if not sys.stdin.isatty():
        yield lambda seconds: time.sleep(seconds)
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)

    def pressed(seconds: float) -> str:
        ready = select.select([fd], [], [], seconds)[0]
        return os.read(fd, 1).decode(errors="replace").lower() if ready else ""

    try:
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _tail(path: str, lines: int) -> list[str]:
    """The last lines of the log, as people read them."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - TAIL_BYTES))
            chunk = file.read()
    except OSError:
        return []
    drawn = (raw.rstrip(b"\r").rpartition(b"\r")[2] for raw in chunk.split(b"\n"))
    return [text for raw in drawn if (text := text_of(raw))][-lines:]
