"""Which bytes of a checkpoint may be read ahead now, and which may go. Pure.

All positions are bytes from the start of the checkpoint: its files one after the other, in the loader's order.
"""

from collections.abc import Sequence
from typing import NamedTuple

from deploy.host.memory import Memory

SHARE = 0.6  # of the memory that is available
FREE_SHARE = 0.08  # below this much available memory nothing more is read
CONTEND_AFTER = 512 << 20
CONTEND_RATE = 1e9


class Block(NamedTuple):
    """A range of one file: its number, where it begins in it, its length, and where it begins in the checkpoint."""

    file: int
    offset: int
    length: int
    start: int


def blocks(sizes: Sequence[int], size: int) -> list[Block]:
    """The checkpoint in blocks of at most `size` bytes, in the order in which they are wanted."""
    found = []
    start = 0
    for number, length in enumerate(sizes):
        for offset in range(0, length, size):
            found.append(Block(number, offset, min(size, length - offset), start + offset))
        start += length
    return found


def fits(total: int, memory: Memory, reserve: int) -> bool:
    """Whether the whole checkpoint can stay in the page cache beside the engine."""
    return total <= room(memory, reserve)


def room(memory: Memory, reserve: int) -> int:
    """Bytes that may be held ahead of the slowest rank; `reserve` is what the engine will still take."""
    return int(SHARE * max(0, memory.available - reserve))


def horizon(position: int, total: int, memory: Memory, reserve: int, limit: int | None = None) -> int:
    """Up to where may be read while the slowest rank is at `position`."""
    if memory.available < FREE_SHARE * memory.total:
        return position
    ahead = room(memory, reserve)
    end = total if total <= ahead else min(total, position + ahead)
    return end if limit is None else min(end, position + limit)


def consumed(sizes: Sequence[int], position: int) -> list[int]:
    """Numbers of the files that lie wholly behind the slowest rank, one file's distance kept."""
    passed = []
    start = 0
    for number, length in enumerate(sizes):
        start += length
        if start > position:
            break
        passed.append(number)
    return passed[:-1]


def only_contends(read: int, rate: float, overtaken: int) -> bool:
    """Whether reading ahead helps nobody: a slow disk, and a loader that keeps catching up with us."""
    return read >= CONTEND_AFTER and rate < CONTEND_RATE and overtaken >= 3
