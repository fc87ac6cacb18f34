"""Which GPUs a launch gets: the ones that were named, else the first that are free. Pure."""

from collections.abc import Mapping, Sequence

from deploy.errors import environment, refused, usage
from deploy.host.gpus import GpuState
from deploy.plan.launch_plan import Gpu

DEFAULT_UTILIZATION = 0.92  # vLLM's own


def choose(
    inventory: Sequence[GpuState],
    wanted: int,
    named: str | None,
    leased: Mapping[str, str],
    utilization: float | None,
    *,
    must_be_free: bool = True,
) -> list[Gpu]:
    """The GPUs of a launch.

    Args:
        inventory: every GPU, in PCI bus order.
        wanted: how many the profile needs.
        named: `--gpus`: indices or UUIDs (whole, or a prefix that is one GPU's only), comma separated.
        leased: UUID -> deployment of those that are taken.
        utilization: share of each GPU's memory that vLLM will ask for.

    Raises:
        KdeployError: exit 2 for a list that makes no sense, 4 for GPUs that are held, 6 for too few GPUs.
    """
    if named is not None:
        chosen = _named(inventory, named)
        if len(chosen) != wanted:
            raise usage(
                f"--gpus names {_count(len(chosen))}, and the profile needs {wanted}",
                fix=[f"name {wanted} of {_indices(inventory)}"],
            )
    else:
        if len(inventory) < wanted:
            raise environment(
                f"the profile needs {_count(wanted)}, and this machine has {len(inventory)}",
                evidence=[f"GPU {gpu.number}: {gpu.name}" for gpu in inventory] or ["NVML lists none"],
                fix=["--set parallel.tensor=N, with a model that fits N GPUs"],
            )
        free = [gpu for gpu in inventory if gpu.uuid not in leased and _shortfall(gpu, utilization) is None]
        chosen = free[:wanted] if len(free) >= wanted else list(inventory)
    if not must_be_free:
        return [Gpu(gpu.number, gpu.uuid) for gpu in chosen]
    obstacles = [problem for gpu in chosen if (problem := _obstacle(gpu, leased, utilization))]
    if obstacles:
        raise refused(
            f"not enough free GPUs: {wanted} wanted, {len(chosen) - len(obstacles)} of those considered are free",
            evidence=obstacles,
            fix=["stop what holds them, or choose others: --gpus LIST"],
        )
    return [Gpu(gpu.number, gpu.uuid) for gpu in chosen]


def _count(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


def _indices(inventory: Sequence[GpuState]) -> str:
    return ", ".join(str(gpu.number) for gpu in inventory)


def _named(inventory: Sequence[GpuState], text: str) -> list[GpuState]:
    chosen: list[GpuState] = []
    for word in (part.strip() for part in text.split(",")):
        if word.isascii() and word.isdigit():
            found = [gpu for gpu in inventory if str(gpu.number) == (word.lstrip("0") or "0")]
        else:
            found = [gpu for gpu in inventory if word and gpu.uuid.startswith(word)]
        if not found:
            raise usage(f"--gpus: no GPU {word!r}", fix=[f"this machine has {_indices(inventory) or 'none'}"])
        if len(found) > 1:
            raise usage(f"--gpus: {word!r} begins the UUID of {len(found)} GPUs", fix=["write more of it"])
        if found[0] in chosen:
            raise usage(f"--gpus: GPU {found[0].number} is named twice")
        chosen.append(found[0])
    return chosen


def _obstacle(gpu: GpuState, leased: Mapping[str, str], utilization: float | None) -> str | None:
    if gpu.uuid in leased:
        return f"GPU {gpu.number}: leased by {leased[gpu.uuid]}"
    return _shortfall(gpu, utilization)


def _shortfall(gpu: GpuState, utilization: float | None) -> str | None:
    """Why vLLM would refuse the GPU: it wants utilization x total free. None when it would not, or cannot be told."""
    if gpu.total_mib is None or gpu.used_mib is None:
        return None
    needed = (utilization or DEFAULT_UTILIZATION) * gpu.total_mib
    free = gpu.total_mib - gpu.used_mib
    if free >= needed:
        return None
    holders = ", ".join(f"pid {entry['pid']} {entry['mib']} MiB" for entry in gpu.processes or [])
    return (
        f"GPU {gpu.number}: {free} MiB free of the {needed:.0f} MiB wanted; held by {holders or 'no visible process'}"
    )
