"""What `up` and `restart` check and take before a supervisor is started."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from deploy.console import output
from deploy.errors import REFUSED, KdeployError, usage
from deploy.homes import lease_dir
from deploy.host.gpus import GpuState, Inventory, NoGpus, read_machine
from deploy.host.sysroot import sysroot
from deploy.host.topology import levels_between, read_place
from deploy.lifecycle.states import FAILED
from deploy.plan.fit_inputs import known_model, refuse_bad_shape, refuse_unfit
from deploy.plan.gather import Wish, plan_for_launch, refuse_taken_port
from deploy.plan.launch_plan import Gpu, LaunchPlan
from deploy.plan.placement import Needs, choose, explain, free_ones
from deploy.profile.catalogue import Resolved
from deploy.profile.schema import Profile
from deploy.store import leases, swaps
from deploy.store.deployments import Deployment, observe, observe_all
from deploy.store.gpu_holders import our_processes
from deploy.store.launches import check_name
from deploy.supervise.client import take_lock, wait_for_lock
from deploy.swap.starting import refuse_missing_secrets

SWEEP_LIMIT_S = 20.0
# The kernel gives a dead process's memory back late: more than 30 s were reported for one with tens of GiB.
MEMORY_LIMIT_S = 60.0
MEMORY_POLL_S = 0.5


class Choice(NamedTuple):
    """The GPUs of a launch (None for a CPU engine), the memory of the smallest of them in GiB, and why these."""

    gpus: list[Gpu] | None
    memory_gib: float | None
    why: str | None = None


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
    swaps.refuse_in_swap(deployment)
    fds = [take(deployment)]
    try:
        choice, leased = lease_gpus(resolved.profile, gpus, deployment)
        fds += leased
        return Prepared(checked_plan(resolved, wish, choice), fds[0], fds[1:])
    except BaseException:
        close_all(fds)
        raise


def checked_plan(resolved: Resolved, wish: Wish, choice: Choice, leaving: Deployment | None = None) -> LaunchPlan:
    """The plan of a launch, after every check that needs nothing to be held. `leaving` will be gone by then."""
    plan = plan_for_launch(resolved, wish, choice.gpus)
    version = plan.engine.get("version")
    model = known_model(resolved)
    notes = refuse_bad_shape(resolved, version, model)
    notes += refuse_unfit(resolved, version, choice.memory_gib, model)
    free_ports(plan, leaving)
    refuse_missing_secrets(plan)
    notes += [f"placement: {choice.why}"] if choice.why else []
    # whoever adopts or restarts it must find the leases where they were taken
    return replace(plan, notes=[*plan.notes, *notes], lease_dir=lease_dir() if plan.gpus else "")


def needs_of(profile: Profile) -> Needs:
    """What a profile asks of each GPU."""
    return Needs(profile.serve.gpu_memory_utilization, profile.hardware.capability, profile.hardware.memory_gib)


def lease_gpus(profile: Profile, named: str | None, deployment: str) -> tuple[Choice, list[int]]:
    """GPUs for a launch, with their leases. When another launch takes one of them first, others are chosen."""
    for last in (False, False, False, True):
        choice = choose_gpus(profile.gpus, named, needs_of(profile))
        if not choice.gpus:
            break
        try:
            return choice, leases.take([gpu.uuid for gpu in choice.gpus], deployment)
        except KdeployError as error:
            if last or named is not None or error.code != REFUSED:
                raise
    return choice, []


def choose_gpus(
    wanted: int,
    named: str | None,
    needs: Needs,
    lease_folder: str | None = None,
    leaving: Deployment | None = None,
) -> Choice:
    """Free GPUs for a launch; takes nothing. Memory of our own ended processes is waited for, not other people's.
    GPUs of `leaving` count as free: it will be gone by then."""
    if wanted == 0:
        if named is not None:
            raise usage("--gpus for a profile with hardware.gpus: 0", fix=["leave --gpus out"])
        return Choice(None, None)
    deadline = time.monotonic() + MEMORY_LIMIT_S
    told = False
    while True:
        try:
            machine = read_machine()
        except NoGpus as error:
            raise error.as_error() from None
        try:
            return _choice(machine, wanted, named, needs, lease_folder, leaving)
        except KdeployError as error:
            falling = _falling(machine, error) if error.code == REFUSED else []
            if not falling or time.monotonic() >= deadline:
                raise
        if not told:
            told = True
            output.say(f"waiting for memory that comes back late: {'; '.join(falling)}")
        time.sleep(MEMORY_POLL_S)


def _choice(
    machine: Inventory, wanted: int, named: str | None, needs: Needs, folder: str | None, leaving: Deployment | None
) -> Choice:
    present = machine.gpus
    leased = {gpu.uuid: _holder(found) for gpu in present if (found := leases.holder_of(gpu.uuid, folder)) is not None}
    leased |= swaps.reserved_gpus()
    if leaving is not None:
        present = vacated(present, leaving)
        leased = {uuid: who for uuid, who in leased.items() if uuid not in gpus_of(leaving)}
    files = sysroot()
    places = {gpu.number: read_place(gpu.pci, files) for gpu in present if gpu.pci}
    whole = len(places) == len(present)
    pairs = levels_between(places, {pair: level for pair, (level, _) in machine.pairs.items()}) if whole else None
    gpus = choose(present, wanted, named, leased, needs, pairs=pairs)
    sizes = [gpu.total_mib for gpu in present if gpu.uuid in {chosen.uuid for chosen in gpus} and gpu.total_mib]
    why = None
    if named is None and pairs is not None and wanted < len(present):
        why = explain(gpus, free_ones(present, leased, needs), pairs)
    return Choice(gpus, min(sizes) / 1024 if sizes else None, why)


def _holder(lease: dict[str, object]) -> str:
    user = lease.get("user")
    return f"{lease.get('deployment', '?')}" + (f" of {user}" if user else "") + f" since {lease.get('since', '?')}"


def _falling(machine: Inventory, refusal: KdeployError) -> list[str]:
    """Memory that is still charged to processes of ours that have ended, on the GPUs that were refused."""
    refused = {line.partition(":")[0] for line in refusal.evidence}
    ended = {key for key, ours in our_processes(observe_all()).items() if not ours.alive}
    return [
        f"GPU {gpu.number} {entry['mib']} MiB of pid {entry['pid']}, which has ended"
        for gpu in machine.gpus
        for entry in gpu.processes or []
        if (gpu.uuid, entry["pid"]) in ended and f"GPU {gpu.number}" in refused
    ]


def free_ports(plan: LaunchPlan, leaving: Deployment | None = None) -> None:
    """Exit 4 unless the plan's port is free, also of deployments that do not listen yet. `leaving` will be gone."""
    others = [
        (entry.name, int(entry.plan.get("port", 0)))
        for entry in observe_all()
        if entry.active and entry.name not in (plan.name, leaving.name if leaving else None)
    ]
    if leaving is not None and leaving.plan.get("port") == plan.port:
        for name, port in others:
            if port == plan.port:
                refuse_taken_port(plan, [(name, port)])
        return  # bound by the one that leaves: tried when it has left
    refuse_taken_port(plan, [*others, *swaps.reserved_ports()])


