"""How the weights are read: `load.strategy: auto` and `load.prewarm` decided from what is known, with reasons. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

RESIDENT = 0.98
FAST = 3e9  # bytes a second from which the kernel's page faults, not the disk, are the limit
INSTANTTENSOR_SINCE = Version("0.33.0")  # from there on vLLM brings it
SMALL = 64 << 20  # not worth a process
SHARE = 0.6  # of the available memory that read-ahead may take, as deploy.warm.window has it
GPU_RANK_RESERVE = 4 << 30
# loaders that read past the page cache, or read ahead by themselves: what we bring in would be read twice
READ_BY_THEMSELVES = ("instanttensor", "fastsafetensors", "runai_streamer", "runai_streamer_sharded", "prefetch")
NOT_THE_SHARDS = ("dummy", "tensorizer", "sharded_state", "ipc_cache", "modelexpress", "gguf")


class Ground(NamedTuple):
    """What was found out about checkpoint, disk and memory. Bytes; rates in bytes a second; None where not known."""

    folder: str
    filesystem: str
    network: bool
    available: int
    resident: float | None = None
    probe: float | None = None
    crashed: tuple[str, ...] = ()  # strategies that failed to load this model here
    measured: Mapping[str, float] = {}  # rate of each strategy in earlier loads here


class Choice(NamedTuple):
    """`strategy`: the name that the engine is given, "auto" for its own default. `prewarm`: whether kdeploy reads
    ahead. `reasons`: why, for people."""

    strategy: str
    prewarm: bool
    reasons: list[str]


def decide(
    wanted: str,
    prewarm: str,
    *,
    total: int,
    gpus: int,
    version: str | None,
    draft: bool,
    expert_filter: bool,
    written: bool,
    ground: Ground | None,
) -> Choice:
    """The choice for one launch.

    Args:
        wanted: `load.strategy`; anything but auto is done as it says.
        prewarm: `load.prewarm`.
        total: bytes of the weight files, 0 when they are not on this disk.
        gpus: 0 for a CPU engine.
        version: the engine's.
        draft: whether a second model is loaded for speculation.
        expert_filter: whether ranks skip experts that are not theirs.
        written: whether the profile's `args` choose a load format by themselves.
        ground: None when nothing could be found out.
    """
    if ground is None or total == 0:
        return Choice(wanted, False, ["the weight files are not on this machine yet"])
    strategy, reasons = wanted, ["load.strategy says so"]
    if written:
        strategy, reasons = "auto", ["the profile's args choose the load format"]
    elif wanted == "auto":
        strategy, reasons = _strategy(gpus, version, ground, draft=draft, expert_filter=expert_filter)
    ahead, why = _prewarm(prewarm, strategy, total, ground, written=written)
    return Choice(strategy, ahead, [*reasons, why])


def _strategy(
    gpus: int, version: str | None, ground: Ground, *, draft: bool, expert_filter: bool
) -> tuple[str, list[str]]:
    plain = "lazy" if ground.network else "auto"  # vLLM's own prefetch on network filesystems has no window
    if ground.resident is not None and ground.resident >= RESIDENT:
        return plain, [f"{100 * ground.resident:.0f} % of the weights are in memory already"]
    if gpus == 0:
        return plain, ["a CPU engine maps its weights"]
    obstacle = _against_instanttensor(version, ground, draft=draft, expert_filter=expert_filter)
    if obstacle:
        return plain, [f"no instanttensor: {obstacle}"]
    known = {name: rate for name, rate in ground.measured.items() if name in ("auto", "lazy", "instanttensor")}
    if len(known) > 1 and max(known, key=lambda name: known[name]) != "instanttensor":
        best = max(known, key=lambda name: known[name])
        return plain, [f"{best} was faster here: {known[best] / 1e9:.1f} GB/s, {known['instanttensor'] / 1e9:.1f} GB/s"]
    assert ground.probe is not None
    return "instanttensor", [f"the disk gives {ground.probe / 1e9:.1f} GB/s, more than page faults can take"]


def _against_instanttensor(version: str | None, ground: Ground, *, draft: bool, expert_filter: bool) -> str | None:
    try:
        old = version is None or Version(version) < INSTANTTENSOR_SINCE
    except InvalidVersion:
        old = True
    if old:
        return f"vLLM {version or 'of unknown version'} does not bring it"
    if "instanttensor" in ground.crashed:
        return "it failed to load this model on this host"
    if draft:
        return "a draft model is loaded beside it, and it runs short of GPU memory there"
    if expert_filter:
        return "with the expert filter it loses its distributed reading"
    if ground.probe is None:
        return "the disk's rate is not known"
    if ground.probe < FAST:
        return f"the disk gives {ground.probe / 1e9:.1f} GB/s, which reading ahead can use up"
    return None


def _prewarm(wanted: str, strategy: str, total: int, ground: Ground, *, written: bool) -> tuple[bool, str]:
    if wanted == "off":
        return False, "load.prewarm is off"
    if wanted == "on":
        return True, "load.prewarm is on"
    if written:
        return False, "no reading ahead of a load format that args choose"
    if strategy in READ_BY_THEMSELVES or strategy in NOT_THE_SHARDS:
        return False, f"{strategy} does not take its bytes from what is read ahead"
    if ground.resident is not None and ground.resident >= RESIDENT:
        return False, "nothing to read ahead"
    if total < SMALL:
        return False, "too small to be worth reading ahead"
    where = "as a whole" if total <= SHARE * ground.available else "through a window"
    return True, f"read ahead {where}: {total / 1e9:.1f} GB, {ground.available / 1e9:.1f} GB of memory available"


def load_of(choice: Choice, ground: Ground | None, *, total: int, gpus: int, ranks: int) -> dict[str, Any]:
    """`load` of the plan: the choice, and what the supervisor needs to carry it out."""
    reserve = GPU_RANK_RESERVE * ranks if gpus else int(1.2 * total)
    return {
        "folder": None if ground is None else ground.folder,
        "strategy": choice.strategy,
        "prewarm_files": choice.prewarm,
        "reasons": choice.reasons,
        "reserve_bytes": reserve,
        "ranks": ranks,
        "resident": None if ground is None or ground.resident is None else round(ground.resident, 3),
        "probe_bytes_per_s": None if ground is None or ground.probe is None else round(ground.probe),
    }
