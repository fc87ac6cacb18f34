"""What a check says, and what it is said about. Values only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deploy.host.gpus import Inventory, NoGpus
from deploy.host.sysroot import Sysroot
from deploy.host.topology import Place

OK = "ok"
WARN = "warn"
FAIL = "fail"
UNKNOWN = "unknown"
STATUSES = (FAIL, WARN, UNKNOWN, OK)


class Finding(NamedTuple):
    """One answer: status, one line, what was read (file or value), and the exact remedies. Nothing is ever executed."""

    status: str
    summary: str
    evidence: Sequence[str] = ()
    fix: Sequence[str] = ()


class EngineFacts(NamedTuple):
    """What the engine's own interpreter says: vLLM, torch, the CUDA it was built for, GPU architectures in torch."""

    vllm: str | None
    torch: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    architectures: tuple[str, ...] = ()
    problem: str | None = None


class Space(NamedTuple):
    """A file system: bytes in all and bytes free."""

    total: int
    free: int


class Wanted(NamedTuple):
    """What a profile asks of the host. `folder`: of the checkpoint; `checkpoint_bytes`: of its weights, where known;
    `checkpoint`, `engine_finding`, `port`: what is to be said about each of them."""

    profile: str
    gpus: int
    ranks: int
    capability: str | None = None
    memory_gib: float | None = None
    env: Mapping[str, str | None] = {}
    folder: str | None = None
    checkpoint_bytes: int | None = None
    checkpoint: Finding | None = None
    engine: EngineFacts | None = None
    engine_finding: Finding | None = None
    port: Finding | None = None


@dataclass(frozen=True)
class Subject:
    """A host as the checks see it. `places`: of each GPU that /sys shows, in bus order; `space`: by path."""

    files: Sysroot
    inventory: Inventory | None = None
    no_gpus: NoGpus | None = None
    places: Sequence[Place] = ()
    wanted: Wanted | None = None
    space: Mapping[str, Space] = field(default_factory=dict)
    lease_folder: Finding | None = None
    wall: float | None = None
    newest_file: float | None = None  # when the newest file of kdeploy was written
    kernel_log: Sequence[str] | None = None  # since the boot; None where this user may not read it
    holders: Sequence[str] = ()  # processes on GPUs that are not of a deployment of ours

    @property
    def gpu_count(self) -> int:
        """GPUs that this is about: the profile's, else the machine's."""
        return self.wanted.gpus if self.wanted is not None else len(self.places)

    @property
    def peers(self) -> bool:
        """Whether GPUs talk to each other."""
        return self.gpu_count > 1


class Check(NamedTuple):
    """One row: a stable name, what it asks, why it matters here, where the rule comes from, and the function.

    The function answers None where the question makes no sense (no GPUs, no profile).
    """

    name: str
    asks: str
    why: str
    source: str
    run: Callable[[Subject], Finding | None]


class Result(NamedTuple):
    """A check's answer beside its row."""

    check: Check
    finding: Finding

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "check": self.check.name,
            "status": self.finding.status,
            "summary": self.finding.summary,
            "evidence": list(self.finding.evidence),
            "why": self.check.why,
            "source": self.check.source,
            "fix": list(self.finding.fix),
        }
