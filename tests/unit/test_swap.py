"""What a swap does next, as a table; and what no table may lead to."""

from itertools import product

import pytest

from deploy.lifecycle.events import Event
from deploy.swap.decide import (
    ABSENT,
    BACK_TRIES,
    COMMITTED,
    DIED,
    ENDED,
    GONE,
    LEAVING,
    LOADING,
    MOVING,
    NEITHER,
    READY,
    ROLLED_BACK,
    RUNNERS_LIMIT,
    SERVING,
    STUCK,
    UNHEALTHY,
    UNTOUCHED,
    WAITS,
    Move,
    Now,
    Order,
    Told,
    decide,
    fold,
)

TOGETHER, APART = Order(together=True), Order(together=False)
WARM = Order(together=True, warm=True)
NO_ROLLBACK = Order(together=True, rollback=False)
REASON = {"what": "it died", "evidence": [], "fix": [], "code": 1}
DOOMED = Told(begun=True, doomed=REASON)
STANDINGS = (ABSENT, LOADING, READY, UNHEALTHY, LEAVING, WAITS, ENDED, DIED, STUCK)


def brought(tries: int = 1, failed: dict[str, object] | None = None) -> Told:
    """OLD is being brought back."""
    return Told(begun=True, doomed=REASON, back_after="20261201T000000-1", back_tries=tries, back_failed=failed)


FORWARD = [
    # order, OLD, NEW -> what is done
    (TOGETHER, READY, ABSENT, "stop-old"),
    (TOGETHER, LOADING, ABSENT, "stop-old"),
    (TOGETHER, UNHEALTHY, ABSENT, "stop-old"),
    (TOGETHER, WAITS, ABSENT, "stop-old"),
    (TOGETHER, LEAVING, ABSENT, "wait"),
    (TOGETHER, ENDED, ABSENT, "start-new"),
    (TOGETHER, DIED, ABSENT, "start-new"),
    (TOGETHER, STUCK, ABSENT, "give-up"),
    (TOGETHER, ENDED, LOADING, "wait"),
    (TOGETHER, ENDED, READY, COMMITTED),
    (TOGETHER, ENDED, UNHEALTHY, COMMITTED),
    (TOGETHER, STUCK, READY, COMMITTED),
    (TOGETHER, ENDED, DIED, "give-up"),
    (TOGETHER, ENDED, WAITS, "give-up"),
    (TOGETHER, ENDED, ENDED, "give-up"),
    (TOGETHER, ENDED, STUCK, "give-up"),
    (NO_ROLLBACK, ENDED, WAITS, "wait"),
    (NO_ROLLBACK, ENDED, DIED, "give-up"),
    (APART, READY, ABSENT, "start-new"),
    (APART, READY, LOADING, "wait"),
    (APART, READY, READY, "stop-old"),
    (APART, LEAVING, READY, "wait"),
    (APART, ENDED, READY, COMMITTED),
    (APART, DIED, READY, COMMITTED),
    (APART, STUCK, READY, COMMITTED),
    (APART, READY, UNHEALTHY, "give-up"),
    (APART, ENDED, UNHEALTHY, COMMITTED),
    (APART, READY, DIED, "give-up"),
    (APART, READY, WAITS, "give-up"),
]


@pytest.mark.parametrize(("order", "old", "new", "what"), FORWARD)
def test_forward(order: Order, old: str, new: str, what: str) -> None:
    move = decide(order, Told(begun=True), Now(old, new))
    assert (move.outcome or move.kind) == what


BACKWARD = [
    # what is told, OLD, NEW, OLD brought back -> what is done
    (DOOMED, READY, LOADING, ABSENT, "stop-new"),
    (DOOMED, ENDED, WAITS, ABSENT, "stop-new"),
    (DOOMED, ENDED, READY, ABSENT, "stop-new"),
    (DOOMED, ENDED, LEAVING, ABSENT, "wait"),
    (DOOMED, READY, DIED, ABSENT, UNTOUCHED),
    (DOOMED, UNHEALTHY, ABSENT, ABSENT, UNTOUCHED),
    (DOOMED, LEAVING, DIED, ABSENT, "wait"),
    (DOOMED, LOADING, DIED, ABSENT, "wait"),
    (DOOMED, WAITS, DIED, ABSENT, "stop-old"),
    (DOOMED, ENDED, DIED, ABSENT, "bring-back"),
    (DOOMED, DIED, STUCK, ABSENT, "bring-back"),
    (DOOMED, STUCK, ABSENT, ABSENT, "bring-back"),
    (brought(), ENDED, DIED, ABSENT, "bring-back"),
    (brought(BACK_TRIES), ENDED, DIED, ABSENT, "bring-back"),
    (brought(), ENDED, DIED, LOADING, "wait"),
    (brought(), ENDED, DIED, WAITS, "wait"),
    (brought(), ENDED, DIED, READY, ROLLED_BACK),
    (brought(), ENDED, DIED, UNHEALTHY, ROLLED_BACK),
    (brought(), ENDED, DIED, DIED, "bring-back"),
    (brought(1, REASON), ENDED, DIED, ABSENT, "bring-back"),
    (brought(BACK_TRIES), ENDED, DIED, DIED, "back-failed"),
    (brought(BACK_TRIES, REASON), ENDED, DIED, DIED, NEITHER),
    (brought(BACK_TRIES, REASON), ENDED, DIED, ABSENT, NEITHER),
    (brought(), ENDED, DIED, STUCK, "back-failed"),
    (brought(1, REASON), ENDED, DIED, STUCK, NEITHER),
    (brought(), ENDED, DIED, ENDED, NEITHER),
]