def gpus_of(deployment: Deployment) -> set[str]:
    """UUIDs of its GPUs."""
    return {gpu["uuid"] for gpu in deployment.plan.get("gpus", [])}


def vacated(present: Sequence[GpuState], leaving: Deployment) -> list[GpuState]:
    """The GPUs as they will be without the processes of `leaving`. Where the driver does not list processes, its GPUs
    count as empty: whether they are is seen when it has gone."""
    mine = gpus_of(leaving)
    pids = {pid for (_, pid), ours in our_processes([leaving]).items() if ours.deployment == leaving.name}
    return [_without(gpu, pids) if gpu.uuid in mine else gpu for gpu in present]


def _without(gpu: GpuState, pids: set[int]) -> GpuState:
    if not gpu.processes or gpu.used_mib is None:
        return gpu._replace(used_mib=0 if gpu.used_mib is not None else None)
    gone = [entry for entry in gpu.processes if entry["pid"] in pids]
    untold = any(entry["mib"] is None for entry in gone)
    used = 0 if untold else max(0, gpu.used_mib - sum(entry["mib"] for entry in gone))
    return gpu._replace(used_mib=used, processes=[entry for entry in gpu.processes if entry["pid"] not in pids])


def close_all(fds: list[int]) -> None:
    """Let locks and leases go again."""
    for fd in fds:
        os.close(fd)


def take_or_wait(name: str) -> int:
    """The deployment's lock; a supervisor that is just clearing away a failed launch is waited for."""
    existing = observe(name)
    clearing = existing is not None and existing.state == FAILED and existing.observed.retry is None
    return wait_for_lock(name, SWEEP_LIMIT_S) if clearing else take_lock(name)
