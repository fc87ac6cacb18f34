"""Where each GPU hangs on the PCIe fabric, how far two of them are apart, and which ones belong together.

Levels are nvidia-smi's own words: PIX (one switch), PXB (several switches), PHB (one root complex), NODE (one socket),
SYS (across sockets).
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from deploy.host.sysroot import Sysroot

LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
WORDS = {
    "PIX": "on one PCIe switch",
    "PXB": "behind one root port",
    "PHB": "on one root complex",
    "NODE": "on one socket",
    "SYS": "across sockets",
}
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
EXHAUSTIVE = 20_000  # sets looked at one by one: 8 of 16 are 12870

Pairs = Mapping[tuple[int, int], str]


class Link(NamedTuple):
    """One PCIe link as its lower end tells it. Speeds in GT/s, None where sysfs does not tell."""

    address: str
    speed: float | None
    speed_max: float | None
    width: int | None
    width_max: int | None


class Place(NamedTuple):
    """Where a GPU hangs: root complex (pci0000:c0), the bridges from the root port down, NUMA node (None: not told)."""

    address: str
    root: str | None
    bridges: tuple[str, ...]
    numa: int | None
    links: tuple[Link, ...] = ()  # of the GPU first, then of each bridge above it


class Group(NamedTuple):
    """GPUs that belong together: a level of LEVELS (or GPU for one alone), a name, GPU numbers, and groups inside."""

    level: str
    name: str
    gpus: tuple[int, ...]
    inside: tuple["Group", ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "level": self.level,
            "name": self.name,
            "gpus": list(self.gpus),
            "inside": [group.to_json() for group in self.inside],
        }


def short_address(pci: str) -> str:
    """NVML's 00000000:C1:00.0 as sysfs writes it: 0000:c1:00.0."""
    domain, _, rest = pci.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def read_place(pci: str, files: Sysroot) -> Place:
    """The place of the device with this address; of one that sysfs does not know, only the address."""
    address = short_address(pci)
    device = f"/sys/bus/pci/devices/{address}"
    real = files.resolve(device)
    if real is None:
        return Place(address, None, (), None)
    words = real.split("/")
    root = next((word for word in words if re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", word)), None)
    bridges = tuple(word for word in words[:-1] if ADDRESS.fullmatch(word))
    node = files.number(f"{device}/numa_node")
    links = tuple(_link(name, files) for name in (address, *reversed(bridges)))
    return Place(address, root, bridges, None if node is None or node < 0 else node, links)


def _link(address: str, files: Sysroot) -> Link:
    folder = f"/sys/bus/pci/devices/{address}"
    return Link(
        address,
        _speed(files.text(f"{folder}/current_link_speed")),
        _speed(files.text(f"{folder}/max_link_speed")),
        files.number(f"{folder}/current_link_width"),
        files.number(f"{folder}/max_link_width"),
    )


def _speed(text: str | None) -> float | None:
    found = re.match(r"([\d.]+) GT/s", text or "")
    return float(found[1]) if found else None


def distance(a: Place, b: Place) -> str | None:
    """The level between two places; None when it cannot be told from them."""
    if a.root is None or b.root is None:
        return None
    if a.root == b.root:
        shared = len(
            list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a.bridges, b.bridges, strict=False)))
        )
        if not shared:
            return "PHB"
        # root port and upstream port of one switch are shared; below it each GPU has a downstream port of its own
        below = max(len(a.bridges), len(b.bridges)) - shared
        return "PIX" if below <= 1 else "PXB"
    if a.numa is None or b.numa is None:
        return None
    return "NODE" if a.numa == b.numa else "SYS"


def levels_between(
    places: Mapping[int, Place], told: Mapping[tuple[int, int], str | None]
) -> dict[tuple[int, int], str]:
    """The level of each pair: NVML's word, else what sysfs shows; a pair that nobody tells is SYS.

    Args:
        places: by GPU number.
        told: NVML's levels, by two GPU numbers, the smaller first.
    """
    found = {}
    for a, b in itertools.combinations(sorted(places), 2):
        level = told.get((a, b)) or distance(places[a], places[b])
        found[a, b] = level if level in LEVELS else "PIX" if level == "INT" else "SYS"
    return found


def groups(numbers: Sequence[int], pairs: Pairs, places: Mapping[int, Place] | None = None) -> list[Group]:
    """The GPUs as a tree: sockets, in them root complexes, in them switches; a level that says nothing is left out."""
    return _split(sorted(numbers), pairs, places or {}, ["NODE", "PHB", "PXB", "PIX"])


def _split(numbers: list[int], pairs: Pairs, places: Mapping[int, Place], levels: list[str]) -> list[Group]:
    if not levels or len(numbers) == 1:
        return [Group("GPU", "", (number,)) for number in numbers]
    level, *finer = levels
    within = LEVELS.index(level)
    parts: list[list[int]] = []
    for number in numbers:
        home = next((part for part in parts if LEVELS.index(pairs[part[0], number]) <= within), None)
        if home is None:
            parts.append([number])
        else:
            home.append(number)
    found = []
    for part in parts:
        inside = _split(part, pairs, places, finer)
        if len(inside) == 1 and inside[0].gpus == tuple(part):
            found += inside  # the finer name says more
        else:
            found.append(Group(level, _name(level, part, places), tuple(part), tuple(inside)))
    return found


def _name(level: str, part: list[int], places: Mapping[int, Place]) -> str:
    here = [places[number] for number in part if number in places]
    if level == "NODE":
        nodes = {place.numa for place in here}
        return f"NUMA {nodes.pop()}" if len(nodes) == 1 and None not in nodes else "socket"
    if level == "PHB":
        roots = {place.root for place in here}
        return f"root {roots.pop()}" if len(roots) == 1 and None not in roots else "root complex"
    shared = [
        names[0]
        for names in zip(*(place.bridges for place in here), strict=False)
        if len(here) > 1 and len(set(names)) == 1
    ]
    return f"switch {shared[-1]}" if shared else "switch"


def nearest(free: Sequence[int], wanted: int, pairs: Pairs) -> list[int]:
    """Those `wanted` of `free` that are nearest to each other, leaving the others as near to each other as can be."""
    free = sorted(free)

    def far(numbers: Iterable[int]) -> tuple[int, int]:
        ranks = [LEVELS.index(pairs[pair]) for pair in itertools.combinations(sorted(numbers), 2)]
        return max(ranks, default=0), sum(ranks)

    def cost(chosen: Iterable[int]) -> tuple[Any, ...]:
        chosen = tuple(chosen)
        others = [number for number in free if number not in chosen]
        return (*far(chosen), *reversed(far(others)), chosen)

    if _count(len(free), wanted) <= EXHAUSTIVE:
        return list(min(itertools.combinations(free, wanted), key=cost))
    best: tuple[int, ...] = ()
    for first in free:  # too many sets: grow one from each GPU
        grown = [first]
        while len(grown) < wanted:
            left = [number for number in free if number not in grown]
            grown.append(min(left, key=lambda number: (far(sorted([*grown, number])), number)))
        candidate = tuple(sorted(grown))
        best = min(best or candidate, candidate, key=cost)
    return list(best)


def _count(of: int, wanted: int) -> int:
    from math import comb

    return comb(of, wanted)


def widest(numbers: Sequence[int], pairs: Pairs) -> str | None:
    """The farthest level between any two of these GPUs; None for one alone."""
    found = [LEVELS.index(pairs[pair]) for pair in itertools.combinations(sorted(numbers), 2)]
    return LEVELS[max(found)] if found else None