@pytest.mark.parametrize(("told", "old", "new", "back", "what"), BACKWARD)
def test_backward(told: Told, old: str, new: str, back: str, what: str) -> None:
    move = decide(TOGETHER, told, Now(old, new, back))
    assert (move.outcome or move.kind) == what


def test_without_rollback_nothing_is_brought_back() -> None:
    assert decide(NO_ROLLBACK, DOOMED, Now(ENDED, DIED)) == Move("finish", NEITHER, "--no-rollback")


@pytest.mark.parametrize(
    ("now", "what"),
    [
        (Now(ENDED, READY), COMMITTED),
        (Now(READY, DIED), UNTOUCHED),
        (Now(ENDED, DIED, READY), ROLLED_BACK),
        (Now(DIED, DIED), NEITHER),
        (Now(DIED, ABSENT), NEITHER),
        (Now(LOADING, ABSENT), "wait"),
        (Now(LEAVING, DIED), "wait"),
        (Now(ENDED, WAITS), "wait"),
    ],
)
def test_after_a_reboot_nothing_is_started_and_what_stands_is_told(now: Now, what: str) -> None:
    move = decide(TOGETHER, Told(begun=True), now._replace(same_boot=False))
    assert (move.outcome or move.kind) == what


def test_a_step_at_which_runner_after_runner_dies_is_given_up() -> None:
    events = [Event("begun", "", {"boot_id": "b"}), Event("step", "", {"step": "start-new"})]
    events += [Event("runner", "", {"pid": 1})] * RUNNERS_LIMIT
    move = decide(TOGETHER, fold(events), Now(ENDED, ABSENT))
    assert move.kind == "give-up"
    assert move.why
    assert str(RUNNERS_LIMIT) in move.why
    events.append(Event("step", "", {"step": "stop-old"}))
    assert decide(TOGETHER, fold(events), Now(ENDED, ABSENT)).kind == "start-new"


def every_case() -> list[tuple[Order, Told, Now]]:
    """Every order, word of the journal and view of the world together."""
    orders = [Order(together, rollback) for together, rollback in product((True, False), repeat=2)]
    tolds = [Told(begun=True), DOOMED]
    tolds += [brought(tries, failed) for tries, failed in product((0, 1, BACK_TRIES), (None, REASON))]
    nows = [Now(old, new, back) for old, new, back in product(STANDINGS, repeat=3)]
    return [
        (order, told, now)
        for order, told, now in product(orders, tolds, nows)
        if (now.back == ABSENT if told.back_after is None else now.old == ENDED)  # as the runner sees it then
    ]


def test_what_is_told_at_the_end_is_true() -> None:
    """An outcome names what serves, and it is "neither" only where nothing serves and nothing is on its way."""
    for order, told, now in every_case():
        move = decide(order, told, now)
        case = (order, told, now, move)
        if move.outcome == COMMITTED:
            assert now.new in SERVING, case
            assert now.old not in (*SERVING, *MOVING), case
        elif move.outcome == UNTOUCHED:
            assert now.old in SERVING, case
        elif move.outcome == ROLLED_BACK:
            assert now.back in SERVING, case
        elif move.outcome == NEITHER:
            last = now.back if told.back_after is not None else now.old
            assert last in (*GONE, STUCK), case
            assert now.new in (*GONE, STUCK), case
            assert order.rollback is False or told.back_failed or now.back == ENDED, case


def test_old_is_stopped_only_for_a_new_one_that_can_start() -> None:
    for order, told, now in every_case():
        if decide(order, told, now).kind == "stop-old" and now.old in SERVING:
            assert told.doomed is None
            assert now.new == READY or (order.together and now.new == ABSENT)


def test_never_two_on_the_same_gpus() -> None:
    for order, told, now in every_case():
        move = decide(order, told, now)
        if move.kind == "start-new":
            assert now.new == ABSENT
            assert not order.together or now.old in GONE
        if move.kind == "bring-back":
            assert now.new in (*GONE, STUCK)
            assert now.old in (*GONE, STUCK)
            assert now.back in GONE


def test_weights_are_read_once_and_only_while_the_old_one_serves() -> None:
    assert decide(WARM, Told(begun=True), Now(READY, ABSENT)) == Move("warm")
    assert decide(WARM, Told(begun=True, warmed=True), Now(READY, ABSENT)) == Move("stop-old")
    assert decide(WARM, Told(begun=True), Now(DIED, ABSENT)) == Move("start-new")
    assert decide(Order(together=False, warm=True), Told(begun=True), Now(READY, ABSENT)) == Move("start-new")
    assert fold([Event("warmed", "2026-12-01T00:00:00.000Z", {"state": "stopped"})]).warmed
