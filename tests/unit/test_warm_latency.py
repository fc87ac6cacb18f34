"""Reading ahead gives way to what serves, and only for as long as it is the cause."""

import math

from deploy.warm.latency import FACTOR, OURS_S, Judge


def judged(*answers: tuple[float, float]) -> Judge:
    """A judge after these answers: (seconds since the start, seconds that it took)."""
    judge = Judge()
    for now, took in answers:
        judge.answered(now, took)
    return judge


def test_steady_answers_disturb_nobody() -> None:
    assert not judged((0, 0.1), (1, 0.11), (2, 0.12)).high
    assert not judged((0, 0.001), (1, 0.04)).high  # three times nothing is still nothing


def test_a_slower_answer_and_one_that_never_comes_hold_the_reading() -> None:
    assert judged((0, 0.1), (1, 0.1 * FACTOR + 0.01)).high
    assert judged((0, 0.1), (1, math.inf)).high
    assert judged((0, math.inf)).high
    assert not judged((0, 0.1), (1, math.inf), (2, 0.1)).high


def test_slowness_that_pausing_does_not_mend_is_somebody_elses() -> None:
    slow = [(float(second), 1.0) for second in range(1, int(OURS_S) + 2)]
    judge = judged((0, 0.1), *slow[:-2])
    assert judge.high
    judge = judged((0, 0.1), *slow)
    assert not judge.high
    judge.answered(100, 1.1)
    assert not judge.high
    judge.answered(101, 3.5)
    assert judge.high


def test_a_server_that_is_gone_is_disturbed_by_nothing() -> None:
    judge = judged((0, 0.1), (1, math.inf))
    judge.gone()
    assert not judge.high
