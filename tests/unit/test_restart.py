"""The restart policy."""

from typing import Any

import pytest

from deploy.lifecycle.restart import BACKOFF_CAP_S, FAILURES_KEPT, Failure, RestartPolicy, blame, judge, remember

POLICY = RestartPolicy("on-failure", attempts=3, window_s=3600.0, backoff_s=10.0)
NOW = 1_800_000_000.0


def test_never_means_never() -> None:
    verdict = judge(POLICY._replace(policy="never"), [], NOW, retryable=True)
    assert verdict.delay_s is None
    assert "never" in verdict.reason


@pytest.mark.parametrize("policy", ["on-failure", "always"])
def test_what_would_fail_the_same_way_is_not_tried_again(policy: str) -> None:
    verdict = judge(POLICY._replace(policy=policy), [], NOW, retryable=False)
    assert verdict.delay_s is None
    assert "fail again" in verdict.reason


@pytest.mark.parametrize(("earlier", "delay"), [(0, 10.0), (1, 20.0), (2, 40.0)])
def test_the_pause_doubles_with_every_restart(earlier: int, delay: float) -> None:
    verdict = judge(POLICY, [NOW - 60] * earlier, NOW, retryable=True)
    assert verdict.delay_s == delay
    assert verdict.reason == f"restart {earlier + 1} of 3"


def test_a_used_up_budget_ends_it_and_says_so() -> None:
    verdict = judge(POLICY, [NOW - 60] * 3, NOW, retryable=True)
    assert verdict.delay_s is None
    assert "restart.attempts" in verdict.reason


def test_restarts_older_than_the_window_do_not_count() -> None:
    assert judge(POLICY, [NOW - 3601] * 50, NOW, retryable=True).delay_s == 10.0


def test_restarts_that_lie_in_the_future_count_since_the_clock_went_back() -> None:
    assert judge(POLICY, [NOW + 1e6] * 3, NOW, retryable=True).delay_s is None


def test_no_attempts_means_no_restart() -> None:
    assert judge(POLICY._replace(attempts=0), [], NOW, retryable=True).delay_s is None


@pytest.mark.parametrize("earlier", [10, 100, 5000])
def test_the_pause_is_bounded_however_many_restarts_there_were(earlier: int) -> None:
    verdict = judge(POLICY._replace(attempts=10**6), [NOW] * earlier, NOW, retryable=True)
    assert verdict.delay_s == BACKOFF_CAP_S


def test_a_longer_pause_that_the_profile_asks_for_is_kept() -> None:
    assert judge(POLICY._replace(backoff_s=3600.0), [NOW], NOW, retryable=True).delay_s == 3600.0


def _told(cause: str, line: int = 1) -> dict[str, Any]:
    return {
        "cause": cause,
        "summary": f"it was {cause}",
        "evidence": [{"line": line, "text": f"ERROR {cause}"}],
        "fix": [f"mend {cause}"],
        "settings": [f"{cause}=1"],
        "retryable": True,
    }


def test_attempts_that_failed_alike_are_told_by_the_last_one() -> None:
    last = _told("nccl-failed", 7)
    assert blame([Failure(NOW - 20, _told("nccl-failed"))], last, NOW, 600) is last


def test_the_first_of_several_causes_is_told_with_its_own_log_and_then_the_others() -> None:
    failures = [Failure(NOW - 30, _told("nccl-failed", 7), "/one.log"), Failure(NOW - 20, _told("stalled"), "/two.log")]
    told = blame(failures, _told("port-in-use", 3), NOW, 600)
    assert told["cause"] == "nccl-failed"
    words = told["summary"]
    assert words.index("nccl-failed") < words.index("stalled") < words.index("port-in-use")
    assert told["evidence"] == [
        {"line": 7, "text": "ERROR nccl-failed", "log": "/one.log"},
        {"line": 3, "text": "ERROR port-in-use"},
    ]
    assert told["settings"] == ["nccl-failed=1", "port-in-use=1", "stalled=1"]
    assert told["fix"] == ["mend nccl-failed", "mend port-in-use", "mend stalled"]


def test_a_failure_older_than_the_window_is_another_story() -> None:
    last = _told("port-in-use")
    assert blame([Failure(NOW - 601, _told("nccl-failed"))], last, NOW, 600) is last


def test_the_first_failure_is_kept_and_so_are_the_last_ones() -> None:
    failures: tuple[Failure, ...] = ()
    for n in range(50):
        failures = remember(failures, Failure(NOW + n, _told(str(n))), 600)
    causes = [one.diagnosis["cause"] for one in failures]
    assert (causes[0], causes[-1], len(causes)) == ("0", "49", FAILURES_KEPT)
    failures = remember(failures, Failure(NOW + 1000, _told("late")), 600)
    assert [one.diagnosis["cause"] for one in failures] == ["late"]
