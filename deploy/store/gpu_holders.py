"""Whose memory is on a GPU: our deployments by name, everybody else by what /proc tells."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from deploy.host.gpus import GpuState
from deploy.host.holders import describe
from deploy.host.processes import Identity, boot_id, is_alive, read_process
from deploy.store.deployments import Deployment, observe_all
from deploy.store.leases import holder_of


class Ours(NamedTuple):
    """A process that a journal of ours names: its deployment, and whether it still lives."""

    deployment: str
    alive: bool


def our_processes(deployments: Sequence[Deployment]) -> dict[tuple[str, int], Ours]:
    """(GPU UUID, pid) -> deployment, for every process that the newest launches had on their GPUs.

    A pid that meanwhile is another process's is nobody's here.
    """
    found: dict[tuple[str, int], Ours] = {}
    for entry in deployments:
        if entry.observed.boot_id and entry.observed.boot_id != boot_id():
            continue
        recorded = {*entry.observed.members, *([entry.observed.leader] if entry.observed.leader else [])}
        for pid, ticks in recorded:
            alive = is_alive(Identity(pid, ticks))
            now = read_process(pid)
            if not alive and now is not None and now.ticks != ticks:
                continue
            for gpu in entry.plan.get("gpus", []):
                found[gpu["uuid"], pid] = Ours(entry.name, alive)
    return found


def holders(gpu: GpuState, ours: dict[tuple[str, int], Ours]) -> list[dict[str, Any]] | None:
    """The processes on a GPU as `gpus --json` tells them; None where the driver lists none at all."""
    if gpu.processes is None:
        return None
    told = []
    for process in gpu.processes:
        mine = ours.get((gpu.uuid, process["pid"]))
        facts = describe(process["pid"])
        if mine is not None:
            facts |= {"visible": mine.alive, "certain": True}
        deployment = mine.deployment if mine else None
        told.append({**process, "deployment": deployment, "ended": bool(mine and not mine.alive), **facts})
    return told


def held_gpus(gpus: Sequence[GpuState]) -> list[dict[str, Any]]:
    """Lease, deployments and processes of each GPU, in the order of `gpus`."""
    deployments = observe_all()
    ours = our_processes(deployments)
    return [
        {
            "lease": holder_of(gpu.uuid),
            "deployments": [
                entry.name
                for entry in deployments
                if entry.active and gpu.uuid in [held["uuid"] for held in entry.plan.get("gpus", [])]
            ],
            "processes": holders(gpu, ours),
        }
        for gpu in gpus
    ]
