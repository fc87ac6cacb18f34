"""Which GPUs a launch gets."""

from typing import Any

import pytest

from deploy.errors import ENVIRONMENT, REFUSED, USAGE, KdeployError
from deploy.host.gpus import GpuState
from deploy.plan.placement import choose

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
    return [found.index for found in choose(inventory, wanted, named, leased, more.pop("utilization", 0.93), **more)]


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
    (found,) = choose(BOX, 1, "2", {}, None)
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
        ("MIG-1,0", "no GPU 'MIG-1'"),
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
    assert chosen(wanted=1, inventory=inventory, utilization=0.4) == [0]
    assert refusal(REFUSED, wanted=1, inventory=inventory, utilization=None)


def test_a_driver_that_does_not_tell_is_no_obstacle() -> None:
    assert chosen(wanted=1, inventory=[gpu(0, used=None)]) == [0]


def test_only_looking_refuses_nothing_that_is_merely_held() -> None:
    leased = {card.uuid: "x" for card in BOX}
    assert chosen("3,2", leased=leased, must_be_free=False) == [3, 2]
    assert chosen(leased=leased, must_be_free=False, wanted=4) == [0, 1, 2, 3]
