"""Reading vLLM's log: bytes in, sightings out. Pure.

The log is bytes first: tqdm writes carriage returns, ranks interleave, colours come even into files, a flush can
cut a character or a line. Nothing here waits for a particular line: a phase counts from the first piece that proves
it. A piece ends at a newline or a carriage return, so that a bar is read while it still moves.
"""

import re
from typing import Any, NamedTuple

PIECE_LIMIT = 1 << 16  # what of one piece is looked at; vLLM's longest useful ones are about 4 KiB

RECENT = 4  # lines shown when nothing else explains a death
TAIL_BYTES = 1 << 14

CSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
ENDS = re.compile(rb"[\r\n]")

TROUBLE_WORDS = (
    b"rror",
    b"xception",
    b"ailed",
    b" died",
    b"illed",
    b"OutOfMemory",
    b"out of memory",
    b"too old",
    b"Segmentation",
    b"segfault",
    b"SIGBUS",
    b"Xid",
    b"fallen off",
)

# Only a piece with one of these is looked at again. Plain searches, since an alternation is several times slower.
WORDS = (
    *TROUBLE_WORDS,
    b"% Completed |",
    b"Starting to load model",
    b"Loading model from scratch",
    b"Filesystem type",
    b"Loading weights took",
    b"odel loading took",
    b"torch.compile",
    b"Dynamo bytecode",
    b"Compiling a graph",
    b"Directly load",
    b"Warming up model for",
    b"CUDA graph",
    b"Graph capturing",
    b"KV cache size",
    b"KV cache memory",
    b"Maximum concurrency",
    b"init engine (",
    b"Starting vLLM server",
    b"Initializing a V1",
    b"vLLM API server version",
    b"[kdeploy-patch]",
    b"non-default args",
    b"Application startup complete",
    b"shared memory broadcast block",
)

SHARDS = re.compile(rb"(\d+)% Completed \| (\d+)/(\d+) ")

# What proves a phase, in the order of a start (texts of vLLM 0.20 to 0.33); each needs its word above. Not among
# them: "Warming up FlashInfer", "JIT kernel warmup" and the like, since graphs are captured after them.
PHASE_PROOFS = (
    (
        "weights",
        re.compile(
            rb"Starting to load model|Loading model from scratch|Filesystem type for checkpoints|% Completed \|"
        ),
    ),
    (
        "compile",
        re.compile(
            rb"Starting torch\.compile|Dynamo bytecode transform|Compiling a graph|Directly load (the compiled|AOT)"
            rb"|torch\.compile took|Warming up model for the compilation"
        ),
    ),
    ("graphs", re.compile(rb"Capturing (\S+ )*CUDA graphs|Profiling CUDA graph memory")),
    ("warmup", re.compile(rb"CPU KV cache size|init engine \(|Starting vLLM server")),
)
# vLLM's newer runner captures twice, the first time to estimate memory; only after the KV cache is it the real one.
GRAPHS_DONE = re.compile(rb"Graph capturing finished")
WEIGHTS_DONE = re.compile(rb"[Mm]odel loading took ([\d.]+) GiB")
EAGER = b"enforce_eager=True"  # nothing will be compiled or captured

FACTS = (
    ("engine_version", re.compile(rb"(?:Initializing a V1 LLM engine \(v|vLLM API server version )([^\s)]+)"), str),
    ("model_gib", WEIGHTS_DONE, float),
    ("weights_s", re.compile(rb"Loading weights took ([\d.]+) seconds"), float),
    ("kv_cache_gib", re.compile(rb"Available KV cache memory: ([\d.]+) GiB"), float),
    ("kv_cache_tokens", re.compile(rb"KV cache size: ([\d,]+) tokens"), lambda text: int(text.replace(",", ""))),
    ("max_concurrency", re.compile(rb"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"), float),
)

# A patch's own line; vLLM puts its prefix before the lines of its processes.
PATCH = re.compile(rb"\[kdeploy-patch\] (\S+) (applied|needless|refused) \(pid (\d+), ([^)]*)\): ([^\r\n]*)")

TROUBLE = re.compile(b"|".join(map(re.escape, TROUBLE_WORDS)))
# What a server says at these levels never ends it; container runtimes put their own stamps before it.
HARMLESS = re.compile(
    rb"\s*(\([^)]*\) ?)*(INFO|DEBUG|WARNING)\b|.{0,160}?\b(INFO|DEBUG|WARNING) \d\d-\d\d \d\d:\d\d:\d\d "
)
WAITING = b"shared memory broadcast block"  # a sign of a hang that is said as information

# What a diagnosis wants to know about the launch.
RANKS = re.compile(rb"tensor_parallel_size=(\d+), pipeline_parallel_size=(\d+)")
SHARE = re.compile(rb"'gpu_memory_utilization': ([\d.]+)")
SERVES = b"Application startup complete"


class Line(NamedTuple):
    """One line worth keeping: its number in the file (from 1) and its text without colours."""

    number: int
    text: str


class Sighting(NamedTuple):
    """What the log proves: `phase` {phase}, `shards` {done, total, pass}, `fact` {name: value}, `trouble` {line},
    `patch` {patch, outcome, pid, process, why, line, text}."""

    kind: str
    data: dict[str, Any]


def text_of(raw: bytes) -> str:
    """A line for people: no colours, no control characters, bounded."""
    text = CSI.sub(b"", raw[:8000]).decode(errors="replace")
    return "".join(char if char.isprintable() else " " for char in text).strip()[:2000]


