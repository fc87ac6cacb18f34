"""Showing a start or a stop as it happens: plain lines, or a live region where a person watches."""

import time
from typing import Any, Protocol

from deploy.console.output import is_terminal, say
from deploy.console.words import duration, event_line, progress, progress_line
from deploy.lifecycle.events import Event
from deploy.lifecycle.fold import Observed, apply
from deploy.lifecycle.states import BEFORE_WEIGHTS, STARTING
from deploy.store.deployments import load_json

HEARTBEAT_S = 30.0
PROGRESS_LINE_S = 5.0
WIDE = 110  # columns from which bytes stand beside the bar


class Renderer(Protocol):
    """What a follower shows events with."""

    def event(self, event: Event) -> None:
        """Show one more event."""

    def absorb(self, event: Event) -> None:
        """Take an event into account that is not news."""

    def idle(self) -> None:
        """Called between events, many times a second."""

    def close(self) -> None:
        """Nothing more will come."""


class PlainLines:
    """One line a change, and a heartbeat so that a silent load does not look dead."""

    def __init__(self, plan: dict[str, Any], label: str = "", began: float | None = None) -> None:
        self.plan = plan
        self.label = label  # before each line, where several deployments are followed at once
        self.observed = Observed()
        self.began = time.monotonic() if began is None else began
        self.spoke = time.monotonic()
        self.shards_told = 0

    def event(self, event: Event) -> None:
        """Show one more event."""
        apply(self.observed, event)
        if event.kind == "progress":
            load = load_json(self.observed, self.plan)
            over = load["shards_done"] == load["shards_total"] and load["shards_done"] != self.shards_told
            self.shards_told = load["shards_done"]
            if over or time.monotonic() - self.spoke >= PROGRESS_LINE_S:
                self._line(progress_line(load, self.observed.phase))
            return
        text = event_line(event, self.observed)
        if text:
            self._line(text)

    def absorb(self, event: Event) -> None:
        """Take an event into account that is not news."""
        apply(self.observed, event)

    def idle(self) -> None:
        """A heartbeat when nothing was said for long."""
        if self.observed.state == STARTING and time.monotonic() - self.spoke >= HEARTBEAT_S:
            load = load_json(self.observed, self.plan)
            told = self.observed.phase == "weights" or _reads_ahead(self.observed.phase, load)
            text = progress_line(load, self.observed.phase).split(maxsplit=1)[1] if told else ""
            self._line(f"still in {self.observed.phase}" + (f": {text}" if text else ""))

    def close(self) -> None:
        """Nothing to put away."""

    def _line(self, text: str) -> None:
        self.spoke = time.monotonic()
        say(f"[{self.spoke - self.began:7.1f} s] {self.label}{text}")


class LiveRegion:
    """Finished steps as lines, the current one as a moving bar below them."""

    def __init__(self, plan: dict[str, Any]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self.plan = plan
        self.observed = Observed()
        self.began = time.monotonic()
        self.console = Console(stderr=True, highlight=False)
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[detail]}"),
            console=self.console,
            transient=True,
        )
        self.task = self.bar.add_task("spawn", total=None, detail="")
        self.bar.start()

    def event(self, event: Event) -> None:
        """Show one more event."""
        apply(self.observed, event)
        text = event_line(event, self.observed)
        if text:
            elapsed = time.monotonic() - self.began
            self.console.print(f"[dim]{elapsed:7.1f} s[/dim]  {_escaped(text)}", soft_wrap=True)

    def absorb(self, event: Event) -> None:
        """Take an event into account that is not news."""
        apply(self.observed, event)

    def idle(self) -> None:
        """Move the bar."""
        observed = self.observed
        load = load_json(observed, self.plan)
        phase = observed.phase or observed.state
        in_weights = phase == "weights" and load["bytes_total"] and load["bytes_read"]
        brief = self.console.width < WIDE
        if phase == "weights":
            detail = progress(load, brief=brief)
        elif _reads_ahead(phase, load):
            detail = f"read ahead {100 * load['bytes_read'] // load['bytes_total']} %"
        else:
            detail = ""
        elapsed = duration(time.monotonic() - self.began)
        self.bar.update(
            self.task,
            description=f"{phase:<8}",
            total=load["bytes_total"] if in_weights else None,
            completed=(load["bytes_done"] or 0) if in_weights else 0,
            detail=f"{detail}  {elapsed}".strip(),
        )

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.bar.stop()


def _reads_ahead(phase: str | None, load: dict[str, Any]) -> bool:
    """Whether nothing but kdeploy's own reading moves."""
    return phase in BEFORE_WEIGHTS and bool(load["bytes_total"]) and 0 < load["bytes_read"] < load["bytes_total"]


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def renderer(plan: dict[str, Any]) -> Renderer:
    """Live where a person watches, plain lines elsewhere."""
    return LiveRegion(plan) if is_terminal() else PlainLines(plan)
