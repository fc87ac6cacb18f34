"""Unified diffs, applied exactly: every line of a hunk must stand where the hunk says. Pure."""

import re
from typing import NamedTuple

HEAD = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class Hunk(NamedTuple):
    """One hunk: its head, the line of the old file where it begins (from 1), and its lines with their marks."""

    head: str
    start: int
    lines: list[str]

    @property
    def before(self) -> list[str]:
        """The lines that must be there."""
        return [line[1:] for line in self.lines if line[0] in " -"]

    @property
    def after(self) -> list[str]:
        """The lines that come in their place."""
        return [line[1:] for line in self.lines if line[0] in " +"]


class BadDiff(Exception):
    """The text is no unified diff of one file."""


class Drifted(Exception):
    """A hunk does not apply exactly; carries its number (from 1), its head and the first line that differs."""

    def __init__(self, number: int, hunk: Hunk, line: int, wanted: str, found: str | None) -> None:
        super().__init__(f"hunk {number} ({hunk.head}) does not apply at line {line}")
        self.number, self.hunk, self.line, self.wanted, self.found = number, hunk, line, wanted, found


def parse(text: str) -> list[Hunk]:
    """The hunks of a diff of one file.

    Raises:
        BadDiff: no hunk, counts that do not fit, or a second file.
    """
    hunks: list[Hunk] = []
    lines = text.removesuffix("\n").split("\n")
    at = 0
    files = 0
    while at < len(lines):
        match = HEAD.match(lines[at])
        if match is None:
            files += lines[at].startswith("--- ")
            if files > 1:
                raise BadDiff(f"line {at + 1}: a second file; a diff is of one module")
            if hunks and lines[at][:1] in (" ", "+", "-") and lines[at] != "-- ":  # which begins a mail's signature
                raise BadDiff(f"line {at + 1}: the hunk {hunks[-1].head} is longer than its head says")
            at += 1
            continue
        old, new = int(match[2] or 1), int(match[4] or 1)
        body: list[str] = []
        at += 1
        while old > 0 or new > 0:
            line = lines[at] if at < len(lines) else "\0"
            mark = line[:1] or " "  # editors strip the blank of an empty context line
            if mark not in " +-":
                raise BadDiff(f"line {at + 1}: the hunk {match[0]} is shorter than its head says")
            body.append(line or " ")
            old -= mark in " -"
            new -= mark in " +"
            at += 1
        if old or new:
            raise BadDiff(f"line {at}: the hunk {match[0]} is longer than its head says")
        start = int(match[1])
        hunks.append(Hunk(match[0], start if match[2] != "0" else start + 1, body))
        if at < len(lines) and lines[at].startswith("\\"):  # no newline at the end of the file
            at += 1
    if not hunks:
        raise BadDiff("no hunk in it")
    return hunks


def apply(source: str, hunks: list[Hunk]) -> str:
    """`source` with every hunk applied.

    Raises:
        Drifted: the first hunk whose lines are not all where it says.
    """
    old = source.split("\n")
    new: list[str] = []
    at = 0  # lines of the old file that are done
    for number, hunk in enumerate(hunks, 1):
        first = hunk.start - 1
        for offset, wanted in enumerate(hunk.before):
            place = first + offset
            found = old[place] if at <= place < len(old) else None
            if found != wanted:
                raise Drifted(number, hunk, place + 1, wanted, found)
        new += old[at:first] + hunk.after
        at = first + len(hunk.before)
    return "\n".join(new + old[at:])
