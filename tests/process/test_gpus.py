"""GPUs: chosen, leased, shown and given back, against the fake NVML library."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.box import Box, Result, alive, free_port, wait_until


class GpuBox:
    """A box on a machine with GPUs. `machine` is the text file that the fake NVML reads."""

    def __init__(self, box: Box, library: Path) -> None:
        self.box = box
        self.machine = box.root / "machine.txt"
        self.told = box.root / "argv.json"
        self.set("charge_holders 1000")
        box.env |= {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(self.machine)}

    def set(self, *lines: str) -> None:
        """What the machine is now."""
        self.machine.write_text("\n".join(lines) + "\n")

    def profile(self, name: str = "tiny", gpus: int = 2, keys: dict[str, Any] | None = None) -> None:
        """A profile for the fake engine on GPUs, on a port of its own."""
        mine = {
            "parallel.tensor": gpus,
            "hardware.gpus": gpus,
            "serve.port": free_port(),
            "env.FAKE_VLLM_ARGV_FILE": str(self.told),
        }
        self.box.profile(name, "device=cuda", {**mine, **(keys or {})})

    def up(self, *args: str) -> Result:
        """`kdeploy up … --json`."""
        return self.box.run("up", *args, "--json")

    def visible(self) -> str:
        """CUDA_VISIBLE_DEVICES of the engine started last."""
        return str(json.loads(self.told.read_text())["env"]["CUDA_VISIBLE_DEVICES"])

    def leases(self) -> dict[int, str]:
        """GPU number -> deployment, as `gpus` shows it."""
        gpus = self.box.ok("gpus", "--json").json["gpus"]
        return {gpu["index"]: gpu["lease"]["deployment"] for gpu in gpus if gpu["lease"]}


@pytest.fixture
def gpus(box: Box, nvml_folder: Path) -> GpuBox:
    """Eight GPUs with nothing on them; an engine's rank takes 1000 MiB."""
    return GpuBox(box, nvml_folder)


def test_inventory(gpus: GpuBox) -> None:
    gpus.set(f"proc 3 {os.getpid()} 5000")
    found = gpus.box.ok("gpus", "--json").json["gpus"]
    assert [gpu["index"] for gpu in found] == list(range(8))
    assert found[0]["capability"] == "12.0"
    assert found[0]["memory_total_mib"] == 97887
    assert [(entry["pid"], entry["mib"]) for entry in found[3]["processes"]] == [(os.getpid(), 5000)]
    assert "97887 MiB" in gpus.box.ok("gpus").stdout


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
    gpus.box.down("tiny")
    assert gpus.leases() == {}


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
    assert gpus.up("two").rc == 0
    assert gpus.visible() == "2,3"
    full = gpus.up("three")
    assert full.rc == 4
    assert "leased by one" in full.stderr
    gpus.box.down("one")
    assert gpus.up("three").rc == 0
    assert gpus.visible() == "0,1"
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
    gpus.box.ok("ps")
    assert gpus.leases() == {0: "one", 1: "one"}
    gpus.box.down("one")
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


def test_too_few_gpus(gpus: GpuBox) -> None:
    gpus.set("gpus 1")
    gpus.profile()
    assert gpus.up("tiny").rc == 6


def test_without_nvml(gpus: GpuBox) -> None:
    gpus.box.env["LD_LIBRARY_PATH"] = str(gpus.box.root)
    if gpus.box.run("gpus").rc == 0:
        pytest.skip("this machine has a real NVML")
    gpus.profile()
    for result in (gpus.box.run("gpus"), gpus.up("tiny")):
        assert result.rc == 6
        assert "driver is not installed" in result.stderr


def test_driver_and_library_differ(gpus: GpuBox) -> None:
    gpus.set("init_error 18")
    result = gpus.box.run("gpus")
    assert result.rc == 6
    assert "reload it or reboot" in result.stderr


def test_down_and_status_with_nvml_dead(gpus: GpuBox) -> None:
    gpus.profile()
    gpus.up("tiny")
    gpus.set("init_error 999")
    status = gpus.box.status()
    assert [gpu["memory_used_mib"] for gpu in status["gpus"]] == [None, None]
    gpus.box.down("tiny")


def test_gpus_for_a_cpu_engine(box: Box) -> None:
    box.profile()
    assert box.run("up", "tiny", "--gpus", "0,1").rc == 2
