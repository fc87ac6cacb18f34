"""Which GPUs a launch gets."""

from typing import Any

import pytest

from deploy.errors import ENVIRONMENT, REFUSED, USAGE, WILL_NOT_FIT, KdeployError
from deploy.host.gpus import GpuState
from deploy.plan.placement import Needs, choose, explain, free_ones

TOTAL = 97_887


def gpu(number: int, used: int | None = 600, processes: list[dict[str, Any]] | None = None) -> GpuState:
    """One card of a box."""
    return GpuState(
        number, f"GPU-{'ab'[number % 2]}{number}000000-0000", "RTX PRO 6000", "12.0", TOTAL, used, processes
    )


BOX = [gpu(number) for number in range(4)]


def chosen(named: str | None = None, wanted: int = 2, inventory: list[GpuState] = BOX, **more: Any) -> list[int]:
    """The numbers of the GPUs that are chosen."""
    leased = more.pop("leased", {})
    needs = more.pop("needs", Needs(0.93))
    return [found.index for found in choose(inventory, wanted, named, leased, needs, **more)]


def refusal(code: int, *args: Any, **more: Any) -> KdeployError:
    """The error, of this exit code."""
    with pytest.raises(KdeployError) as caught:
        chosen(*args, **more)
    assert caught.value.code == code
    assert caught.value.fix
    return caught.value


def test_the_first_free_ones() -> None:
    assert chosen() == [0, 1]
    assert chosen(wanted=4) == [0, 1, 2, 3]


def test_leased_and_filled_ones_are_passed_over() -> None:
    inventory = [gpu(0), gpu(1, used=50_000), gpu(2), gpu(3)]
    assert chosen(inventory=inventory, leased={inventory[0].uuid: "other"}) == [2, 3]


def test_the_uuid_comes_with_the_index() -> None:
    (found,) = choose(BOX, 1, "2", {}, Needs())
    assert (found.index, found.uuid) == (2, BOX[2].uuid)


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("0,1", [0, 1]),
        ("3,1", [3, 1]),
        (" 2 , 0 ", [2, 0]),
        ("00,03", [0, 3]),
        (f"{BOX[1].uuid},{BOX[0].uuid}", [1, 0]),
        ("GPU-a2,GPU-b3", [2, 3]),
        ("GPU-a2,3", [2, 3]),
    ],
)
def test_named_ones_in_the_order_that_was_written(named: str, expected: list[int]) -> None:
    assert chosen(named) == expected


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("9,1", "no GPU '9'"),
        ("-1,0", "no GPU '-1'"),
        ("0;1", "no GPU '0;1'"),
        ("0,,1", "no GPU ''"),
        ("", "no GPU ''"),
        ("²,1", "no GPU '²'"),
        ("٣,1", "no GPU '٣'"),
        ("9" * 6000, "no GPU"),
        ("GPU-zz,0", "no GPU 'GPU-zz'"),
        ("MIG-1,0", "'MIG-1' is a MIG slice"),
        ("GPU-a,1", "begins the UUID of 2 GPUs"),
        ("GPU-,1", "begins the UUID of 4 GPUs"),
        ("0,0", "named twice"),
        (f"1,{BOX[1].uuid}", "GPU 1 is named twice"),
        ("1,GPU-b1", "GPU 1 is named twice"),
        ("0,1,2", "names 3 GPUs, and the profile needs 2"),
        ("0", "names 1 GPU, and the profile needs 2"),
    ],
)
def test_a_list_that_makes_no_sense(named: str, words: str) -> None:
    with pytest.raises(KdeployError) as caught:
        chosen(named)
    assert caught.value.code == USAGE
    assert words in caught.value.what


def test_a_box_with_too_few() -> None:
    error = refusal(ENVIRONMENT, wanted=8)
    assert "needs 8 GPUs, and this machine has 4" in error.what
    assert len(error.evidence) == 4
    assert refusal(ENVIRONMENT, wanted=1, inventory=[]).evidence == ("NVML lists none",)


def test_held_memory_names_pid_and_size() -> None:
    holders = [{"pid": 4711, "mib": 71_000}, {"pid": 4712, "mib": 300}]
    inventory = [gpu(0, used=71_300, processes=holders), *BOX[1:]]
    error = refusal(REFUSED, "0,1", inventory=inventory)
    (line,) = error.evidence
    assert line.startswith("GPU 0: 26587 MiB free of the 91035 MiB wanted")
    assert "pid 4711 71000 MiB, pid 4712 300 MiB" in line


