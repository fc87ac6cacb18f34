"""What `up` and `restart` check and take before a supervisor is started."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from deploy.errors import environment, usage
from deploy.host.gpus import NoGpus, inventory
from deploy.lifecycle.states import FAILED
from deploy.plan.fit_inputs import known_model, refuse_bad_shape, refuse_unfit
from deploy.plan.gather import Wish, plan_for_launch, refuse_taken_port
from deploy.plan.launch_plan import Gpu, LaunchPlan
from deploy.plan.placement import choose
from deploy.plan.references import Unresolved
from deploy.profile.catalogue import Resolved
from deploy.store import leases
from deploy.store.deployments import observe, observe_all
from deploy.store.launches import check_name
from deploy.supervise.client import take_lock, wait_for_lock
from deploy.supervise.spawn import resolved as with_secrets

SWEEP_LIMIT_S = 20.0


class Choice(NamedTuple):
    """The GPUs of a launch (None for a CPU engine), and the memory of the smallest of them in GiB."""

    gpus: list[Gpu] | None
    memory_gib: float | None


class Prepared(NamedTuple):
    """A launch that nothing speaks against, and the locks and leases that it holds."""

    plan: LaunchPlan
    lock_fd: int
    lease_fds: list[int]


def prepare(resolved: Resolved, wish: Wish, gpus: str | None, take: Callable[[str], int]) -> Prepared:
    """Take the deployment's lock and the GPUs' leases, and check everything; all of it or an error.

    Args:
        resolved: the profile.
        wish: what was asked.
        gpus: `--gpus`.
        take: takes the lock of a deployment by its name.
    """
    deployment = check_name(wish.name or resolved.name)
    fds = [take(deployment)]
    try:
        choice = choose_gpus(resolved.profile.gpus, gpus, resolved.profile.serve.gpu_memory_utilization)
        fds += leases.take([gpu.uuid for gpu in choice.gpus or []], deployment) if choice.gpus else []
        return Prepared(checked_plan(resolved, wish, choice), fds[0], fds[1:])
    except BaseException:
        close_all(fds)
        raise


def checked_plan(resolved: Resolved, wish: Wish, choice: Choice) -> LaunchPlan:
    """The plan of a launch, after every check that needs nothing to be held."""
    plan = plan_for_launch(resolved, wish, choice.gpus)
    version = plan.engine.get("version")
    model = known_model(resolved)
    notes = refuse_bad_shape(resolved, version, model)
    notes += refuse_unfit(resolved, version, choice.memory_gib, model)
    free_ports(plan)
    refuse_missing_secrets(plan)
    return replace(plan, notes=[*plan.notes, *notes])


def choose_gpus(wanted: int, named: str | None, utilization: float | None) -> Choice:
    """Free GPUs for a launch; takes nothing."""
    if wanted == 0:
        if named is not None:
            raise usage("--gpus for a profile with hardware.gpus: 0", fix=["leave --gpus out"])
        return Choice(None, None)
    try:
        present = inventory()
    except NoGpus as error:
        raise error.as_error() from None
    leased = {
        gpu.uuid: str(holder.get("deployment", "?"))
        for gpu in present
        if (holder := leases.holder_of(gpu.uuid)) is not None
    }
    gpus = choose(present, wanted, named, leased, utilization)
    sizes = [gpu.total_mib for gpu in present if gpu.uuid in {chosen.uuid for chosen in gpus} and gpu.total_mib]
    return Choice(gpus, min(sizes) / 1024 if sizes else None)


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
            with_secrets(text)
        except Unresolved as error:
            missing.append(f"{where}: {error}")
    if missing:
        raise environment("a secret has no value", evidence=missing, fix=["set it in this shell, then again"])


def close_all(fds: list[int]) -> None:
    """Let locks and leases go again."""
    for fd in fds:
        os.close(fd)


def take_or_wait(name: str) -> int:
    """The deployment's lock; a supervisor that is just clearing away a failed launch is waited for."""
    existing = observe(name)
    clearing = existing is not None and existing.state == FAILED and existing.observed.retry is None
    return wait_for_lock(name, SWEEP_LIMIT_S) if clearing else take_lock(name)
