"""What dies, dies noticed: the state is right, the reason is there, and nothing is left behind."""

import os
import signal
from typing import Any

import pytest

from tests.box import FAKE_VLLM, Box, wait_until

NOTICED_S = 2.0  # the promise, where the kernel can tell


def _kill(box: Box, who: str) -> int:
    pid = {"api": box.api, "core": box.core, "worker": lambda: box.workers()[-1]}[who]()
    os.kill(pid, signal.SIGKILL)
    return pid


def _comes_to_nothing(box: Box) -> dict[str, Any]:
    """Failed with a reason, every process gone, and `down` puts it away."""
    box.await_state("failed")
    box.await_no_engine()
    box.await_released()
    status = box.status()
    assert status["state"] == "failed"
    assert status["diagnosis"]["cause"]
    assert status["diagnosis"]["summary"]
    box.down("tiny")
    return status


def test_killed_api_server_when_ready(box: Box) -> None:
    box.up()
    _kill(box, "api")
    box.await_state("failed", limit_s=NOTICED_S)
    status = _comes_to_nothing(box)
    assert status["exit"] == {"exit_code": None, "signal": "SIGKILL", "asked": False}
    assert status["diagnosis"]["cause"] == "engine-died"
    assert "SIGKILL" in status["diagnosis"]["summary"]


@pytest.mark.parametrize("who", ["core", "worker"])
def test_killed_rank_when_ready(box: Box, who: str) -> None:
    # a long watchdog: vLLM itself would notice late
    box.up("tiny", "watchdog_s=30;worker_grace_s=10")
    pid = _kill(box, who)
    ended = box.await_event("process-ended", limit_s=NOTICED_S)
    assert ended["pid"] == pid
    box.await_state("failed")
    status = _comes_to_nothing(box)
    if who == "core":
        assert "VLLM::EngineCore" in status["diagnosis"]["summary"]


@pytest.mark.parametrize("who", ["api", "core", "worker"])
@pytest.mark.parametrize("phase", ["weights", "compile", "canary"])
def test_killed_while_loading(box: Box, who: str, phase: str) -> None:
    box.start("tiny", {"weights": "load_s=60", "compile": "compile_s=60", "canary": "prefill_s=60"}[phase])
    box.await_phase(phase)
    wait_until(lambda: len(box.workers()) == 2, "both ranks")
    wait_until(lambda: sum(len(record["members"]) for record in box.events("members")) >= 4, "the ranks to be recorded")
    _kill(box, who)
    status = _comes_to_nothing(box)
    assert status["failed_phase"] == phase


def test_killed_during_the_first_imports(box: Box) -> None:
    box.start("tiny", "import_s=60")
    box.await_event("spawned")
    _kill(box, "api")
    box.await_state("failed", limit_s=NOTICED_S)
    _comes_to_nothing(box)


@pytest.mark.parametrize("code", ["0", "1", "-11"])
def test_unasked_exit_is_a_failure_whatever_its_code(box: Box, code: str) -> None:
    box.start("tiny", f"die_at=ready;die_after_s=3;die_who=engine;exit_code={code};watchdog_s=0.1")
    box.await_state("failed")
    status = _comes_to_nothing(box)
    assert status["ready_at"] is not None


def test_api_server_that_exits_0_by_itself(box: Box) -> None:
    box.up()
    os.kill(box.api(), signal.SIGTERM)  # by somebody else: a clean stop, code 0, that nobody asked us for
    box.await_state("failed")
    status = _comes_to_nothing(box)
    assert status["exit"] == {"exit_code": 0, "signal": None, "asked": False}


def test_usage_error_at_once(box: Box) -> None:
    box.profile("tiny", "reject_flags=max-num-seqs", {"args.max-num-seqs": 8, "restart.policy": "on-failure"})
    result = box.run("up", "tiny", "--json")
    assert result.rc == 1
    assert result.json["diagnosis"]["cause"] == "bad-arguments"
    assert result.json["exit"]["exit_code"] == 2
    assert "unrecognized arguments: --max-num-seqs" in result.stderr
    assert len(box.launches()) == 1  # the same command line would fail again


