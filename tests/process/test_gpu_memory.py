"""GPU memory: shown while an engine serves, proven back after its end, named when it stays."""

import json
import os
import signal
import time

import pytest

from tests.gpu_box import GpuBox


def test_status_shows_memory_and_down_gives_it_back(gpus: GpuBox) -> None:
    gpus.profile()
    result = gpus.up("tiny")
    assert result.rc == 0, result
    status = gpus.box.status()
    assert [gpu["index"] for gpu in status["gpus"]] == [0, 1]
    assert all(gpu["uuid"].startswith("GPU-") for gpu in status["gpus"])
    assert all(gpu["memory_used_mib"] >= 1000 for gpu in status["gpus"])
    assert gpus.leases() == {0: "tiny", 1: "tiny"}
    assert gpus.visible() == "0,1"
    environment = json.loads(gpus.told.read_text())["env"]
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    # a neighbour comes meanwhile: totals say nothing, our own processes' memory does
    gpus.set("charge_holders 1000", f"proc 0 {os.getpid()} 30000")
    result = gpus.box.down("tiny", "--json")
    assert "its memory on 2 GPUs is back" in result.stderr
    (down,) = result.json["deployments"]
    assert [(gpu["index"], gpu["ours_before_mib"], gpu["ours_after_mib"]) for gpu in down["gpu_memory"]] == [
        (0, 1000, 0),
        (1, 1000, 0),
    ]
    assert [gpu["after_mib"] for gpu in down["gpu_memory"]] == [30636, 636]
    assert gpus.leases() == {}


def test_memory_is_proven_back_even_when_supervisor_and_engine_died(gpus: GpuBox) -> None:
    gpus.profile("one")
    gpus.up("one")
    (seen,) = [gpus.box.await_event("gpu-memory", "one")]
    assert [gpu["ours_before_mib"] for gpu in seen["gpu_memory"]] == [1000, 1000]
    os.kill(gpus.box.supervisor("one"), signal.SIGKILL)
    gpus.box.await_released("one")
    for process in gpus.box.engine("one"):
        os.kill(process.pid, signal.SIGKILL)
    gpus.box.await_no_engine("one")
    assert gpus.box.status("one")["state"] == "failed"
    gpus.box.await_released("one")
    ended = gpus.box.status("one")
    assert [gpu["ours_after_mib"] for gpu in ended["gpu_memory"]] == [0, 0]
    assert ended["memory_unproven"] is None
    gpus.box.down("one")


def test_memory_that_does_not_come_back_is_named_and_then_waited_for(gpus: GpuBox) -> None:
    """The kernel can give a dead process's memory back late: `down` is not done before, and the next start waits."""
    gpus.set("gpus 2", "charge_holders 60000", "release_after_s 600")
    gpus.profile(keys={"stop.kill_s": 0.5})
    assert gpus.up("tiny").rc == 0
    pids = sorted(gpus.box.workers())
    result = gpus.box.run("down", "tiny", "--force")
    assert result.rc == 8, result
    assert f"GPU 0: pid {pids[0]} 60000 MiB" in result.stderr
    assert f"GPU 1: pid {pids[1]} 60000 MiB" in result.stderr
    again = gpus.box.run("down", "tiny")
    assert again.rc == 8
    assert "a new supervisor looks again" in again.stderr
    assert "has ended, its memory is not back yet" in gpus.box.ok("gpus").stdout
    with gpus.box.running("up", "tiny") as waiting:
        assert waiting.stderr is not None
        line = next(text for text in waiting.stderr if b"comes back late" in text)
        assert f"pid {pids[0]}, which has ended".encode() in line
        gpus.set("gpus 2", "charge_holders 60000")
        assert waiting.wait(60) == 0
    gpus.box.down("tiny")


