"""The all-reduce test in the real engine's interpreter: gloo on two CPU ranks, with planted faults."""

import os
from pathlib import Path

import pytest

from tests.box import FAKES, Box
from tests.real.test_real_engine import DATA, ENGINE

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]


@pytest.fixture
def collective_box(box: Box) -> Box:
    """A box with the installed CPU engine, and a profile of two ranks whose torch the planted module can bend."""
    engine = Path(DATA) / "engines" / ENGINE
    assert (engine / "engine.json").exists(), f"{engine} is missing: kdeploy engine install 0.32.0 --cpu"
    data = Path(box.env["KDEPLOY_DATA_DIR"])
    (data / "engines").mkdir(parents=True)
    (data / "engines" / ENGINE).symlink_to(engine)
    box.profile("tiny", "", {"engine.executable": ENGINE, "env.PYTHONPATH": str(FAKES / "collective")})
    return box


def test_wrong_sums_are_found_and_the_control_run_is_healthy(collective_box: Box) -> None:
    result = collective_box.run("doctor", "tiny", "--collective", "--set", "env.PLANT=wrong", "--json", timeout=300)
    assert result.rc == 1, result
    found = result.json
    assert (found["backend"], found["run"]["outcome"], found["control"]["outcome"]) == (
        "gloo",
        "wrong values",
        "healthy",
    )
    assert "1 of 16384 sums are wrong on rank 1 (2 ranks, 65536 bytes)" in found["run"]["detail"]
    assert "without peer access (NCCL_P2P_DISABLE=1) it is healthy" in found["summary"]
    control = found["control"]["measured"]
    assert [entry["bytes"] for entry in control] == [*(1 << power for power in range(13, 20)), 8 << 20]
    assert all(entry["us"] > 0 and entry["bus_gb_s"] > 0 for entry in control)


def test_a_hang_is_found_where_it_hangs_and_nothing_is_left(collective_box: Box) -> None:
    args = ("doctor", "tiny", "--collective", "--set", "env.PLANT=hang", "--step-timeout", "8")
    result = collective_box.run(*args, timeout=300)
    assert result.rc == 1, result
    assert "hangs: nothing for 8 s at 2 ranks, 65536 bytes" in result.stdout
    assert "rank 1: 2 ranks, 65536 bytes" in result.stdout
    assert "it is healthy" in result.stdout
    ours = str(collective_box.root).encode()
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and ours in _environment(pid)]
    assert left == []


def _environment(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes() if int(pid) != os.getpid() else b""
    except OSError:
        return b""
