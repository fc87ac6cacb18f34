"""What `up` and `restart` check and take before a supervisor is started."""

import os

from deploy.errors import environment, usage
from deploy.host.gpus import NoGpus, inventory
from deploy.plan.gather import refuse_taken_port
from deploy.plan.launch_plan import Gpu, LaunchPlan
from deploy.plan.placement import choose
from deploy.plan.references import Unresolved
from deploy.profile.schema import Profile
from deploy.store import leases
from deploy.store.deployments import observe_all
from deploy.supervise.spawn import resolved


def leased_gpus(profile: Profile, named: str | None, deployment: str) -> tuple[list[Gpu] | None, list[int]]:
    """The GPUs of a launch and the descriptors of their leases; (None, []) for a CPU engine."""
    if profile.gpus == 0:
        if named is not None:
            raise usage("--gpus for a profile with hardware.gpus: 0", fix=["leave --gpus out"])
        return None, []
    return lease(profile.gpus, named, profile.serve.gpu_memory_utilization, deployment)


def lease(wanted: int, named: str | None, utilization: float | None, deployment: str) -> tuple[list[Gpu], list[int]]:
    """Choose free GPUs and take their leases."""
    try:
        present = inventory()
    except NoGpus as error:
        raise error.as_error() from None
    leased = {
        gpu.uuid: str(holder.get("deployment", "?"))
        for gpu in present
        if (holder := leases.holder_of(gpu.uuid)) is not None
    }
    chosen = choose(present, wanted, named, leased, utilization)
    return chosen, leases.take([gpu.uuid for gpu in chosen], deployment)


def free_ports(plan: LaunchPlan) -> None:
    """Exit 4 unless the plan's port is free, also of deployments that do not listen yet."""
    others = [
        (entry.name, int(entry.plan.get("port", 0)))
        for entry in observe_all()
        if entry.active and entry.name != plan.name
    ]
    refuse_taken_port(plan, others)


def refuse_missing_secrets(plan: LaunchPlan) -> None:
    """Exit 6 when a secret that the plan refers to has no value here."""
    missing = []
    for where, text in [*(("argument", word) for word in plan.argv), *plan.env.items()]:
        try:
            resolved(text)
        except Unresolved as error:
            missing.append(f"{where}: {error}")
    if missing:
        raise environment("a secret has no value", evidence=missing, fix=["set it in this shell, then again"])


def close_all(fds: list[int]) -> None:
    """Let locks and leases go again."""
    for fd in fds:
        os.close(fd)
