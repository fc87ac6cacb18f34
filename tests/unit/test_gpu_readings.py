"""What the NVML helper wrote, and what can be told of the holders of memory."""

import json
import os
from typing import Any

import pytest

from deploy.console.gpu_table import holder_words, lines
from deploy.host.gpus import REMEDIES, WHAT, Inventory, NoGpus, parsed
from deploy.host.holders import container_of, describe
from deploy.plan.launch_plan import Gpu
from deploy.supervise.gpu_memory import Held, held_on, report

ID = "3f0c" * 16


def told(*documents: object) -> str:
    return "\n".join(json.dumps(document) for document in documents)


def test_gpus_come_in_the_order_of_the_bus() -> None:
    found = parsed(
        told(
            {"system": {"driver": "580.95.05", "cuda": "13.0", "nvml": "13"}},
            {"gpu": {"nvml": 0, "uuid": "GPU-b", "pci": "00000000:c1:00.0"}},
            {"gpu": {"nvml": 1, "uuid": "GPU-a", "pci": "00000000:01:00.0"}},
            {"pairs": [[0, 1, "SYS", "ok"]]},
            {"done": True},
        ),
        complete=True,
    )
    assert [(gpu.number, gpu.uuid) for gpu in found.gpus] == [(0, "GPU-a"), (1, "GPU-b")]
    assert found.pairs == {(0, 1): ("SYS", "ok")}
    assert (found.driver, found.gpus[0].used_mib, found.gpus[0].get("power_w")) == ("580.95.05", None, None)


def test_a_gpu_without_an_address_keeps_its_number() -> None:
    lost = {"nvml": 0, "problem": {"kind": "gpu-lost", "text": "GPU is lost"}}
    other = {"nvml": 1, "uuid": "GPU-a", "pci": "00000000:01:00.0"}
    found = parsed(told({"gpu": lost}, {"gpu": other}, {"done": True}), complete=True).gpus
    assert [gpu.uuid for gpu in found] == ["unknown-0", "GPU-a"]
    assert found[0].problem


@pytest.mark.parametrize(
    ("text", "complete", "kind", "words"),
    [
        (told({"error": {"kind": "version-mismatch", "text": "differ"}}), True, "version-mismatch", "differ"),
        (told({"reading": "0"}, {"gpu": {"nvml": 0}}, {"reading": "3"}), False, "no-answer", "while reading GPU 3"),
        (told({"reading": "topology"}), False, "no-answer", "while reading the topology"),
        ("", False, "no-answer", "no answer within 20 s"),
        ("Segmentation fault", True, "nvml-failed", "Segmentation fault"),
        (told({"reading": "0"}), True, "nvml-failed", "without an answer"),
        ("[1]\n", True, "nvml-failed", "without an answer"),
    ],
)
def test_no_inventory(text: str, complete: bool, kind: str, words: str) -> None:
    with pytest.raises(NoGpus) as caught:
        parsed(text, complete=complete)
    assert caught.value.kind == kind
    assert words in str(caught.value)
    assert caught.value.as_error().fix


def test_each_kind_of_trouble_has_words_and_a_remedy_of_its_own() -> None:
    assert len(set(WHAT.values())) == len(WHAT)
    assert len(set(REMEDIES.values())) == len(REMEDIES)
    assert set(WHAT) <= set(REMEDIES)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"0::/system.slice/docker-{ID}.scope", "docker 3f0c3f0c3f0c"),
        (f"12:memory:/docker/{ID}", "docker 3f0c3f0c3f0c"),
        (f"0::/machine.slice/libpod-{ID}.scope/container", "libpod 3f0c3f0c3f0c"),
        (f"0::/kubepods.slice/kubepods-pod12.slice/cri-containerd-{ID}.scope", "cri-containerd 3f0c3f0c3f0c"),
        (f"4:devices:/kubepods/besteffort/pod12/{ID}", "pod 3f0c3f0c3f0c"),
        ("0::/lxc.payload.gpu7/system.slice/x.service", "lxc gpu7"),
        ("0::/user.slice/user-1000.slice/session-4.scope", None),
        ("0::/", None),
        ("", None),
    ],
)
def test_containers_by_their_cgroup(path: str, expected: str | None) -> None:
    assert container_of(path) == expected


