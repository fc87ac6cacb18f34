"""GPUs: shown, chosen and leased, against the fake NVML library."""

import json
import os
import signal

import pytest

from tests.box import LIMIT_S, Box, alive, wait_until
from tests.gpu_box import GpuBox


def test_inventory(gpus: GpuBox) -> None:
    """The whole of it on one sick machine: each fault is told at its GPU, and the other GPUs are told all the same."""
    gpus.set(
        "gpus 8",
        f"proc 3 {os.getpid()} 5000",
        "ghost 4 4000000 60000",
        "gpu 5 gen=1 width=8 ecc_errors=2",
        "not_supported memory 1",
        "not_supported power *",
        "no_permission memory 6",
        "mig 6 2 24000",
        "lost 7",
        "p2p 0 4 1",
    )
    document = gpus.box.ok("gpus", "--json").json
    found = document["gpus"]
    assert (document["driver"], document["cuda"]) == ("580.95.05", "13.0")
    assert [gpu["index"] for gpu in found] == list(range(8))
    assert (found[0]["capability"], found[0]["memory_total_mib"], found[0]["bar1_total_mib"]) == ("12.0", 97887, 131072)
    assert (found[1]["memory_used_mib"], found[1]["power_w"]) == (None, None)
    assert [(entry["pid"], entry["mib"]) for entry in found[3]["processes"]] == [(os.getpid(), 5000)]
    assert found[4]["processes"][0]["visible"] is False
    assert [part["memory_total_mib"] for part in found[6]["mig_devices"]] == [24000, 24000]
    assert found[7]["problem"]["kind"] == "gpu-lost"
    assert {(pair["a"], pair["b"]): pair["p2p"] for pair in document["pairs"]}[0, 4] == "chipset not supported"
    assert [group["gpus"] for group in document["topology"]] == [[0, 1, 2, 3], [4, 5, 6]]
    told = gpus.box.ok("gpus")
    for words in ("not visible here", "x8 of x16!", "GPU is lost", "MIG is on: 2 slices", "n/a / n/a", "GPU 0 1 2 3"):
        assert words in told.stdout, words
    assert "see dmesg for Xid" in told.stderr
    assert max(map(len, told.stdout.splitlines())) <= 120


@pytest.mark.parametrize("named", ["5,2", "uuid", "prefix"])
def test_named_gpus(gpus: GpuBox, named: str) -> None:
    uuids = [gpu["uuid"] for gpu in gpus.box.ok("gpus", "--json").json["gpus"]]
    gpus.profile()
    text = {"uuid": f"{uuids[5]},{uuids[2]}", "prefix": f"{uuids[5]},2"}.get(named, named)
    assert gpus.up("tiny", "--gpus", text).rc == 0
    assert gpus.visible() == "5,2"
    assert sorted(gpus.leases()) == [2, 5]
    gpus.box.down("tiny")


def test_restart_takes_the_same_gpus(gpus: GpuBox) -> None:
    gpus.profile()
    assert gpus.up("tiny", "--gpus", "5,2").rc == 0
    gpus.told.unlink()
    gpus.box.ok("restart", "tiny")
    assert gpus.visible() == "5,2"
    assert sorted(gpus.leases()) == [2, 5]
    gpus.box.down("tiny")
    gpus.told.unlink()
    gpus.box.ok("restart", "tiny")
    assert gpus.visible() == "5,2"
    gpus.box.down("tiny")


@pytest.mark.parametrize("text", ["0", "0,1,2", "0,0", "0,9", "0,GPU-nonesuch", "0,", "GPU-,1"])
def test_lists_that_make_no_sense(gpus: GpuBox, text: str) -> None:
    gpus.profile()
    result = gpus.up("tiny", "--gpus", text)
    assert result.rc == 2, result
    assert not gpus.box.processes()


def test_a_second_deployment_gets_other_gpus_or_is_refused(gpus: GpuBox) -> None:
    gpus.set("gpus 4", "charge_holders 1000")
    for name in ("one", "two", "three"):
        gpus.profile(name)
    assert gpus.up("one").rc == 0
    refused = gpus.up("two", "--gpus", "1,2")
    assert refused.rc == 4
    assert "leased by one" in refused.stderr
    second = gpus.up("two")
    assert second.rc == 0
    assert gpus.visible() == "2,3"
    assert "GPU 2, 3, the nearest that are free" in second.stderr
    shown = gpus.box.ok("gpus").stdout
    assert "one: pid" in shown
    assert "two: pid" in shown
    full = gpus.up("three")
    assert full.rc == 4
    assert "leased by one" in full.stderr
    gpus.box.down("one")
    assert gpus.up("three").rc == 0
    assert gpus.visible() == "0,1"
    gpus.box.down("--all")


