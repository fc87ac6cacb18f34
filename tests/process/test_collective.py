"""`doctor --collective` on eight GPUs: what it does about ranks that hang, die or are slow, and about leases."""

import os
import signal
from pathlib import Path

import pytest

from tests.box import FAKES, Box, free_port, read_proc, wait_until


@pytest.fixture
def eight(box: Box, nvml_folder: Path) -> Box:
    """A machine with eight free GPUs; the engine's interpreter is the fake one."""
    (box.root / "machine.txt").write_text("gpus 8\n")
    box.env |= {"LD_LIBRARY_PATH": str(nvml_folder), "FAKE_NVML": str(box.root / "machine.txt")}
    (box.root / "python-ranks").symlink_to(FAKES / "python-ranks")
    vllm = box.root / "vllm"
    vllm.write_text(f"#!{box.root}/python-ranks\n")
    vllm.chmod(0o755)
    keys = {"engine.executable": str(vllm), "parallel.tensor": 8, "hardware.gpus": 8, "serve.port": free_port()}
    box.profile("big", "", keys)
    return box


def leases(box: Box) -> set[str]:
    """Who leases GPUs."""
    return {gpu["lease"]["deployment"] for gpu in box.ok("gpus", "--json").json["gpus"] if gpu["lease"]}


def test_healthy_and_slow(eight: Box) -> None:
    result = eight.ok("doctor", "big", "--collective")
    assert "healthy: every sum is right at 27 sizes" in result.stdout
    assert "48.7, 25.6" in result.stdout  # what 64 KiB usually take on such boxes
    slow = eight.run("doctor", "big", "--collective", "--set", "env.FAKE_RANKS=slow", "--json")
    assert slow.rc == 0
    assert slow.json["status"] == "warn"
    assert slow.json["run"]["measured"][-1]["ranks"] == 8
    graph = eight.ok("doctor", "big", "--collective", "--set", "env.NCCL_GRAPH_FILE=/x.xml", "--json").json
    assert {entry["ranks"] for entry in graph["run"]["measured"]} == {8}  # such a file fits all ranks only


def test_a_hang_is_told_apart_by_the_control_run_and_the_gpus_are_leased_meanwhile(eight: Box) -> None:
    args = ("doctor", "big", "--collective", "--set", "env.FAKE_RANKS=hang", "--step-timeout", "4")
    with eight.running(*args) as running:
        wait_until(lambda: leases(eight) == {"doctor --collective"}, "the leases of the test")
        refused = eight.run("doctor", "big", "--collective")
        assert refused.rc == 4
        assert "leased by doctor --collective" in refused.stderr
        assert running.stdout is not None
        told = running.stdout.read().decode()
        assert running.wait(60) == 1
    assert "hangs: nothing for 4 s at 2 ranks, 65536 bytes" in told
    assert "without peer access (NCCL_P2P_DISABLE=1) it is healthy" in told
    assert "sm120-pcie-p2p-off" in told
    assert leases(eight) == set()


def test_ctrl_c_ends_every_rank(eight: Box) -> None:
    with eight.running("doctor", "big", "--collective", "--set", "env.FAKE_RANKS=hang") as running:
        wait_until(lambda: _ranks(eight), "the ranks")
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
    assert _ranks(eight) == []
    assert leases(eight) == set()


def _ranks(box: Box) -> list[int]:
    mine = str(box.root / "python-ranks")
    found = (read_proc(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return [process.pid for process in found if process and mine in process.title.split()[:2] and "-c" in process.title]


def test_ranks_that_end_and_bad_input(eight: Box) -> None:
    dead = eight.run("doctor", "big", "--collective", "--set", "env.FAKE_RANKS=dead")
    assert dead.rc == 6
    assert "rank 1 ended at 2 ranks, 8192 bytes with code 1" in dead.stdout
    assert "rank 1: ncclUnhandledCudaError: out of memory" in dead.stdout
    assert eight.run("doctor", "--collective").rc == 2
    assert eight.run("doctor", "big", "--collective", "--set", "parallel.tensor=1", "--set", "hardware.gpus=1").rc == 2
    assert eight.run("doctor", "big", "--collective", "--gpus", "0,1").rc == 2
