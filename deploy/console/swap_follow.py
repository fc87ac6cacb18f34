"""Showing a swap as it happens: its own steps, and below each what the deployment concerned does."""

import time
from typing import Any

from deploy.console.follow import HEARTBEAT_S, PlainLines
from deploy.console.output import say
from deploy.console.swap_words import step_line
from deploy.lifecycle.events import Event


class SwapLines:
    """Plain lines, on terminals too: two deployments move at once."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new
        self.began = time.monotonic()
        self.spoke = self.began
        self.last = ""
        self.launches: dict[str, PlainLines] = {}

    def step(self, event: Event) -> None:
        """One more record of the swap's own journal."""
        text = step_line(event, self.old, self.new)
        if text:
            self.spoke, self.last = time.monotonic(), text
            say(f"[{self.spoke - self.began:7.1f} s] {text}")

    def launch(self, name: str, plan: dict[str, Any]) -> None:
        """Another launch of `name` is followed from here on."""
        self.launches[name] = PlainLines(plan, f"  {name}: ", self.began)

    def event(self, name: str, event: Event, *, news: bool) -> None:
        """One more record of a launch."""
        (self.launches[name].event if news else self.launches[name].absorb)(event)

    def idle(self) -> None:
        """A heartbeat when nothing was said for long."""
        spoke = max([self.spoke, *(lines.spoke for lines in self.launches.values())])
        now = time.monotonic()
        if now - spoke >= HEARTBEAT_S:
            self.spoke = now
            say(f"[{now - self.began:7.1f} s] still at: {self.last or 'beginning'}")
