"""Running the all-reduce test: one process for each rank, with a deadline on every step."""

import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deploy.doctor.verdict import (
    DECODE_BYTES,
    FAILED,
    HANGS,
    HEALTHY,
    PREFILL_BYTES,
    WRONG,
    Measured,
    Run,
    worlds,
)

PROGRAM = Path(__file__).resolve().parent / "collective_program.py"
JOIN_S = 180.0  # importing torch in eight processes from a cold disk, and making the communicators
END_S = 5.0


class Question(NamedTuple):
    """What is run: `interpreter` of the engine, ranks, backend (gloo or nccl), environment, seconds for each step."""

    interpreter: str
    ranks: int
    backend: str
    env: Mapping[str, str]
    step_s: float


class Rank:
    """One process and what it has told."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], errors: str) -> None:
        self.number, self.process, self.errors = number, process, errors
        self.stage = "start"
        self.done = False
        self.rest = b""

    def last_words(self) -> str:
        """The last line that it wrote to stderr."""
        try:
            with open(self.errors, errors="replace") as file:
                lines = [line.strip() for line in file if line.strip()]
        except OSError:
            return ""
        return lines[-1][:300] if lines else ""


def run(question: Question, progress: Callable[[str], None]) -> Run:
    """Run all ranks once. Nothing of them is left, whatever happens."""
    with tempfile.TemporaryDirectory(prefix="kdeploy-collective-") as folder:
        ranks: list[Rank] = []
        try:
            for number in range(question.ranks):
                ranks.append(_start(question, number, folder))
            return _follow(question, ranks, progress)
        except OSError as error:
            return Run(FAILED, detail=f"{question.interpreter}: {error.strerror}")
        finally:
            left = _end(ranks)
            if left:
                progress(f"pid {', '.join(map(str, left))} cannot be ended: stuck in the driver")


def _start(question: Question, number: int, folder: str) -> Rank:
    on_gpu = question.backend == "nccl"
    ask = {
        "rank": number,
        "ranks": question.ranks,
        "backend": question.backend,
        "rendezvous": os.path.join(folder, "rendezvous"),
        "worlds": worlds(question.ranks, only_all=bool(question.env.get("NCCL_GRAPH_FILE"))),
        "sizes": [*DECODE_BYTES, *(PREFILL_BYTES if on_gpu else PREFILL_BYTES[:1])],
        "join_s": JOIN_S,
    }
    errors = os.path.join(folder, f"rank{number}.err")
    local = {} if on_gpu else {"GLOO_SOCKET_IFNAME": "lo"}
    with open(errors, "wb") as file:
        process = subprocess.Popen(
            [question.interpreter, "-c", PROGRAM.read_text()],
            env={**local, **question.env, "KDEPLOY_COLLECTIVE": json.dumps(ask)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            start_new_session=True,
        )
    return Rank(number, process, errors)


def _follow(question: Question, ranks: Sequence[Rank], progress: Callable[[str], None]) -> Run:
    """Read what the ranks tell until all are done, one is wrong or gone, or nothing is told for too long."""
    measured: list[Measured] = []
    heard = time.monotonic()
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            assert rank.process.stdout is not None
            selector.register(rank.process.stdout, selectors.EVENT_READ, rank)
        while not all(rank.done for rank in ranks):
            joined = all(rank.stage not in ("start", "import", "join") for rank in ranks)
            deadline = heard + (question.step_s if joined else JOIN_S)
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                if time.monotonic() < deadline:
                    continue
                waited = question.step_s if joined else JOIN_S
                evidence = [f"rank {rank.number}: {rank.stage}  {rank.last_words()}".rstrip() for rank in ranks]
                stages = sorted({rank.stage for rank in ranks if not rank.done})
                return Run(HANGS, measured, f"nothing for {waited:g} s at {'; '.join(stages)}", evidence)
            for key, _ in ready:
                rank = key.data
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                    if not rank.done:
                        rank.process.wait(END_S)
                        detail = f"rank {rank.number} ended at {rank.stage} with code {rank.process.returncode}"
                        return Run(FAILED, measured, detail, [f"rank {rank.number}: {rank.last_words()}"])
                    continue
                heard = time.monotonic()
                for document in _documents(rank, chunk):
                    if "wrong" in document:
                        return Run(WRONG, measured, _wrong(document["wrong"]), [json.dumps(document["wrong"])])
                    if "measured" in document:
                        measured.append(Measured(**document["measured"]))
                        progress(f"{measured[-1].ranks} ranks, {measured[-1].bytes} bytes: {measured[-1].us:g} us")
    return Run(HEALTHY, measured)


def _documents(rank: Rank, chunk: bytes) -> list[dict[str, Any]]:
    """The whole lines of what a rank wrote; other libraries print there, too."""
    *lines, rank.rest = (rank.rest + chunk).split(b"\n")
    found = []
    for line in lines:
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            rank.stage = document.get("stage", rank.stage)
            rank.done = rank.done or bool(document.get("done"))
            found.append(document)
    return found


def _wrong(told: Mapping[str, Any]) -> str:
    got = "NaN" if told["got"] is None else f"{told['got']:g}"
    return (
        f"{told['count']} of {told['of']} sums are wrong on rank {told['rank']} ({told['ranks']} ranks, "
        f"{told['bytes']} bytes): value {told['at']} is {got}, not {told['expected']:g}"
    )


def _end(ranks: Sequence[Rank]) -> list[int]:
    """Kill what still runs; the pids that the kernel does not let go of within a moment."""
    for rank in ranks:
        if rank.process.poll() is None:
            rank.process.kill()
    left = []
    for rank in ranks:
        try:
            rank.process.wait(END_S)
        except subprocess.TimeoutExpired:
            left.append(rank.process.pid)
            rank.process.returncode = -9  # it is the kernel's now
        assert rank.process.stdout is not None
        rank.process.stdout.close()
    return left