def test_a_pid_that_is_not_here() -> None:
    assert describe(4_000_000)["visible"] is False
    assert "not visible here" in holder_words({"pid": 4_000_000, "mib": 5, **describe(4_000_000)})


def test_a_process_of_ours_that_uses_a_gpu() -> None:
    fd = os.memfd_create("nvidia0")  # believed in a container, too
    try:
        facts = describe(os.getpid())
    finally:
        os.close(fd)
    assert facts["visible"]
    assert facts["certain"]
    assert "python" in facts["command"] or "pytest" in facts["command"]
    words = holder_words({"pid": os.getpid(), "mib": None, **facts})
    assert facts["user"] in words


def test_words_for_our_own() -> None:
    entry = {"pid": 7, "mib": 900, "deployment": "kimi", "ended": True, "command": "x"}
    assert "kimi: pid 7 900 MiB  has ended" in holder_words(entry)


TWO = [Gpu(0, "GPU-a"), Gpu(1, "GPU-b")]
SERVING = {"GPU-a": Held(1636, {7: 1000}), "GPU-b": Held(1636, {8: 1000})}
EMPTY = {"GPU-a": Held(636, {}), "GPU-b": Held(40_636, {})}


def test_memory_is_back_when_our_processes_hold_none_whatever_the_totals_say() -> None:
    told = report(TWO, SERVING, EMPTY, None)
    assert set(told) == {"gpu_memory"}
    assert told["gpu_memory"][1]["after_mib"] == 40_636
    assert [gpu["ours_after_mib"] for gpu in told["gpu_memory"]] == [0, 0]


def test_memory_that_is_still_charged_is_named_by_gpu_and_pid() -> None:
    told = report(TWO, SERVING, {**EMPTY, "GPU-b": Held(1636, {8: 1000, 9: None})}, None)
    assert told["memory_held"] == ["GPU 1: pid 8 1000 MiB", "GPU 1: pid 9 memory"]


def test_a_gpu_that_lists_no_processes_is_no_free_one() -> None:
    gpu = {"uuid": "GPU-a", "pci": "00000000:01:00.0", "memory_used_mib": 5000, "processes": None}
    (found,) = parsed(told({"gpu": {"nvml": 0, **gpu}}, {"done": True}), complete=True).gpus
    assert held_on(TWO, Inventory([found]), {7}) == {"GPU-a": Held(5000, {}, False)}


@pytest.mark.parametrize(
    ("before", "after", "why", "words"),
    [
        (SERVING, None, "NVML: Unknown Error", "Unknown Error"),
        ({}, EMPTY, None, "never listed a process of this deployment on GPU 0, 1"),
        ({**SERVING, "GPU-b": Held(1636, {})}, EMPTY, None, "on GPU 1"),
        (SERVING, {**EMPTY, "GPU-b": Held(None, {}, False)}, None, "does not list the processes on GPU 1"),
        (SERVING, {"GPU-a": EMPTY["GPU-a"]}, None, "does not list the processes on GPU 1"),  # it is lost
    ],
)
def test_what_cannot_be_proven_is_said(
    before: dict[str, Held], after: dict[str, Held] | None, why: str | None, words: str
) -> None:
    told = report(TWO, before, after, why)
    assert words in told["memory_unproven"]
    assert "memory_held" not in told


def test_a_narrow_terminal_does_without_some_columns() -> None:
    details = "utilization_percent temperature_c power_w power_cap_w pcie_gen pcie_gen_max pcie_width pcie_width_max"
    others = "problem persistence mig processes ecc_uncorrected place memory_used_mib memory_total_mib capability"
    gpu: dict[str, Any] = dict.fromkeys([*details.split(), *others.split()])
    gpu |= {"index": 0, "name": "a card", "mig_devices": [], "lease": {"deployment": "a-name-that-is-long"}}
    document = {"gpus": [gpu], "driver": None, "cuda": None, "pairs": [], "topology": []}
    assert lines(document)[1].split()[:2] == ["GPU", "PCI"]
    narrow = lines(document, 60)
    assert max(map(len, narrow[1:])) <= 60
    assert "a-name-that-is-long" in narrow[2]
    assert "n/a / n/a" in narrow[2]  # memory stays