@pytest.mark.parametrize(
    ("knob", "cause"),
    [
        ("oom", "cuda-out-of-memory"),
        ("kv", "kv-cache-too-small"),
        ("nccl", "nccl-failed"),
        ("traceback", "checkpoint-mismatch"),
    ],
)
def test_causes(box: Box, knob: str, cause: str) -> None:
    phase = "compile" if knob == "kv" else "weights"
    box.profile("tiny", f"die_at={phase};die_log={knob}")
    result = box.run("up", "tiny", "--json")
    assert result.rc == 1
    found = result.json["diagnosis"]
    assert set(found) >= {"cause", "summary", "evidence", "fix", "retryable"}
    assert found["cause"] == cause
    line = found["evidence"][0]
    logged = (box.launch() / "engine.log").read_bytes().split(b"\n")[line["line"] - 1].decode()
    assert line["text"] in logged
    assert f"cause: {cause}" in result.stderr
    box.await_no_engine()


def test_silent_death_of_a_worker(box: Box) -> None:
    box.profile("tiny", "die_at=weights;die_log=none")
    result = box.run("up", "tiny", "--json")
    assert result.rc == 1
    assert result.json["diagnosis"]["cause"] in ("engine-died", "worker-died")


@pytest.mark.parametrize("phase", ["weights", "compile"])
def test_hang_is_stalled(box: Box, phase: str) -> None:
    box.profile("tiny", f"hang_at={phase}", {"load.stall_s": 1.5, "stop.term_s": 3})
    result = box.run("up", "tiny", "--json")
    assert result.rc == 1
    assert result.json["diagnosis"]["cause"] == "stalled"
    box.await_no_engine()


def test_a_long_load_that_moves_is_not_stalled_but_has_a_limit(box: Box) -> None:
    box.profile("tiny", "hang_at=compile;hang_busy=1", {"load.stall_s": 1.5, "load.limit_s": 4, "stop.term_s": 3})
    result = box.run("up", "tiny", "--json")
    assert result.rc == 1
    assert result.json["diagnosis"]["cause"] == "stalled"
    assert "limit_s" in result.json["diagnosis"]["summary"]


# ---------------------------------------------------------------------- the gate


def test_garbage_fails_the_canary(box: Box) -> None:
    box.profile("tiny", "garbage=1")
    result = box.run("up", "tiny", "--json")
    assert result.rc == 1
    assert result.json["diagnosis"]["cause"] == "canary-failed"
    assert result.json["failed_phase"] == "canary"
    assert result.json["ready_at"] is None
    box.await_no_engine()


def test_garbage_passes_where_coherence_is_not_asked(box: Box) -> None:
    box.up("tiny", "garbage=1", {"canary.coherence": False})
    box.down("tiny")


def test_without_a_canary(box: Box) -> None:
    box.up("tiny", "garbage=1", {"canary.enabled": False})
    assert "canary" not in [entry["phase"] for entry in box.status()["phases"]]
    box.down("tiny")


def test_engine_that_dies_of_its_first_request(box: Box) -> None:
    box.profile("tiny", "first_request_kills=1")
    result = box.run("up", "tiny", "--json")
    assert result.rc == 1
    assert result.json["state"] == "failed"
    assert result.json["ready_at"] is None
    assert result.json["diagnosis"]["cause"] in ("canary-failed", "worker-died", "engine-died")
    box.await_no_engine()


def test_wrong_model(box: Box) -> None:
    box.profile("tiny", "wrong_model=1")
    result = box.run("up", "tiny", "--json")
    assert result.rc == 1
    assert result.json["diagnosis"]["cause"] == "wrong-model"
    assert "another-model" in result.json["diagnosis"]["summary"]
    box.await_no_engine()