def test_memory_of_a_crash_is_told_beside_it_and_a_second_look_can_prove_it(gpus: GpuBox) -> None:
    gpus.set("gpus 2", "charge_holders 60000", "release_after_s 600")
    gpus.profile(keys={"stop.kill_s": 0.5, "restart.policy": "on-failure"})
    assert gpus.up("tiny").rc == 0
    os.kill(gpus.box.core(), signal.SIGKILL)
    gpus.box.await_event("teardown-incomplete")
    gpus.box.await_released()
    (told,) = gpus.box.events("teardown-incomplete")
    texts = [item["text"] for item in told["diagnosis"]["evidence"]]
    assert texts[-1].startswith("before that it had failed: engine-died")
    assert len(gpus.box.launches()) == 1  # nothing is started on top of that
    gpus.set("gpus 2", "charge_holders 60000")
    assert "its memory on 2 GPUs is back" in gpus.box.down("tiny").stderr


def test_down_waits_for_memory_that_comes_back_late(gpus: GpuBox) -> None:
    gpus.set("charge_holders 60000", "release_after_s 2")
    gpus.profile(keys={"stop.kill_s": 60})
    assert gpus.up("tiny").rc == 0
    result = gpus.box.down("tiny")
    assert "GPU 0  60636 MiB -> 636 MiB, ours 60000 MiB -> 0 MiB" in result.stderr
    assert gpus.box.events("stopped")[-1]["seconds"] >= 1.5


@pytest.mark.parametrize(("line", "words"), [("init_error 999", "Unknown Error"), ("hang memory", "no answer")])
def test_down_and_status_with_nvml_dead(gpus: GpuBox, line: str, words: str) -> None:
    gpus.box.env["KDEPLOY_NVML_DEADLINE_S"] = "2"
    gpus.profile()
    gpus.up("tiny")
    gpus.set(line)
    status = gpus.box.status()
    assert [gpu["memory_used_mib"] for gpu in status["gpus"]] == [None, None]
    assert "GPU memory was not proven to be back" in gpus.box.down("tiny").stderr
    assert words in gpus.box.status()["memory_unproven"]


def test_ranks_that_wait_for_each_other_are_told_from_a_long_load(gpus: GpuBox) -> None:
    """As a blocked peer access looks: every GPU at 100 % and 130 W, nothing is said, nothing moves."""
    gpus.set("charge_holders 1000", *(f"gpu {number} util=100 power_w=131 limit_w=600" for number in range(8)))
    gpus.profile("tiny", 2, {"env.FAKE_VLLM": "max_life_s=240;device=cuda;hang_at=init", "load.stall_s": 2})
    result = gpus.up("tiny")
    assert result.rc == 1
    diagnosis = result.json["diagnosis"]
    assert (diagnosis["cause"], diagnosis["hang"]) == ("stalled", "collective")
    assert "every GPU is at 100 %" in result.stderr
    assert "NCCL_P2P_DISABLE=1" in result.stderr
    assert "GPU 1: 100 %, 131 of 600 W" in [entry["text"] for entry in diagnosis["evidence"]]


def test_the_kernel_tells_why_an_engine_was_killed(gpus: GpuBox) -> None:
    """A GPU that is lost shows in the log as anything; the kernel says it."""
    kernel = gpus.box.root / "sysroot" / "dev" / "kmsg"
    kernel.parent.mkdir(parents=True)
    kernel.write_text("")
    gpus.box.env["KDEPLOY_SYSROOT"] = str(kernel.parents[1])
    gpus.profile("tiny", 2)
    assert gpus.up("tiny").rc == 0
    later = (time.monotonic() + 3600) * 1e6
    kernel.write_text(f"4,1,{later:.0f},-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n")
    os.kill(gpus.box.api(), signal.SIGKILL)
    gpus.box.await_state("failed")
    diagnosis = gpus.box.status("tiny")["diagnosis"]
    assert "fallen off the bus" in diagnosis["summary"]
    assert diagnosis["evidence"][0]["text"].startswith("kernel: NVRM: Xid")
    gpus.box.down("tiny")
