"""The lines of a log that speak of trouble, folded: the same words of eight ranks are one, in bounded memory. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from deploy.engine.knowledge import BENIGN, SYMPTOM, Entry
from deploy.engine.log import Line

KEPT = 256  # different lines kept from the beginning, and as many from the end

# `(Worker_TP3 pid=99) ERROR 12-01 10:00:00 [core.py:1512] ` and what container runtimes put before it
PROCESS = re.compile(r"\((\w[\w.]*?)(?:[ _](?:rank=|TP|PP\d+_TP))?(\d+)?(?:_\w+)? pid=\d+\)")
RECORD = re.compile(r"^(?:.{0,80}? )?(?:\(\w[^)]*\)\s*)*(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\]\s?")
PREFIX = re.compile(r"^(?:\(\w[^)]*pid=\d+\)\s*)+")
CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+")

WORKER, CORE, SERVER = range(3)  # in the order of trust


@dataclass
class Told:
    """One thing that the log says, however often and by whichever ranks."""

    line: Line
    words: str
    depth: int
    entry: Entry | None
    match: re.Match[str] | None
    times: int = 1
    last: int = 0
    ranks: set[int] = field(default_factory=set)


class Trouble:
    """Collects lines as they come."""

    def __init__(self, known: Sequence[Entry]) -> None:
        self.known = known
        self.first: dict[tuple[int, str], Told] = {}
        self.late: dict[tuple[int, str], Told] = {}

    def append(self, line: Line) -> None:
        """Take one more line into account."""
        depth, rank = _speaker(line.text)
        words = _words(line.text)
        key = (depth, CHANGING.sub("#", words))
        told = self.first.get(key) or self.late.get(key)
        if told is None:
            entry, match = look_up(words, self.known)
            if entry is not None and entry.severity in (BENIGN, SYMPTOM):
                return
            told = Told(line, words, depth, entry, match, 0)
            self._keep(key, told)
        elif key in self.late:  # stays among the latest
            self.late[key] = self.late.pop(key)
        told.times += 1
        told.last = line.number
        if rank is not None:
            told.ranks.add(rank)

    def _keep(self, key: tuple[int, str], told: Told) -> None:
        if len(self.first) < KEPT:
            self.first[key] = told
            return
        if len(self.late) >= KEPT:
            del self.late[next(iter(self.late))]
        self.late[key] = told

    def all(self) -> list[Told]:
        """What was told, in the order in which it was told first."""
        return sorted([*self.first.values(), *self.late.values()], key=lambda told: told.line.number)


def gathered(lines: Iterable[Line], known: Sequence[Entry]) -> Trouble:
    """The trouble that these lines speak of."""
    trouble = Trouble(known)
    for line in lines:
        trouble.append(line)
    return trouble


def look_up(words: str, known: Sequence[Entry]) -> tuple[Entry, re.Match[str]] | tuple[None, None]:
    """The first entry that knows a line."""
    for entry in known:
        match = entry.pattern.search(words)
        if match:
            return entry, match
    return None, None


def _words(text: str) -> str:
    record = RECORD.match(text)
    return text[record.end() :] if record else PREFIX.sub("", text)


def _speaker(text: str) -> tuple[int, int | None]:
    """How deep the process stands that wrote the line, and its rank. Of nested prefixes the innermost counts; a line
    without any is native code's, or the server's own when its record says so."""
    found = PROCESS.findall(text[:300])
    if not found:
        return CORE, None
    name, number = found[-1]
    if "Worker" in name:
        return WORKER, int(number) if number else None
    return (SERVER if name.startswith(("APIServer", "ApiServer")) else CORE), None
