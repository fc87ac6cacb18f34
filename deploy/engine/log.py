"""Reading vLLM's log: bytes in, sightings out. Pure.

The log is bytes first: tqdm writes carriage returns, ranks interleave, colours come even into files, a flush can
cut a character or a line. Nothing here waits for a particular line: a phase counts from the first line that proves it.
"""

import re
from collections import deque
from typing import Any, NamedTuple

LINE_LIMIT = 1 << 16  # what of one line is looked at; vLLM's longest useful ones are about 4 KiB

RECENT = 4  # lines shown when nothing else explains a death

CSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")

# One cheap search decides whether a line is looked at again.
KEYWORDS = re.compile(
    rb"Completed \| |Loading model|load model|Filesystem type|Loading weights took|odel loading took|orch\.compile"
    rb"|Dynamo|Compiling a graph|Capturing CUDA|Graph capturing|CUDA graph memory|init engine|KV cache|Warming up"
    rb"|Starting vLLM server|enforce_eager=True|vLLM API server version|version |broadcast block"
    rb"|rror|rror:|xception|died|failed|killed|OutOfMemory|Bus error|too old|usage:"
)

SHARDS = re.compile(rb"(\d+)% Completed \| (\d+)/(\d+)")

# The first line that proves a phase, in the order of a start (texts of vLLM 0.20 to 0.33).
PHASE_PROOFS = (
    ("weights", re.compile(rb"Starting to load model|Loading model from scratch|Filesystem type for checkpoints")),
    (
        "compile",
        re.compile(rb"Dynamo bytecode transform|Compiling a graph|torch\.compile (took|is on)|Start compiling"),
    ),
    ("graphs", re.compile(rb"Capturing CUDA graphs|Profiling CUDA graph memory")),
    ("warmup", re.compile(rb"init engine \(|Warming up|Starting vLLM server")),
)
# vLLM's newer runner captures twice, the first time to estimate memory; only after the KV cache is it the real one.
GRAPHS_DONE = re.compile(rb"Graph capturing finished")
WEIGHTS_DONE = re.compile(rb"[Mm]odel loading took ([\d.]+) GiB")

FACTS = (
    ("engine_version", re.compile(rb"vLLM API server version (\S+)"), str),
    ("model_gib", re.compile(rb"[Mm]odel loading took ([\d.]+) GiB"), float),
    ("weights_s", re.compile(rb"Loading weights took ([\d.]+) seconds"), float),
    ("kv_cache_gib", re.compile(rb"Available KV cache memory: ([\d.]+) GiB"), float),
    ("kv_cache_tokens", re.compile(rb"KV cache size: ([\d,]+) tokens"), lambda text: int(text.replace(",", ""))),
    ("max_concurrency", re.compile(rb"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"), float),
)


class Line(NamedTuple):
    """One line worth keeping: its number in the file (from 1) and its text without colours."""

    number: int
    text: str


class Sighting(NamedTuple):
    """What the log proves: `phase` {phase}, `shards` {done, total, pass}, `fact` {name: value}, `trouble` {line}."""

    kind: str
    data: dict[str, Any]


def text_of(raw: bytes) -> str:
    """A line for people: no colours, no control characters, bounded."""
    text = CSI.sub(b"", raw).decode(errors="replace")
    return "".join(char if char.isprintable() else " " for char in text).strip()[:2000]


TROUBLE = re.compile(rb"rror|xception|died|killed|OutOfMemory|too old|failed")


class LogReader:
    """Feeds on bytes as they come; remembers what it has proved."""

    def __init__(self) -> None:
        self.rest = b""
        self.skipping = False  # the tail of an over-long line is being passed over
        self.lines = 0
        self.eager = False
        self.shards: tuple[int, int] | None = None
        self.passes = 1
        self.facts: dict[str, Any] = {}
        self.recent: deque[tuple[int, bytes]] = deque(maxlen=RECENT)

    def tail(self) -> list[Line]:
        """The last lines of the log that are not empty."""
        return [Line(number, text_of(raw)) for number, raw in self.recent]

    def feed(self, chunk: bytes) -> list[Sighting]:
        """What the next bytes of the log prove, in order."""
        sightings: list[Sighting] = []
        data = self.rest + chunk
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self.lines += 1
            if self.skipping:
                self.skipping = False
            else:
                self._line(data[start : min(end, start + LINE_LIMIT)], sightings)
            start = end + 1
        self.rest = data[start:]
        if len(self.rest) > LINE_LIMIT:
            if not self.skipping:
                self.lines += 1
                self._line(self.rest[:LINE_LIMIT], sightings)
                self.lines -= 1
            self.rest, self.skipping = b"", True
        return sightings

    def finish(self) -> list[Sighting]:
        """What the last, unfinished line proves: an engine that dies may leave one."""
        sightings: list[Sighting] = []
        if self.rest and not self.skipping:
            self.lines += 1
            self._line(self.rest, sightings)
        self.rest = b""
        return sightings

    def _line(self, raw: bytes, sightings: list[Sighting]) -> None:
        if not raw.strip():
            return
        if not self.recent:
            sightings.append(Sighting("phase", {"phase": "init"}))
        self.recent.append((self.lines, raw))
        if not KEYWORDS.search(raw):
            return
        for piece in CSI.sub(b"", raw).split(b"\r"):
            if piece.strip():
                self._piece(piece, sightings)

    def _piece(self, piece: bytes, sightings: list[Sighting]) -> None:
        if b"enforce_eager=True" in piece:
            self.eager = True
        for match in SHARDS.finditer(piece):
            self._shards(int(match[2]), int(match[3]), sightings)
        for phase, proof in PHASE_PROOFS:
            if proof.search(piece):
                sightings.append(Sighting("phase", {"phase": phase}))
        if "kv_cache_tokens" in self.facts and GRAPHS_DONE.search(piece):
            sightings.append(Sighting("phase", {"phase": "warmup"}))
        if WEIGHTS_DONE.search(piece):
            sightings.append(Sighting("phase", {"phase": "warmup" if self.eager else "compile"}))
        for name, pattern, convert in FACTS:
            found = pattern.search(piece)
            if found and name not in self.facts:
                self.facts[name] = convert(found[1].decode(errors="replace"))
                sightings.append(Sighting("fact", {name: self.facts[name]}))
        if TROUBLE.search(piece):
            line = Line(self.lines, text_of(piece))
            sightings.append(Sighting("trouble", {"line": line}))

    def _shards(self, done: int, total: int, sightings: list[Sighting]) -> None:
        """The bar goes forward within a pass; a draft model's bar is a second pass, not a step back."""
        if total == 0:
            return
        if self.shards is not None:
            before, of = self.shards
            if done <= before and total == of and done != 0:
                return
            if (done == 0 and before == of) or total != of:
                self.passes += 1
            elif done <= before:
                return
        self.shards = (done, total)
        sightings.append(Sighting("phase", {"phase": "weights"}))
        sightings.append(Sighting("shards", {"done": done, "total": total, "pass": self.passes}))
