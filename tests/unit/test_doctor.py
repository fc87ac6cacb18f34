"""The checks, on the trees of three hosts and on single values."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.console.examination import lines
from deploy.doctor import driver, kernel, pcie
from deploy.doctor.checks import CHECKS, counts, examine
from deploy.doctor.finding import FAIL, OK, STATUSES, UNKNOWN, WARN, EngineFacts, Finding, Space, Subject, Wanted
from deploy.doctor.gather import _kernel_log, _places
from deploy.host.gpus import GpuState, Inventory, NoGpus
from deploy.host.sysroot import Sysroot
from tests.host_tree import HOSTS, build

GIB = 1 << 30
ENGINE = EngineFacts("0.33.0", "2.11.0+cu130", "13.0", "2.29.3", ("sm_80", "sm_90", "sm_100", "sm_120"))
WANTED = Wanted("kimi-int4", 4, 4, "12.0", 95, folder="/models/Kimi", checkpoint_bytes=595_000_000_000, engine=ENGINE)


def host(name: str, tmp_path: Path, wanted: Wanted | None = None, **more: Any) -> Subject:
    """A host of tests/hosts, and what a profile asks of it."""
    files = Sysroot(str(build(name, tmp_path)))
    log = _kernel_log(files)
    return Subject(files, places=_places(files, None), wanted=wanted, kernel_log=log, **more)


def verdicts(subject: Subject) -> dict[str, str]:
    """Check -> status."""
    return {result.check.name: result.finding.status for result in examine(subject)}


def gpu(number: int = 0, **details: Any) -> GpuState:
    """A card as NVML tells it."""
    return GpuState(number, f"GPU-{number}", "RTX PRO 6000", "12.0", 97_887, 636, [], details=details)


def with_nvml(*gpus: GpuState, cuda: str = "13.0", number: str = "595.58.03", **more: Any) -> Subject:
    """A host known by NVML alone."""
    return Subject(Sysroot("/nowhere"), Inventory(list(gpus), number, cuda, "13"), **more)


def test_a_clean_host_is_clean(tmp_path: Path) -> None:
    found = verdicts(host("two-sockets-switches", tmp_path, replace_ranks(8)))
    assert {name for name, status in found.items() if status != OK} == set()
    assert {"iommu", "acs", "pcie-link", "pcie-errors", "bar1", "aspm", "shm", "limits", "host-memory"} <= set(found)


def replace_ranks(ranks: int) -> Wanted:
    return WANTED._replace(gpus=ranks, ranks=ranks, engine=None)


def test_an_amd_host_as_it_comes(tmp_path: Path) -> None:
    subject = host("amd-iommu-acs", tmp_path, replace_ranks(4))
    found = {result.check.name: result.finding for result in examine(subject)}
    assert {name: finding.status for name, finding in found.items() if finding.status != OK} == {
        "iommu": WARN,
        "acs": FAIL,  # together with the IOMMU
        "pcie-link": FAIL,
        "pcie-errors": WARN,
        "bar1": WARN,
        "aspm": WARN,
        "limits": WARN,
        "numa-balancing": WARN,
        "governor": WARN,
        "swap": WARN,
        "clock": WARN,
        "host-memory": WARN,
        "filesystem": WARN,
        "xid": FAIL,
        "shm": UNKNOWN,  # mounted without a size, and only a live system tells what is free
    }
    assert "iommu=pt" in found["iommu"].fix[0]
    assert "sm120-pcie-p2p-off" in found["iommu"].fix[1]
    assert "setpci -s 0000:c0:01.1 ECAP_ACS+6.w=0000" in found["acs"].fix
    assert "ACSCtl 0x001d ReqRedir+ CmpltRedir+" in found["acs"].evidence[0]
    assert found["pcie-link"].evidence == ["/sys/bus/pci/devices/0000:81:00.0/current_link_width: 8 of 16"]
    assert len(found["xid"].evidence) == 1  # a fault of a program is none of the GPU's
    assert "aer_dev_nonfatal: 3" in found["pcie-errors"].evidence[0]
    assert all(finding.fix for finding in found.values() if finding.status in (WARN, FAIL))


def test_a_container(tmp_path: Path) -> None:
    subject = host("container", tmp_path, replace_ranks(2)._replace(folder="/root/model"))
    found = {result.check.name: result.finding for result in examine(subject)}
    assert {name: finding.status for name, finding in found.items() if finding.status != OK} == {
        "xid": UNKNOWN,
        "acs": UNKNOWN,
        "pcie-link": WARN,
        "aspm": UNKNOWN,
        "limits": WARN,
        "shm": FAIL,
        "shm-leftovers": WARN,
        "host-memory": WARN,
        "filesystem": WARN,
    }
    assert found["acs"].fix[0] == "sudo kdeploy doctor"
    assert "--shm-size" in found["shm"].fix[1]
    assert set(found["shm-leftovers"].evidence) == {"/dev/shm/nccl-9xQ2kb", "/dev/shm/psm_21f0ab77"}
    assert "/sys/fs/cgroup/memory.max: 128.0 GiB" in found["host-memory"].evidence
    assert "the slot does 16 GT/s, the GPU 32" in found["pcie-link"].evidence[0]


def test_the_profile_that_keeps_peer_access_off_needs_no_passthrough(tmp_path: Path) -> None:
    wanted = replace_ranks(4)._replace(env={"NCCL_P2P_DISABLE": "1"})
    assert verdicts(host("amd-iommu-acs", tmp_path, wanted))["iommu"] == OK


def test_one_gpu_and_a_cpu_engine_ask_nothing_about_peers(tmp_path: Path) -> None:
    one = verdicts(host("amd-iommu-acs", tmp_path, replace_ranks(1)))
    assert not {"iommu", "acs"} & set(one)
    none = verdicts(host("amd-iommu-acs", tmp_path / "b", Wanted("tiny", 0, 2)))
    assert not {"iommu", "acs", "pcie-link", "bar1", "driver", "persistence"} & set(none)


@pytest.mark.parametrize(
    ("kind", "places", "wanted", "status"),
    [
        ("library-missing", False, None, WARN),
        ("library-missing", False, WANTED, FAIL),
        ("library-missing", True, None, FAIL),
        ("version-mismatch", False, None, FAIL),
        ("no-answer", True, WANTED, FAIL),
    ],
)
def test_a_driver_that_does_not_answer(
    tmp_path: Path, kind: str, places: bool, wanted: Wanted | None, status: str
) -> None:
    subject = host("amd-iommu-acs", tmp_path, wanted) if places else Subject(Sysroot("/nowhere"), wanted=wanted)
    finding = driver.driver(replace(subject, no_gpus=NoGpus(kind, "its words")))
    assert finding is not None
    assert finding.status == status
    assert finding.fix[0]


def test_the_driver_against_the_engine() -> None:
    new = with_nvml(gpu(), wanted=WANTED)
    old = with_nvml(gpu(), cuda="12.8", number="570.86", wanted=WANTED)
    assert driver.driver_for_engine(new) is not None
    assert (found := driver.driver_for_engine(old)) is not None
    assert (found.status, len(found.evidence)) == (FAIL, 2)
    alone = driver.driver_for_engine(replace(old, wanted=None))
    assert alone is not None
    assert alone.status == WARN


@pytest.mark.parametrize(
    ("capability", "architectures", "expected"),
    [
        ("12.0", ("sm_90", "sm_120"), True),
        ("12.1", ("sm_120",), True),
        ("12.0", ("sm_121",), False),
        ("12.0", ("sm_100", "sm_90a"), False),
        ("12.0", ("sm_90", "compute_90"), True),
        ("12.0", ("sm_120a",), True),
        ("9.0", ("compute_120",), False),
        ("12.0", (), False),
    ],
)
def test_code_for_a_gpu(capability: str, architectures: tuple[str, ...], expected: bool) -> None:
    assert driver.runs_on(capability, architectures) is expected


def test_engines_that_cannot_use_the_gpus() -> None:
    cpu = WANTED._replace(engine=EngineFacts("0.32.0", "2.11.0+cpu"))
    silent = WANTED._replace(engine=EngineFacts("0.32.0", problem="ImportError: x"))
    older = WANTED._replace(engine=ENGINE._replace(architectures=("sm_90",)))
    statuses = [driver.architecture(with_nvml(gpu(), wanted=wanted)) for wanted in (WANTED, cpu, silent, older)]
    assert [finding.status for finding in statuses if finding] == [OK, FAIL, UNKNOWN, FAIL]


def test_what_nvml_tells_of_each_gpu() -> None:
    good = {"persistence": True, "power_cap_w": 600, "ecc_uncorrected": 0, "bar1_total_mib": 131072}
    assert set(verdicts(with_nvml(gpu(0, **good), gpu(1, **good), wanted=replace_ranks(2))).values()) <= {OK, UNKNOWN}
    bad = gpu(1, persistence=False, power_cap_w=250, ecc_uncorrected=2, bar1_total_mib=256)
    found = verdicts(with_nvml(gpu(0, **good), bad, wanted=replace_ranks(2), holders=["GPU 1: pid 7 900 MiB"]))
    wrong = {name: status for name, status in found.items() if status in (WARN, FAIL)}
    assert wrong == {
        "persistence": WARN,
        "power-cap": WARN,
        "gpu-memory-errors": FAIL,
        "bar1": WARN,
        "gpus-idle": WARN,
    }


def test_gpus_of_the_wrong_kind_or_too_few() -> None:
    older = gpu()._replace(capability="8.9")
    small = gpu()._replace(total_mib=49_140)
    one = replace_ranks(1)
    assert verdicts(with_nvml(older, wanted=one))["gpu-kind"] == FAIL
    assert verdicts(with_nvml(small, wanted=one))["gpu-kind"] == FAIL
    assert verdicts(with_nvml(gpu(), small))["gpu-kind"] == WARN
    assert verdicts(with_nvml(gpu(), wanted=replace_ranks(2)))["driver"] == FAIL
    lost = gpu(1)._replace(problem={"kind": "gpu-lost", "text": "GPU is lost"})
    assert verdicts(with_nvml(gpu(), lost))["driver"] == FAIL


def test_peer_access_that_is_denied() -> None:
    subject = with_nvml(gpu(0), gpu(1), wanted=replace_ranks(2))
    assert subject.inventory is not None
    for status, expected in (("ok", OK), ("chipset not supported", WARN), (None, UNKNOWN)):
        told = replace(subject, inventory=subject.inventory._replace(pairs={(0, 1): ("NODE", status)}))
        assert verdicts(told)["peer-access"] == expected


@pytest.mark.parametrize(("free", "status"), [(0.5, FAIL), (4, WARN), (20, OK)], ids=["no room", "little room", "room"])
def test_shared_memory_for_eight_ranks(free: float, status: str) -> None:
    subject = Subject(
        Sysroot("/nowhere"), wanted=replace_ranks(8), space={"/dev/shm": Space(32 * GIB, int(free * GIB))}
    )
    finding = kernel.shm(subject)
    assert finding is not None
    assert finding.status == status


def test_mounts(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    rows = ["/dev/a / ext4 rw", "b /mnt nfs4 rw", "c /mnt/my\\040models xfs rw", "d /mnt/my\\040models fuse.s3 rw"]
    (tmp_path / "proc/mounts").write_text("\n".join(f"{row} 0 0" for row in rows))
    files = Sysroot(str(tmp_path))
    for path, kind in (("/x", "ext4"), ("/mnt/y", "nfs4"), ("/mnt/my models/z", "fuse.s3"), ("/mnt2", "ext4")):
        found = kernel.mount_of(path, files)
        assert found is not None
        assert found[1] == kind
    subject = Subject(files, wanted=WANTED._replace(folder="/mnt/my models/z"))
    finding = kernel.filesystem(subject)
    assert finding is not None
    assert finding.status == WARN


def test_a_clock_that_is_behind() -> None:
    finding = kernel.clock(Subject(Sysroot("/nowhere"), wall=1_000_000.0, newest_file=1_790_000_000.0))
    assert finding is not None
    assert finding.status == FAIL


@pytest.mark.parametrize("config", [b"", bytes(64), bytes(256)])
def test_a_configuration_space_that_is_cut_off(config: bytes) -> None:
    assert pcie.acs_control(config) is None


def test_a_configuration_space_that_leads_in_circles() -> None:
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    assert pcie.acs_control(bytes(config)) == -1


def test_every_check_has_a_row_of_its_own_and_the_docs_tell_it() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    docs = (Path(__file__).resolve().parents[2] / "docs/doctor.md").read_text()
    missing = [check.name for check in CHECKS if f"| `{check.name}` | {check.asks} | {check.why} |" not in docs]
    assert missing == []


def test_the_worst_comes_first_with_evidence_reason_and_remedy() -> None:
    subject = Subject(
        Sysroot("/nowhere"), wanted=replace_ranks(2)._replace(port=Finding(FAIL, "taken", ["pid 7"], ["x"]))
    )
    results = examine(subject)
    told = lines(results)
    assert told[:4] == [
        "fail    port               taken",
        "        pid 7",
        "        why: vLLM binds it first and fails, or two servers share the requests",
        "        -> x",
    ]
    assert sum(counts(results).values()) == len(results)
    assert set(counts(results)) == set(STATUSES)


def test_the_hosts_are_all_used() -> None:
    assert {path.stem for path in HOSTS.glob("*.host")} == {"two-sockets-switches", "amd-iommu-acs", "container"}
