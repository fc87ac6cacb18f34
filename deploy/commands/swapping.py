"""Swaps as commands see them: following one, and taking up one whose process has died."""

import time
from typing import Any

from deploy import errors
from deploy.commands.following import TimedOut
from deploy.console import output
from deploy.console.swap_follow import SwapLines
from deploy.console.swap_words import outcome_line
from deploy.errors import KdeployError
from deploy.lifecycle.events import Event
from deploy.store import journal, swaps
from deploy.store.deployments import observe, to_json
from deploy.store.journal import Tail
from deploy.store.launches import Launch, newest
from deploy.supervise.client import POLL_S
from deploy.swap import client, decide

TAKE_UPS_LIMIT = 5


def take_up() -> None:
    """Have a swap go on that nobody carries out any more; said so. What cannot go on is told, and stops no command."""
    try:
        swap = client.resume()
    except KdeployError as error:
        output.error(error)
        return
    if swap is not None:
        output.say(f"{_arrow(swap)}: the process that carried this swap out had died; another one goes on")
        output.say("  -> kdeploy swap   follows it to its end")


def _arrow(swap: swaps.Swap) -> str:
    order = swaps.read_order(swap)
    return f"{order['old']} -> {order['new_plan']['name']}"


def follow(swap: swaps.Swap, timeout: float | None) -> decide.Told:
    """Show a swap until it is over.

    Raises:
        TimedOut: `timeout` seconds have passed; it goes on.
        KdeployError: whoever carries it out dies again and again.
    """
    order = swaps.read_order(swap)
    names = (order["old"], order["new_plan"]["name"])
    show = SwapLines(*names)
    steps, told = Tail(swap.events), decide.Told()
    launches = {name: _Launches(name, show) for name in names}
    deadline = None if timeout is None else time.monotonic() + timeout
    taken_up = 0
    while True:
        carried_out = swaps.is_carried_out()  # before the look: who ends writes the outcome first
        for event in steps.poll():
            decide.apply(told, event)
            show.step(event)
        for name in names:
            launches[name].poll()
        if told.outcome is not None and not swaps.is_carried_out():
            return told
        if not carried_out and told.outcome is None:
            taken_up += 1
            if taken_up > TAKE_UPS_LIMIT:
                raise _given_up(swap, told)
            take_up()
        show.idle()
        if deadline is not None and time.monotonic() >= deadline:
            raise TimedOut
        time.sleep(POLL_S)


class _Launches:
    """The journals of one deployment's launches, shown from now on."""

    def __init__(self, name: str, show: SwapLines) -> None:
        self.name, self.show = name, show
        self.launch: Launch | None = None
        self.tail: Tail | None = None
        if (launch := newest(name)) is not None:
            self._turn_to(launch, news=False)

    def poll(self) -> None:
        """Show what is new."""
        self._show(news=True)
        launch = newest(self.name)
        if launch is not None and launch != self.launch:
            self._turn_to(launch, news=True)

    def _turn_to(self, launch: Launch, *, news: bool) -> None:
        found = observe(self.name)
        self.show.launch(self.name, found.plan if found is not None else {})
        self.launch, self.tail = launch, Tail(launch.events)
        self._show(news=news)

    def _show(self, *, news: bool) -> None:
        for event in self.tail.poll() if self.tail is not None else ():
            self.show.event(self.name, event, news=news)


def _given_up(swap: swaps.Swap, told: decide.Told) -> KdeployError:
    interrupted = [event for event in journal.read(swap.events) if event.kind == "interrupted"]
    why = _reason_lines(interrupted[-1]) if interrupted else []
    return KdeployError(
        f"{_arrow(swap)}: the process that carries the swap out has died {TAKE_UPS_LIMIT} times; the swap is not over",
        evidence=[*why, f"{swap.log} says why"],
        fix=["kdeploy ps   shows what serves", "kdeploy swap   goes on"],
    )


def _reason_lines(event: Event) -> list[str]:
    return [event.data["reason"]["what"], *event.data["reason"]["evidence"]]


def tell(swap: swaps.Swap, told: decide.Told, *, as_json: bool) -> int:
    """What came of a swap; the exit code."""
    order = swaps.read_order(swap)
    old, new = order["old"], order["new_plan"]["name"]
    if as_json:
        output.document(_document(swap, told, old, new))
    outcome: Event = next(event for event in journal.read(swap.events) if event.kind == "outcome")
    text = outcome_line(outcome.data, old, new)
    if told.outcome == decide.COMMITTED:
        output.say(text)
        _tell_url(new)
        if told.exit_code == errors.TEARDOWN_INCOMPLETE:
            output.say(f"error: something of {old} is left\n  -> kdeploy status {old}   names it")
        return told.exit_code
    output.say(f"error: {text}")
    for name, reason in ((new, told.doomed), (old, told.back_failed)):
        if reason is not None:
            _tell_reason(name, reason)
    if told.outcome == decide.NEITHER:
        output.say(f"  -> kdeploy restart {old}   starts the old one")
        output.say(f"  -> kdeploy up {order['new_plan']['profile']}   starts the new one")
    else:
        _tell_url(old)
    return told.exit_code


def _tell_reason(name: str, reason: dict[str, Any]) -> None:
    output.say(f"  {name}: {reason['what']}")
    for line in reason["evidence"]:
        output.say(f"    {line}")
    for line in reason["fix"]:
        output.say(f"    -> {line}")
    if reason.get("log"):
        output.say(f"    -> kdeploy explain {reason['log']}   diagnoses its log")


def _tell_url(name: str) -> None:
    found = observe(name)
    if found is not None:
        status = to_json(found)
        output.say(f"  {name} is {found.state}: {status['url']}   model {status['model']}")


def _document(swap: swaps.Swap, told: decide.Told, old: str, new: str) -> dict[str, Any]:
    found = {name: observe(name) for name in (old, new)}
    return {
        "schema": 1,
        "swap": swap.id,
        "outcome": told.outcome,
        "exit_code": told.exit_code,
        "from": old,
        "to": new,
        "reason": told.doomed,
        "rollback_failed": told.back_failed,
        "deployments": [to_json(entry) for entry in found.values() if entry is not None],
        "journal": swap.events,
    }
