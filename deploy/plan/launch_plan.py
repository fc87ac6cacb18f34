"""LaunchPlan: everything that one launch is, as data that survives the program that made it.

Written to plan.json and read again by supervisors, by `restart`, and by newer versions of kdeploy: hence the
version, plain JSON types, and no default that is worked out at reading time.
"""

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

VERSION = 1


@dataclass(frozen=True)
class Shard:
    """One weight file: its name inside the checkpoint and its size in bytes."""

    name: str
    size: int


@dataclass(frozen=True)
class Gpu:
    """One leased GPU: index in PCI bus order, and UUID."""

    index: int
    uuid: str


@dataclass(frozen=True)
class LaunchPlan:
    """One launch. Times are seconds; sizes bytes; `argv` and `env` hold secrets as `${env:…}`/`${file:…}`."""

    name: str
    profile: str
    profile_file: str
    digest: str
    model: str
    served_names: list[str]
    argv: list[str]
    env: dict[str, str]
    host: str
    port: int
    engine: dict[str, Any]
    limits: dict[str, Any]
    health: dict[str, float]
    canary: dict[str, Any]
    gpus: list[Gpu] = field(default_factory=list)
    gpus_wanted: int = 0
    lease_dir: str = ""
    gpu_memory_utilization: float | None = None
    shards: list[Shard] = field(default_factory=list)
    passed_through: list[str] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    bench: dict[str, Any] = field(default_factory=dict)
    patches: list[dict[str, Any]] = field(default_factory=list)
    patch_folder: str | None = None
    load: dict[str, Any] = field(default_factory=dict)
    rehearsal: bool = False  # random weights; ends once it is ready
    version: int = VERSION

    @property
    def url(self) -> str:
        """Where clients reach it from this machine."""
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def bytes_total(self) -> int | None:
        """Size of all weight files, None when the checkpoint is not known on disk."""
        return sum(shard.size for shard in self.shards) or None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


def from_json(document: dict[str, Any]) -> LaunchPlan:
    """A plan from `to_json`'s form. Keys that a newer version added are passed over.

    Raises:
        ValueError: the document is no launch plan, or of a version that this program does not know.
    """
    if not isinstance(document, dict) or not isinstance(document.get("version"), int):
        raise ValueError("not a launch plan")
    if document["version"] > VERSION:
        raise ValueError(f"a launch plan of version {document['version']}; this kdeploy knows {VERSION}")
    known = {entry.name for entry in fields(LaunchPlan)}
    values = {key: value for key, value in document.items() if key in known}
    try:
        values["gpus"] = [Gpu(**gpu) for gpu in values.get("gpus", [])]
        values["shards"] = [Shard(**shard) for shard in values.get("shards", [])]
        return LaunchPlan(**values)
    except TypeError as error:
        raise ValueError(f"not a launch plan: {error}") from None


def loads(text: str | bytes) -> LaunchPlan:
    """A plan from JSON text (ValueError as in `from_json`)."""
    return from_json(json.loads(text))