def test_reasoning_and_null_content_are_answers(box: Box) -> None:
    box.up("tiny", "reasoning=4")
    box.down("tiny")


# ---------------------------------------------------------------------- health


def test_unhealthy_and_back(box: Box) -> None:
    """An engine that is stopped for longer than the health limit, and then runs on."""
    box.up("tiny", "", {"health.timeout_s": 0.3})
    pids = [process.pid for process in box.engine()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    box.await_state("unhealthy")
    status = box.status()
    assert (status["state"], status["ready"]) == ("unhealthy", False)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    box.await_state("ready")
    assert box.events("healthy")
    assert box.status()["ready"] is True
    box.down("tiny")


@pytest.mark.parametrize("health", ["503", "hang", "slow:30"])
def test_bad_health_makes_it_unhealthy(box: Box, health: str) -> None:
    box.up("tiny", f"health={health};health_after_s=0.6", {"health.timeout_s": 0.4, "stop.term_s": 3})
    record = box.await_event("unhealthy")
    assert record["failures"] == 2
    assert record["why"]
    box.down("tiny", "--force")


@pytest.mark.parametrize("who", ["core", "worker"])
def test_a_rank_that_stands_still_under_a_good_health_is_found_by_its_counters(box: Box, who: str) -> None:
    box.up("tiny", "", {"health.stuck_s": 1, "health.probe_s": 0, "stop.drain_s": 0.2})
    pid = {"core": box.core, "worker": lambda: box.workers()[0]}[who]()
    os.kill(pid, signal.SIGSTOP)
    with box.asking("tiny-model"):
        box.await_state("unhealthy")
        assert "no counter of the engine moves" in box.await_event("unhealthy")["why"]
        os.kill(pid, signal.SIGCONT)
        box.await_state("ready")
    box.down("tiny")


def test_an_idle_engine_that_cannot_generate_is_found_by_asking_for_a_token(box: Box) -> None:
    keys = {"health.stuck_s": 1, "health.probe_s": 0.5, "canary.timeout_s": 2, "stop.drain_s": 0.2}
    box.up(
        "tiny",
        "stuck_after_requests=4",
        {**keys, "canary.coherence": False, "restart.policy": "on-failure", "restart.attempts": 0},
    )
    assert "one token" in box.await_event("unhealthy")["why"]
    box.await_event("failed")
    status = _comes_to_nothing(box)
    assert status["diagnosis"]["cause"] == "not-generating"


# ---------------------------------------------------------------------- restarts by policy

AGAIN = {"restart.policy": "on-failure", "restart.attempts": 2, "restart.backoff_s": 0.2, "restart.window_s": 600}


def test_a_rank_that_ends_is_told_by_its_rank(box: Box) -> None:
    """vLLM calls all of them VLLM::Worker first."""
    box.up("tiny", "title_s=2;watchdog_s=60;worker_grace_s=60")
    os.kill(box.workers()[1], signal.SIGKILL)
    assert box.await_event("process-ended")["title"] == "VLLM::Worker_TP1"
    box.down("tiny", "--force")


def test_restart_on_failure(box: Box) -> None:
    box.up("tiny", "", AGAIN)
    before = box.status()
    _kill(box, "api")
    wait_until(lambda: len(box.launches()) == 2, "the second launch")
    assert box.run("wait", "tiny").rc == 0
    after = box.status()
    assert after["restarts"] == 1
    assert after["launch"] != before["launch"]
    assert after["supervisor_pid"] == before["supervisor_pid"]
    first = (box.launches()[0] / "engine.log").read_bytes()
    assert box.ok("logs", "tiny", "--previous").stdout.encode() == first
    box.down("tiny")


def test_restart_budget(box: Box) -> None:
    box.profile("tiny", "die_at=weights;die_log=nccl", AGAIN)
    result = box.run("up", "tiny", "--json")
    assert result.rc == 1
    assert result.json["state"] == "failed"
    assert result.json["restarts"] == 2
    assert result.json["diagnosis"]["cause"] == "nccl-failed"
    assert len(box.launches()) == 3
    assert "attempts" in box.events("gave-up")[-1]["reason"]
    waits = [box.events("retry", folder=folder)[0]["in_s"] for folder in box.launches()[:2]]
    assert waits == [0.2, 0.4]


def _loses_a_rank_first(box: Box, then: str) -> None:
    """The profile of an engine that loses a rank at its first start; FAKE_VLLM has `then` besides at each later one."""
    engine = box.root / "vllm"
    engine.write_text(
        f"""#!/bin/sh
        if [ "$1" = serve ]; then
            [ -e {box.root}/tried ] && export FAKE_VLLM="$FAKE_VLLM;{then}"
            touch {box.root}/tried
        fi
        exec {FAKE_VLLM} "$@"
        """
    )
    engine.chmod(0o755)
    box.profile("tiny", "die_at=weights;die_log=nccl", {**AGAIN, "engine.executable": str(engine)})


def test_when_it_is_given_up_the_first_cause_is_told_with_its_log(box: Box) -> None:
    _loses_a_rank_first(box, "die_log=oom")
    result = box.run("up", "tiny")
    assert result.rc == 1
    causes = [box.events("exited", folder=folder)[-1]["diagnosis"]["cause"] for folder in box.launches()]
    assert causes == ["nccl-failed", "cuda-out-of-memory"], "which is not tried again"
    told = box.status()["diagnosis"]
    assert told["cause"] == "nccl-failed"
    assert "cuda-out-of-memory" in told["summary"]
    first, last = box.launches()[0] / "engine.log", box.launches()[-1] / "engine.log"
    assert f"{first}:" in result.stderr
    assert f"{last}:" in result.stderr
    assert f"{first}:" in box.ok("explain", "tiny").stdout


def test_a_supervisor_that_is_killed_does_not_take_the_first_cause_with_it(box: Box) -> None:
    _loses_a_rank_first(box, "die_log=oom;load_s=4")
    box.ok("up", "tiny", "--detach")
    wait_until(lambda: len(box.launches()) == 2, "the second launch")
    box.await_phase("weights")
    os.kill(box.supervisor(), signal.SIGKILL)
    assert box.run("wait", "tiny").rc == 1
    assert box.events("adopted")
    told = box.status()["diagnosis"]
    assert told["cause"] == "nccl-failed"
    assert "cuda-out-of-memory" in told["summary"]


def test_a_doomed_configuration_is_not_tried_again(box: Box) -> None:
    box.profile("tiny", "die_at=compile;die_log=kv", AGAIN)
    assert box.run("up", "tiny").rc == 1
    assert len(box.launches()) == 1


def test_bad_health_leads_to_a_restart(box: Box) -> None:
    box.up("tiny", "health=503;health_after_s=0.6", {**AGAIN, "restart.attempts": 1})
    wait_until(lambda: len(box.launches()) == 2, "the second launch")
    box.down("tiny", "--force")


def test_stop_during_the_backoff(box: Box) -> None:
    box.up("tiny", "", {**AGAIN, "restart.backoff_s": 60})
    _kill(box, "api")
    box.await_event("retry")
    status = box.status()
    assert status["state"] == "failed"
    assert status["retry"]["in_s"] == 60
    busy = box.run("up", "tiny")
    assert busy.rc == 4
    assert "restarted by its policy" in busy.stderr
    box.down("tiny")
    assert box.status()["state"] == "stopped"
    assert len(box.launches()) == 1


def test_failing_takes_no_longer_than_it_must(box: Box) -> None:
    """`up` follows a failure to its end: the next command finds the lock free."""
    box.profile("tiny", "die_at=weights;die_log=oom")
    for _ in range(2):
        assert box.run("up", "tiny").rc == 1
    assert len(box.launches()) == 2
