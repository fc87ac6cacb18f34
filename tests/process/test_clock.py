"""Somebody sets the wall clock: a day forward while it loads, two days back while it serves."""

import os
import re
import shutil
import signal
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from tests.box import Box, wait_until

DAY_S = 86_400
GENERATED = re.compile(r"^vllm:generation_tokens_total(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)
SOURCE = Path(__file__).resolve().parents[1] / "fakes" / "clock.c"


@pytest.fixture
def clock(box: Box) -> Path:
    """The file with the seconds that the box's wall clock is off; nothing in it yet."""
    compiler = shutil.which("cc")
    assert compiler, "the clock that can be set needs a C compiler (cc)"
    library, offset = box.root / "clock.so", box.root / "clock.txt"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
    offset.write_text("0")
    box.env |= {"LD_PRELOAD": str(library), "FAKE_CLOCK": str(offset)}
    return offset


def generated(box: Box) -> float:
    """Tokens that the engine has generated so far."""
    found = GENERATED.search(box.request("GET", "/metrics")[1])
    assert found, "the engine does not count its tokens"
    return float(found[1])


def test_a_clock_that_is_set_neither_stalls_a_load_nor_makes_one_old(box: Box, clock: Path) -> None:
    box.start("tiny", "init_s=1;load_s=3", {"load.stall_s": 60, "load.limit_s": 200})
    box.await_phase("weights")
    clock.write_text(str(DAY_S))
    box.await_state("ready")
    stamps = [datetime.fromisoformat(record["at"]) for record in box.journal()]
    assert (stamps[-1] - stamps[0]).days == 1, "the clock was not set for the supervisor"
    status = box.status()
    # durations are measured, not reckoned from stamps
    assert all(0 <= phase["seconds"] < 200 for phase in status["phases"])
    assert box.chat("What is 2 + 2?")[0] == 200
    box.down()


def test_a_clock_that_goes_back_changes_nothing_for_what_serves(box: Box, clock: Path) -> None:
    # a token is asked for every second, and health five times a second: all of that must go on
    box.up("tiny", "", {"health.probe_s": 1})
    clock.write_text(str(-2 * DAY_S))
    before = generated(box)
    wait_until(lambda: generated(box) >= before + 2, "two more tokens to be asked for")
    assert box.status()["state"] == "ready"
    assert "ready" in box.ok("ps").stdout
    box.down()
    assert box.status()["state"] == "stopped"
    times = [record["seconds"] for record in box.journal() if record["kind"] == "stopped"]
    assert times
    assert all(seconds >= 0 for seconds in times)


def test_a_restart_waits_for_its_turn_by_the_clock_that_nobody_sets(box: Box, clock: Path) -> None:
    box.up("tiny", "", {"restart.policy": "on-failure", "restart.attempts": 3, "restart.backoff_s": 1})
    clock.write_text(str(-2 * DAY_S))
    first = box.launch()
    os.kill(box.api(), signal.SIGKILL)
    wait_until(lambda: box.launch() != first, "the next launch")
    box.await_state("ready")
    clock.write_text("0")
    box.down()