def test_two_launches_at_once_get_different_gpus(gpus: GpuBox) -> None:
    gpus.set("gpus 4", "charge_holders 1000")
    for name in ("one", "two"):
        gpus.profile(name)
    with gpus.box.running("up", "one") as first, gpus.box.running("up", "two") as second:
        told = [process.communicate(timeout=LIMIT_S)[1] for process in (first, second)]
        assert (first.returncode, second.returncode) == (0, 0), told
    held = gpus.leases()
    assert sorted(held.values()) == ["one", "one", "two", "two"]
    gpus.box.down("--all")


def test_lease_outlives_its_supervisor_as_long_as_the_engine_lives(gpus: GpuBox) -> None:
    gpus.profile("one")
    gpus.profile("two")
    gpus.up("one")
    supervisor = gpus.box.supervisor("one")
    # nobody may adopt in between: this looks at the leases alone
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: not alive(supervisor), "the supervisor to be gone")
    assert gpus.leases() == {0: "one", 1: "one"}
    refused = gpus.up("two", "--gpus", "0,1")
    assert refused.rc == 4, refused
    assert "leased by one" in refused.stderr
    gpus.box.down("one")
    assert gpus.leases() == {}


def test_adoption_takes_the_leases_again(gpus: GpuBox) -> None:
    gpus.profile("one")
    gpus.up("one")
    os.kill(gpus.box.supervisor("one"), signal.SIGKILL)
    gpus.box.await_released("one")
    # whoever adopts may have another folder for leases; these are still where they were taken
    gpus.box.ok("ps", env={"KDEPLOY_LEASE_DIR": str(gpus.box.root / "elsewhere")})
    assert not (gpus.box.root / "elsewhere").exists()
    assert gpus.leases() == {0: "one", 1: "one"}
    holder = json.loads(next((gpus.box.root / "leases").glob("*.lease")).read_text())
    assert holder["pid"] == gpus.box.supervisor("one")
    assert {"user", "ticks", "since", "engine", "deployment"} <= set(holder)
    assert "its memory on 2 GPUs is back" in gpus.box.down("one").stderr
    assert gpus.leases() == {}


def test_memory_held_by_others_is_refused_naming_them(gpus: GpuBox) -> None:
    gpus.set(f"proc 1 {os.getpid()} 60000")
    gpus.profile()
    refused = gpus.up("tiny", "--gpus", "0,1")
    assert refused.rc == 4
    assert f"pid {os.getpid()} 60000 MiB" in refused.stderr
    assert not gpus.box.processes()
    # without a list, others are taken
    assert gpus.up("tiny").rc == 0
    assert gpus.visible() == "0,2"
    gpus.box.down("tiny")


def test_memory_of_a_process_that_is_not_visible(gpus: GpuBox) -> None:
    gpus.set("gpus 2", "ghost 0 4000000 60000", "hide_procs 1")
    gpus.profile()
    refused = gpus.up("tiny")
    assert refused.rc == 4
    assert "no visible process" in refused.stderr


def test_too_few_gpus_or_others_than_the_profile_wants(gpus: GpuBox) -> None:
    gpus.set("gpus 1")
    gpus.profile(keys={"hardware.capability": "12.0", "hardware.memory_gib": 95})
    assert gpus.up("tiny").rc == 6
    gpus.set("gpus 2", "gpu 0 capability=8.9", "gpu 1 capability=8.9")
    other = gpus.up("tiny")
    assert other.rc == 6
    assert "capability 8.9; the profile was made for 12.0" in other.stderr
    gpus.set("gpus 2", "gpu 0 total_mib=49140", "gpu 1 total_mib=49140")
    assert gpus.up("tiny").rc == 5


def test_a_lease_folder_that_nobody_can_write(gpus: GpuBox) -> None:
    gpus.profile()
    (gpus.box.root / "file").write_text("")
    gpus.box.env["KDEPLOY_LEASE_DIR"] = str(gpus.box.root / "file" / "leases")
    result = gpus.up("tiny")
    assert result.rc == 6
    assert "export KDEPLOY_LEASE_DIR" in result.stderr


def test_without_nvml(gpus: GpuBox) -> None:
    gpus.box.env["LD_LIBRARY_PATH"] = str(gpus.box.root)
    if gpus.box.run("gpus").rc == 0:
        pytest.skip("this machine has a real NVML")
    gpus.profile()
    for result in (gpus.box.run("gpus"), gpus.up("tiny")):
        assert result.rc == 6
        assert "driver is not installed" in result.stderr
    assert gpus.box.ok("ps").stdout == ""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("init_error 18", "reload it or reboot"),
        ("init_error 9", "modprobe nvidia"),
        ("error count * 15", "fallen off the bus"),
        ("hang memory 2", "no answer within 1 s while reading GPU 2"),
    ],
)
def test_a_driver_that_fails(gpus: GpuBox, line: str, words: str) -> None:
    gpus.set(line)
    result = gpus.box.run("gpus", env={"KDEPLOY_NVML_DEADLINE_S": "1"})
    assert result.rc == 6
    assert words in result.stderr


def test_gpus_for_a_cpu_engine(box: Box) -> None:
    box.profile()
    assert box.run("up", "tiny", "--gpus", "0,1").rc == 2
