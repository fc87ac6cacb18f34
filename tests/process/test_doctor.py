"""`doctor` as people call it: on this machine, on copies of other hosts, with a profile."""

from pathlib import Path

from tests.box import Box, free_port
from tests.host_tree import build


def statuses(document: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    """Check -> status."""
    return {check["check"]: check["status"] for check in document["checks"]}


def test_this_machine_and_a_profile_for_a_cpu_engine(box: Box) -> None:
    box.profile()
    result = box.run("doctor", "tiny", "--json")
    found = statuses(result.json)
    assert result.rc == int("fail" in found.values())
    assert {"shm", "limits", "disk", "checkpoint", "engine", "port"} <= set(found)
    assert not {"driver", "iommu", "persistence"} & set(found)  # no GPU is asked for
    assert (found["checkpoint"], found["port"]) == ("ok", "ok")
    box.up("other", "", {"serve.port": free_port()})
    shard = next(box.model.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-100])
    taken = box.status("other")["url"].rpartition(":")[2]
    damaged = box.run("doctor", "tiny", "--set", f"serve.port={taken}")
    assert damaged.rc == 1
    assert f"{shard}: truncated" in damaged.stdout
    assert f"port {taken} belongs to the deployment other" in damaged.stdout
    box.down("other")
    # a model that only the hub has, and that cannot fit
    hub = box.run("doctor", "kimi-int4", "--set", "model.path=null", "--set", "model.trust_remote_code=false", "--json")
    told = next(check for check in hub.json["checks"] if check["check"] == "checkpoint")
    assert (told["status"], "595 GB" in told["evidence"][0]) in {("fail", True), ("unknown", True)}


def test_another_host_with_gpus(box: Box, nvml_folder: Path) -> None:
    tree = build("amd-iommu-acs", box.root / "host")
    machine = box.root / "machine.txt"
    buses = ("01", "41", "81", "c1")
    machine.write_text("".join(f"gpu {n} bus=00000000:{bus}:00.0 numa=0\n" for n, bus in enumerate(buses)))
    box.env |= {"LD_LIBRARY_PATH": str(nvml_folder), "FAKE_NVML": str(machine), "KDEPLOY_SYSROOT": str(tree)}
    result = box.run("doctor")
    assert result.rc == 1
    assert "fail    acs" in result.stdout
    assert "-> setpci -s 0000:00:01.1 ECAP_ACS+6.w=0000" in result.stdout
    assert "ok      driver             driver 580.95.05, CUDA 13.0, 4 GPUs" in result.stdout
    machine.write_text("init_error 18\n")
    found = statuses(box.run("doctor", "--json").json)
    assert (found["driver"], found["acs"]) == ("fail", "fail")  # what NVML does not tell, /sys does
    assert box.run("doctor", "--set", "serve.port=1").rc == 2
    assert box.run("doctor", "no-such-profile").rc == 2
