"""How GPUs hang together, and which of them are near to each other."""

import itertools
from pathlib import Path

import pytest

from deploy.host.sysroot import Sysroot
from deploy.host.topology import (
    Group,
    Place,
    distance,
    groups,
    levels_between,
    nearest,
    read_place,
    short_address,
    widest,
)
from tests.host_tree import build

# Eight GPUs on two sockets; two switches on each, two GPUs below each switch.
SWITCHED = {
    number: Place(
        f"0000:{number:02x}:00.0",
        f"pci0000:{number // 2}0",
        (f"0000:{number // 2}0:01.0", f"0000:{number // 2}1:00.0", f"0000:{number // 2}2:0{number % 2}.0"),
        number // 4,
    )
    for number in range(8)
}
# Eight GPUs directly on the root ports of two sockets.
DIRECT = {
    number: Place(f"0000:{number:02x}:00.0", f"pci0000:{number}0", (f"0000:{number}0:01.1",), number // 4)
    for number in range(8)
}


def flat(found: list[Group]) -> list[tuple[str, tuple[int, ...]]]:
    """Level and GPUs of all groups, outer ones first."""
    return [entry for group in found for entry in [(group.level, group.gpus), *flat(list(group.inside))]]


def test_levels_by_the_bridges_above() -> None:
    assert distance(SWITCHED[0], SWITCHED[1]) == "PIX"
    assert distance(SWITCHED[0], SWITCHED[2]) == "NODE"
    assert distance(SWITCHED[0], SWITCHED[4]) == "SYS"
    one, other = (Place("a", "pci0000:00", (f"0000:00:0{port}.0",), 0) for port in (1, 2))
    assert distance(one, other) == "PHB"
    cascade = [Place("a", "pci0000:00", ("p", "u", "d", f"u{number}", f"d{number}"), 0) for number in (1, 2)]
    assert distance(*cascade) == "PXB"
    assert distance(Place("a", None, (), None), one) is None
    assert distance(Place("a", "pci0000:00", (), None), Place("b", "pci0000:10", (), 0)) is None


def test_nvml_is_believed_before_sysfs() -> None:
    pairs = levels_between(DIRECT, {(0, 1): "PIX", (0, 2): None})
    assert (pairs[0, 1], pairs[0, 2], pairs[0, 7]) == ("PIX", "NODE", "SYS")
    unknown = {number: Place(str(number), None, (), None) for number in range(2)}
    assert levels_between(unknown, {}) == {(0, 1): "SYS"}


def test_groups_of_a_box_with_switches() -> None:
    pairs = levels_between(SWITCHED, {})
    found = groups(range(8), pairs, SWITCHED)
    assert [group.name for group in found] == ["NUMA 0", "NUMA 1"]
    assert [group.gpus for group in found[0].inside] == [(0, 1), (2, 3)]
    assert {group.level for group in found[0].inside} == {"PIX"}
    assert found[0].inside[1].name == "switch 0000:11:00.0"
    assert groups(range(8), pairs)[0].name == "socket"


def test_groups_of_a_box_without_switches() -> None:
    found = groups(range(8), levels_between(DIRECT, {}), DIRECT)
    assert [group.gpus for group in found] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert {level for level, numbers in flat(found) if len(numbers) == 1} == {"GPU"}
    assert groups([3], {}) == [Group("GPU", "", (3,))]
    assert groups([], {}) == []


@pytest.mark.parametrize(
    ("free", "wanted", "expected"),
    [
        (range(8), 2, [0, 1]),
        (range(8), 4, [0, 1, 2, 3]),
        (range(8), 8, list(range(8))),
        ([1, 2, 3, 4, 5, 6, 7], 2, [2, 3]),
        ([1, 2, 3, 4, 5, 6, 7], 4, [4, 5, 6, 7]),
        ([1, 2, 3, 4, 5, 6, 7], 1, [1]),  # the one whose neighbour is taken
        ([0, 3, 4, 7], 2, [0, 3]),
        ([0, 5, 6], 2, [5, 6]),
        ([0, 1, 2, 3, 4, 5, 6], 1, [6]),
    ],
)
def test_the_nearest_free_ones(free: range | list[int], wanted: int, expected: list[int]) -> None:
    assert nearest(list(free), wanted, levels_between(SWITCHED, {})) == expected


def test_many_gpus_are_chosen_without_trying_every_set() -> None:
    pairs = {pair: "PIX" if pair[0] // 16 == pair[1] // 16 else "SYS" for pair in itertools.combinations(range(32), 2)}
    assert nearest(range(1, 32), 16, pairs) == list(range(16, 32))


def test_widest() -> None:
    pairs = levels_between(SWITCHED, {})
    assert widest([0, 1], pairs) == "PIX"
    assert widest([5, 4, 0], pairs) == "SYS"
    assert widest([3], pairs) is None


def test_addresses_are_those_of_sysfs() -> None:
    assert short_address("00000000:C1:00.0") == "0000:c1:00.0"
    assert short_address("00010000:01:00.0") == "10000:01:00.0"


def test_places_are_read_from_sysfs(tmp_path: Path) -> None:
    files = Sysroot(str(build("two-sockets-switches", tmp_path)))
    buses = ("04", "05", "44", "45", "84", "85", "c4", "c5")
    places = {number: read_place(f"00000000:{bus.upper()}:00.0", files) for number, bus in enumerate(buses)}
    first = places[0]
    assert (first.address, first.root, first.numa) == ("0000:04:00.0", "pci0000:00", 0)
    assert first.bridges == ("0000:00:01.1", "0000:01:00.0", "0000:02:00.0")
    assert [link.address for link in first.links] == ["0000:04:00.0", *reversed(first.bridges)]
    assert (first.links[0].speed, first.links[0].speed_max, first.links[0].width) == (2.5, 32.0, 16)
    pairs = levels_between(places, {})
    assert (pairs[0, 1], pairs[0, 2], pairs[0, 4]) == ("PIX", "NODE", "SYS")
    assert [group.name for group in groups(range(8), pairs, places)[0].inside] == [
        "switch 0000:01:00.0",
        "switch 0000:41:00.0",
    ]
    unknown = read_place("00000000:99:00.0", files)
    assert (unknown.root, unknown.bridges, unknown.numa, unknown.links) == (None, (), None, ())


def test_a_link_that_leads_out_of_the_copy_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/out").symlink_to("/proc/self")
    assert Sysroot(str(tmp_path)).resolve("/sys/out") is None