class LogReader:
    """Feeds on bytes as they come; remembers what it has proved. How the bytes are cut makes no difference."""

    def __init__(self) -> None:
        self.rest = b""  # of a piece that has not ended yet
        self.skipping = False  # the tail of an over-long piece is being passed over
        self.begun = False
        self.newlines = 0
        self.end = b""  # the last bytes
        self.eager = False
        self.shards: tuple[int, int] | None = None
        self.passes = 1
        self.facts: dict[str, Any] = {}
        self.ranks: int | None = None
        self.utilization: float | None = None
        self.serving_since: int | None = None  # line
        self.waits = 0  # how often a process has said that it waits for the others

    def tail(self) -> list[Line]:
        """The last lines of the log that are not empty; of a line that was drawn over, what was drawn last."""
        first = self.newlines + 1 - self.end.count(b"\n")
        drawn = (raw.rstrip(b"\r").rpartition(b"\r")[2] for raw in self.end.split(b"\n"))
        lines = [Line(number, text_of(raw)) for number, raw in enumerate(drawn, first)]
        return [line for line in lines if line.text][-RECENT:]

    def feed(self, chunk: bytes) -> list[Sighting]:
        """What the next bytes of the log prove, in order."""
        sightings: list[Sighting] = []
        self.end = (self.end + chunk)[-TAIL_BYTES:]
        if not self.begun and chunk.strip():
            self.begun = True
            sightings.append(Sighting("phase", {"phase": "init"}))
        if self.skipping:
            end = ENDS.search(chunk)
            if end is None:
                return sightings
            chunk, self.skipping = chunk[end.start() :], False
        data = self.rest + chunk
        whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self.rest = data[whole:]
        self._block(data[:whole], sightings)
        if len(self.rest) > PIECE_LIMIT:
            self._piece(self.rest, self.newlines + 1, sightings)
            self.rest, self.skipping = b"", True
        return sightings

    def finish(self) -> list[Sighting]:
        """What the last, unfinished piece proves: an engine that dies may leave one."""
        sightings: list[Sighting] = []
        self._piece(self.rest, self.newlines + 1, sightings)
        self.rest = b""
        return sightings

    def _block(self, block: bytes, sightings: list[Sighting]) -> None:
        """Whole pieces: find those that hold one of the words."""
        counted = 0  # how far newlines have been counted
        done = 0  # how far pieces have been read
        for hit in _places(block):
            if hit < done:
                continue
            start = max(block.rfind(b"\n", done, hit), block.rfind(b"\r", done, hit), done - 1) + 1
            end = ENDS.search(block, hit)
            done = end.start() + 1 if end else len(block)
            self.newlines += block.count(b"\n", counted, start)
            counted = start
            self._piece(block[start:done], self.newlines + 1, sightings)
        self.newlines += block.count(b"\n", counted)

    def _piece(self, raw: bytes, number: int, sightings: list[Sighting]) -> None:
        piece = CSI.sub(b"", raw[:PIECE_LIMIT])
        if b"Initializing a V1" in piece and EAGER in piece:
            self.eager = True
        self._launch_facts(piece, number)
        for phase, proof in PHASE_PROOFS:
            if proof.search(piece):
                sightings.append(Sighting("phase", {"phase": phase}))
        for match in SHARDS.finditer(piece):
            self._shards(int(match[2]), int(match[3]), sightings)
        if "kv_cache_tokens" in self.facts and GRAPHS_DONE.search(piece):
            sightings.append(Sighting("phase", {"phase": "warmup"}))
        if WEIGHTS_DONE.search(piece):
            sightings.append(Sighting("phase", {"phase": "warmup" if self.eager else "compile"}))
        for name, pattern, convert in FACTS:
            found = pattern.search(piece)
            if found and name not in self.facts:
                self.facts[name] = convert(found[1].decode(errors="replace"))
                sightings.append(Sighting("fact", {name: self.facts[name]}))
        for match in PATCH.finditer(piece):
            name, outcome, pid, process, why = (text_of(part) for part in match.groups())
            mark = {"patch": name, "outcome": outcome, "pid": int(pid), "process": process, "why": why}
            sightings.append(Sighting("patch", {**mark, "line": number, "text": text_of(match[0])}))
        if TROUBLE.search(piece) and not HARMLESS.match(piece):
            sightings.append(Sighting("trouble", {"line": Line(number, text_of(piece))}))

    def _launch_facts(self, piece: bytes, number: int) -> None:
        ranks, share = RANKS.search(piece), SHARE.search(piece)
        if ranks:
            self.ranks = int(ranks[1]) * int(ranks[2])
        if share:
            self.utilization = float(share[1])
        self.waits += WAITING in piece
        if SERVES in piece and self.serving_since is None:
            self.serving_since = number

    def _shards(self, done: int, total: int, sightings: list[Sighting]) -> None:
        """The bar goes forward within a pass; a draft model's bar is a second pass, not a step back."""
        if total == 0:
            return
        if self.shards is not None:
            before, of = self.shards
            if total != of or (done == 0 and before == of):
                self.passes += 1
            elif done <= before:
                return
        self.shards = (done, total)
        sightings.append(Sighting("shards", {"done": done, "total": total, "pass": self.passes}))


def _places(block: bytes) -> list[int]:
    """Where in `block` one of `WORDS` stands, in order."""
    places = []
    for word in WORDS:
        place = block.find(word)
        while place >= 0:
            places.append(place)
            place = block.find(word, place + len(word))
    return sorted(places)
