"""What a swap does next: `decide(order, told, now) -> Move`. Pure.

Nothing is remembered but what the swap's journal tells (`Told`); everything else is looked at anew (`Now`). So whoever
takes over from a runner that was killed, at whatever step, decides as it would have decided.

    apart (no GPU and no port in common)   start NEW ── ready ──> stop OLD ──> commit
    together                    warm NEW ──> stop OLD ── gone ──> start NEW ── ready ──> commit
    NEW fails                              end NEW ──> OLD still serves: untouched
                                                       OLD was stopped: bring OLD back ──> rolled back | nothing serves
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from deploy.lifecycle.events import Event

# How a deployment stands, as far as a swap cares.
ABSENT = "absent"  # no launch that belongs to this swap
LOADING = "loading"
READY = "ready"
UNHEALTHY = "unhealthy"  # was ready, does not answer now
LEAVING = "leaving"  # is being stopped, or a failed one is being cleared away
WAITS = "waits"  # failed, and its restart policy will start it again
ENDED = "ended"  # was stopped; nothing of it is left
DIED = "died"  # failed for good; nothing of it is left
STUCK = "stuck"  # ended, and something of it survived

SERVING = (READY, UNHEALTHY)
MOVING = (LOADING, LEAVING, WAITS)  # will be something else soon, without our help
GONE = (ABSENT, ENDED, DIED)

COMMITTED = "committed"  # NEW serves
UNTOUCHED = "untouched"  # OLD serves and was never stopped
ROLLED_BACK = "rolled-back"  # OLD serves again
NEITHER = "neither"  # nothing serves, and it is said


class Order(NamedTuple):
    """What was asked. `together`: NEW needs a GPU or the port of OLD, so OLD must be gone first. `warm`: it helps
    to read NEW's weights into memory while OLD still serves."""

    together: bool
    rollback: bool = True
    warm: bool = False


@dataclass
class Told:
    """What the journal of the swap says."""

    begun: bool = False
    warmed: bool = False
    boot_id: str | None = None
    doomed: dict[str, Any] | None = None  # why NEW is given up
    back_after: str | None = None  # OLD's newest launch when it was decided to bring OLD back
    back_tries: int = 0
    back_failed: dict[str, Any] | None = None  # why the last try to bring OLD back failed
    outcome: str | None = None
    exit_code: int = 0
    at_step: str | None = None
    runners: int = 0  # how many have tried at this step


class Now(NamedTuple):
    """How OLD, NEW and OLD brought back stand now. `same_boot`: the machine has not restarted since the swap began."""

    old: str
    new: str
    back: str = ABSENT
    same_boot: bool = True


class Move(NamedTuple):
    """The next thing to do: `kind`, and for `finish` the outcome, for `give-up` the reason."""

    kind: str
    outcome: str | None = None
    why: str | None = None


RUNNERS_LIMIT = 5  # as many may die at the same step before it is given up
BACK_TRIES = 2  # OLD is known to work: a first start that fails may be an accident


def decide(order: Order, told: Told, now: Now) -> Move:
    """The next move."""
    if told.outcome is not None:
        return Move("over")
    if not now.same_boot:
        return _after_reboot(now)
    if told.doomed is None:
        if told.runners > RUNNERS_LIMIT:
            died = told.runners - 1
            return Move("give-up", why=f"{died} processes that carried this swap out have died at this step")
        return _forward(order, told, now)
    return _backward(order, told, now)


def _after_reboot(now: Now) -> Move:
    """A machine that has just come up is not given a load of many minutes by whoever asks for a list. What its service
    manager or a restart policy has started again is seen to its end."""
    if now.new in SERVING:
        return Move("finish", COMMITTED)
    if now.back in SERVING:
        return Move("finish", ROLLED_BACK)
    if now.old in SERVING:
        return Move("finish", UNTOUCHED)
    if {now.new, now.back, now.old} & {*MOVING}:
        return Move("wait")
    return Move("finish", NEITHER, "the machine has restarted since")


def _forward(order: Order, told: Told, now: Now) -> Move:
    if now.new == ABSENT:
        return _before_new(order, told, now)
    if now.new == LOADING:
        return Move("wait")
    if now.new == READY or (now.new == UNHEALTHY and now.old not in SERVING):
        if now.old in GONE or now.old == STUCK:
            return Move("finish", COMMITTED)
        return Move("wait" if now.old == LEAVING else "stop-old")
    if now.new == WAITS and order.together and not order.rollback:
        return Move("wait")  # nothing else is to serve, so its own restart policy may try again
    # it has ended, or failed with a restart to come, or is not healthy while OLD serves: trying on costs users
    return Move("give-up")


def _before_new(order: Order, told: Told, now: Now) -> Move:
    if not order.together:
        return Move("start-new")
    if now.old == STUCK:
        return Move("give-up", why="the old deployment could not be ended completely")
    if now.old == LEAVING:
        return Move("wait")
    if now.old in GONE:
        return Move("start-new")
    # apart, NEW's own start reads ahead while OLD serves
    return Move("warm" if order.warm and not told.warmed and now.old in SERVING else "stop-old")


def _backward(order: Order, told: Told, now: Now) -> Move:
    if now.new in (LOADING, READY, UNHEALTHY, WAITS):
        return Move("stop-new")
    if now.new == LEAVING:
        return Move("wait")
    if told.back_after is None:
        if now.old in SERVING:
            return Move("finish", UNTOUCHED)
        if now.old in (LEAVING, LOADING):
            return Move("wait")
        if now.old == WAITS:
            return Move("stop-old")  # it failed by itself meanwhile; one start, ours, and not two
        if not order.rollback:
            return Move("finish", NEITHER, "--no-rollback")
        return Move("bring-back")
    return _brought_back(told, now)


def _brought_back(told: Told, now: Now) -> Move:
    if now.back in SERVING:
        return Move("finish", ROLLED_BACK)
    if now.back in MOVING:
        return Move("wait")
    if now.back == ENDED:
        return Move("finish", NEITHER, "the old one was stopped while it was being brought back")
    if now.back != STUCK and (told.back_tries < BACK_TRIES or (now.back == ABSENT and told.back_failed is None)):
        return Move("bring-back")
    if told.back_failed is None:
        return Move("back-failed")
    return Move("finish", NEITHER)


def fold(events: Iterable[Event]) -> Told:
    """What the journal tells after all of `events`."""
    told = Told()
    for event in events:
        apply(told, event)
    return told


def apply(told: Told, event: Event) -> None:
    """Take one more record into account."""
    data = event.data
    if event.kind == "runner":
        told.runners += 1
        return
    if event.kind in ("adopted", "interrupted", "warming"):
        return
    if event.kind == "step":
        if data["step"] != told.at_step:
            told.at_step, told.runners = data["step"], 1
        if data["step"] == "bring-back":
            told.back_tries += 1
            told.back_failed = None
        return
    if event.kind == "begun":
        told.begun = True
        told.boot_id = data.get("boot_id")
    elif event.kind == "warmed":
        told.warmed = True
    elif event.kind == "doomed":
        told.doomed = data["reason"]
    elif event.kind == "bring-back":
        told.back_after = data["after"]
    elif event.kind == "back-failed":
        told.back_failed = data["reason"]
    elif event.kind == "outcome":
        told.outcome = data["outcome"]
        told.exit_code = int(data["exit_code"])