def test_held_memory_of_nobody_that_can_be_seen() -> None:
    error = refusal(REFUSED, wanted=1, inventory=[gpu(0, used=71_000, processes=[])])
    assert "no visible process" in error.evidence[0]


def test_a_lease_names_its_deployment() -> None:
    error = refusal(REFUSED, "2,3", leased={BOX[2].uuid: "kimi-int4"})
    assert error.evidence == ("GPU 2: leased by kimi-int4",)


def test_every_obstacle_is_told_at_once() -> None:
    inventory = [gpu(0, used=90_000), gpu(1), gpu(2, used=90_000), gpu(3)]
    error = refusal(REFUSED, wanted=3, inventory=inventory, leased={inventory[3].uuid: "x"})
    assert [line[:5] for line in error.evidence] == ["GPU 0", "GPU 2", "GPU 3"]


def test_the_share_that_vllm_asks_for_decides() -> None:
    inventory = [gpu(0, used=TOTAL // 2)]
    assert chosen(wanted=1, inventory=inventory, needs=Needs(0.4)) == [0]
    assert refusal(REFUSED, wanted=1, inventory=inventory, needs=Needs())


def test_a_driver_that_does_not_tell_is_no_obstacle() -> None:
    assert chosen(wanted=1, inventory=[gpu(0, used=None)]) == [0]


def test_only_looking_refuses_nothing_that_is_merely_held() -> None:
    leased = {card.uuid: "x" for card in BOX}
    assert chosen("3,2", leased=leased, must_be_free=False) == [3, 2]
    assert chosen(leased=leased, must_be_free=False, wanted=4) == [0, 1, 2, 3]


# two switches of two GPUs
PAIRS = {(a, b): "PIX" if a // 2 == b // 2 else "NODE" for b in range(4) for a in range(b)}


def test_the_free_set_is_chosen_by_topology_and_explained() -> None:
    leased = {BOX[0].uuid: "other"}
    assert chosen(leased=leased) == [1, 2]  # without a topology the first ones
    assert chosen(leased=leased, pairs=PAIRS) == [2, 3]
    found = choose(BOX, 2, None, leased, Needs(0.93), pairs=PAIRS)
    text = explain(found, free_ones(BOX, leased, Needs(0.93)), PAIRS)
    assert text == "GPU 2, 3, the nearest that are free: on one PCIe switch (PIX); GPU 1 left free"


@pytest.mark.parametrize("word", ["c1:00", "c1:00.0", "0000:c1:00.0", "00000000:C1:00.0", "0:C1:00"])
def test_pci_addresses(word: str) -> None:
    inventory = [gpu(0)._replace(pci="00000000:01:00.0"), gpu(1)._replace(pci="00000000:c1:00.0")]
    assert chosen(word, wanted=1, inventory=inventory) == [1]
    with pytest.raises(KdeployError) as caught:
        chosen(f"1,{word}", inventory=inventory)
    assert "GPU 1 is named twice" in caught.value.what


def test_gpus_of_another_kind_are_told_apart() -> None:
    wrong = [gpu(0)._replace(capability="8.6"), *BOX[1:]]
    needs = Needs(0.93, "12.0", 95)
    assert chosen(inventory=wrong, needs=needs) == [1, 2]
    error = refusal(ENVIRONMENT, "0,1", inventory=wrong, needs=needs)
    assert "capability 8.6; the profile was made for 12.0" in error.evidence[0]
    assert "hardware.capability=8.6" in error.fix[-1]
    assert refusal(ENVIRONMENT, wanted=4, inventory=wrong, needs=needs)
    small = [card._replace(total_mib=49_140) for card in BOX]
    error = refusal(WILL_NOT_FIT, inventory=small, needs=needs)
    assert len(error.evidence) == 4
    assert "48.0 GiB of memory; the profile wants 95" in error.evidence[0]


def test_lost_ones_and_sliced_ones_are_never_chosen() -> None:
    lost = gpu(0)._replace(problem={"kind": "gpu-lost", "text": "GPU is lost"})
    inventory = [lost, gpu(1)._replace(mig=True), gpu(2), gpu(3)]
    assert chosen(inventory=inventory) == [2, 3]
    error = refusal(ENVIRONMENT, "0,1", inventory=inventory)
    assert ["GPU is lost" in error.evidence[0], "MIG is on" in error.evidence[1]] == [True, True]


def test_without_memory_figures_processes_decide() -> None:
    unified = gpu(0, used=None, processes=[{"pid": 4711, "mib": None}])
    error = refusal(REFUSED, wanted=1, inventory=[unified])
    assert error.evidence == ("GPU 0: its memory is not told, and it is in use by pid 4711",)
