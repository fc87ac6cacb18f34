"""Which GPUs a launch gets: the ones that were named, else free ones that are near to each other. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from deploy.errors import WILL_NOT_FIT, KdeployError, environment, refused, usage
from deploy.host.gpus import GpuState
from deploy.host.topology import WORDS, Pairs, nearest, short_address, widest
from deploy.plan.launch_plan import Gpu

DEFAULT_UTILIZATION = 0.92  # vLLM's own


class Needs(NamedTuple):
    """What the profile says about each of its GPUs: share of memory that vLLM will ask for, CUDA capability, GiB."""

    utilization: float | None = None
    capability: str | None = None
    memory_gib: float | None = None


def choose(
    inventory: Sequence[GpuState],
    wanted: int,
    named: str | None,
    leased: Mapping[str, str],
    needs: Needs,
    *,
    pairs: Pairs | None = None,
    must_be_free: bool = True,
) -> list[Gpu]:
    """The GPUs of a launch.

    Args:
        inventory: every GPU, in PCI bus order.
        wanted: how many the profile needs.
        named: `--gpus`: indices, UUIDs (whole, or a prefix that is one GPU's only) or PCI addresses, comma separated.
        leased: UUID -> deployment of those that are taken.
        needs: what each must have.
        pairs: the topology level of each two GPU numbers; None takes the first free ones.

    Raises:
        KdeployError: exit 2 for a list that makes no sense, 4 for GPUs that are held, 5 for too little memory,
            6 for too few GPUs, or of another kind than the profile's.
    """
    if named is not None:
        chosen = _named(inventory, named)
        if len(chosen) != wanted:
            raise usage(
                f"--gpus names {_count(len(chosen))}, and the profile needs {wanted}",
                fix=[f"name {wanted} of {_indices(inventory)}"],
            )
        if must_be_free:
            _refuse_unsuitable(chosen, wanted, needs)
    else:
        if len(inventory) < wanted:
            raise environment(
                f"the profile needs {_count(wanted)}, and this machine has {len(inventory)}",
                evidence=[f"GPU {gpu.number}: {gpu.name}" for gpu in inventory] or ["NVML lists none"],
                fix=["--set parallel.tensor=N, with a model that fits N GPUs"],
            )
        suitable = [gpu for gpu in inventory if _unsuitable(gpu, needs) is None]
        if len(suitable) < wanted and must_be_free:
            _refuse_unsuitable(inventory, wanted, needs)
        free = free_ones(suitable, leased, needs)
        chosen = _near(free, wanted, pairs) if len(free) >= wanted else suitable
        if not must_be_free and len(chosen) < wanted:
            chosen = list(inventory)[:wanted]
    if not must_be_free:
        return [Gpu(gpu.number, gpu.uuid) for gpu in chosen[:wanted]]
    obstacles = [problem for gpu in chosen if (problem := _obstacle(gpu, leased, needs))]
    if obstacles:
        raise refused(
            f"not enough free GPUs: {wanted} wanted, {len(chosen) - len(obstacles)} of those considered are free",
            evidence=obstacles,
            fix=["kdeploy gpus shows who holds what", "stop what holds them, or choose others: --gpus LIST"],
        )
    return [Gpu(gpu.number, gpu.uuid) for gpu in chosen]


def free_ones(inventory: Sequence[GpuState], leased: Mapping[str, str], needs: Needs) -> list[GpuState]:
    """Those that nobody leases and that have the memory that vLLM will ask for."""
    return [gpu for gpu in inventory if _unsuitable(gpu, needs) is None and _obstacle(gpu, leased, needs) is None]


def explain(chosen: Sequence[Gpu], free: Sequence[GpuState], pairs: Pairs) -> str:
    """Why these: how near they are to each other, and what was left."""
    numbers = [gpu.index for gpu in chosen]
    left = [str(gpu.number) for gpu in free if gpu.number not in numbers]
    level = widest(numbers, pairs)
    near = f", the nearest that are free: {WORDS[level]} ({level})" if level else ""
    others = f"; GPU {', '.join(left)} left free" if left else "; no others are free"
    return f"GPU {', '.join(map(str, numbers))}{near}{others}"


def _near(free: list[GpuState], wanted: int, pairs: Pairs | None) -> list[GpuState]:
    if pairs is None:
        return free[:wanted]
    numbers = nearest([gpu.number for gpu in free], wanted, pairs)
    return [gpu for gpu in free if gpu.number in numbers]


def _count(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def _indices(inventory: Sequence[GpuState]) -> str:
    return ", ".join(str(gpu.number) for gpu in inventory)


def _named(inventory: Sequence[GpuState], text: str) -> list[GpuState]:
    chosen: list[GpuState] = []
    for word in (part.strip() for part in text.split(",")):
        if word.isascii() and word.isdigit():
            found = [gpu for gpu in inventory if str(gpu.number) == (word.lstrip("0") or "0")]
        elif ":" in word:
            found = [gpu for gpu in inventory if gpu.pci and _is_address(word.lower(), gpu.pci)]
        else:
            found = [gpu for gpu in inventory if word and gpu.uuid.startswith(word)]
        if not found and word.startswith("MIG-"):
            raise usage(
                f"--gpus: {word!r} is a MIG slice; slices have no peer access, and kdeploy leases whole GPUs",
                fix=[f"this machine has {_indices(inventory) or 'none'}"],
            )
        if not found:
            raise usage(
                f"--gpus: no GPU {word[:80]!r}",
                evidence=[f"GPU {gpu.number}: {gpu.uuid}  {gpu.pci or ''}".rstrip() for gpu in inventory],
                fix=["name GPUs by index, UUID (or its beginning) or PCI address: kdeploy gpus lists them"],
            )
        if len(found) > 1:
            raise usage(
                f"--gpus: {word!r} begins the UUID of {len(found)} GPUs",
                evidence=[f"GPU {gpu.number}: {gpu.uuid}" for gpu in found],
                fix=["write more of it"],
            )
        if found[0] in chosen:
            raise usage(f"--gpus: GPU {found[0].number} is named twice", fix=["name each once"])
        chosen.append(found[0])
    return chosen


def _is_address(word: str, pci: str) -> bool:
    """Whether `word` is this PCI address, in any of the usual lengths: c1:00, c1:00.0, 0000:c1:00.0."""
    domain, _, rest = short_address(pci).partition(":")
    if word.count(":") == 1:
        word = f"{domain}:{word}"
    if "." not in word:
        word = f"{word}.0"
    front, _, back = word.partition(":")
    return front.lstrip("0") == domain.lstrip("0") and back == rest


def _refuse_unsuitable(gpus: Sequence[GpuState], wanted: int, needs: Needs) -> None:
    """Exit 5 or 6 when these GPUs are of the wrong kind; all reasons together."""
    found = [(gpu, problem) for gpu in gpus if (problem := _unsuitable(gpu, needs)) is not None]
    if not found:
        return
    evidence = [f"GPU {gpu.number}: {problem}" for gpu, (_, problem) in found]
    keys = {key for _, (key, _) in found}
    good = len(gpus) - len(found)
    what = (
        f"the profile needs {_count(wanted)}, and {good} of {_indices(gpus)} {'is' if good == 1 else 'are'} fit for it"
    )
    if keys == {"memory_gib"}:
        fix = ["kdeploy fit PROFILE --gpus LIST shows what would fit", "--set hardware.memory_gib=N if N is enough"]
        raise KdeployError(what, evidence=evidence, fix=fix, code=WILL_NOT_FIT)
    fix = ["kdeploy gpus shows the GPUs of this machine"]
    if "capability" in keys:
        fix.append(f"--set hardware.capability={found[0][0].capability} to try it all the same")
    raise environment(what, evidence=evidence, fix=fix)


def _unsuitable(gpu: GpuState, needs: Needs) -> tuple[str, str] | None:
    """Why this GPU can never serve the profile: a key, and words. What the driver does not tell is no reason."""
    if gpu.problem is not None:
        return "problem", gpu.problem["text"]
    if gpu.mig:
        return "mig", "MIG is on: its slices have no peer access; nvidia-smi -mig 0 turns it off"
    if needs.capability and gpu.capability and gpu.capability != needs.capability:
        return "capability", f"{gpu.name}, capability {gpu.capability}; the profile was made for {needs.capability}"
    if needs.memory_gib and gpu.total_mib is not None and gpu.total_mib < needs.memory_gib * 1024:
        return "memory_gib", f"{gpu.total_mib / 1024:.1f} GiB of memory; the profile wants {needs.memory_gib:g}"
    return None


def _obstacle(gpu: GpuState, leased: Mapping[str, str], needs: Needs) -> str | None:
    if gpu.uuid in leased:
        return f"GPU {gpu.number}: leased by {leased[gpu.uuid]}"
    return shortfall(gpu, needs.utilization)


def shortfall(gpu: GpuState, utilization: float | None) -> str | None:
    """Why vLLM would refuse the GPU: it wants utilization x total free. None when it would not, or cannot be told.

    Memory decides, and processes where the driver tells no memory. Utilisation never does: a GPU whose processes hang
    can show none, or 100 %.
    """
    holders = ", ".join(
        f"pid {entry['pid']}" + ("" if entry["mib"] is None else f" {entry['mib']} MiB")
        for entry in gpu.processes or []
    )
    if gpu.total_mib is None or gpu.used_mib is None:
        return f"GPU {gpu.number}: its memory is not told, and it is in use by {holders}" if holders else None
    needed = (utilization or DEFAULT_UTILIZATION) * gpu.total_mib
    free = gpu.total_mib - gpu.used_mib
    if free >= needed:
        return None
    return (
        f"GPU {gpu.number}: {free} MiB free of the {needed:.0f} MiB wanted; held by {holders or 'no visible process'}"
    )
