"""Starting a recorded plan on the GPUs that it names, once they are free. Nothing is read from a profile here."""

import os
import time

from deploy.errors import KdeployError, environment
from deploy.host.gpus import NoGpus, inventory
from deploy.plan.gather import refuse_taken_port
from deploy.plan.launch_plan import LaunchPlan
from deploy.plan.placement import Needs, choose
from deploy.plan.references import Unresolved
from deploy.store import leases
from deploy.store.deployments import observe_all
from deploy.store.launches import Launch
from deploy.supervise.client import launch, take_lock, wait_for_lock
from deploy.supervise.spawn import resolved as with_secrets

# A dead process's memory and a closed server's port come back late.
MEMORY_LIMIT_S = 60.0
PORT_LIMIT_S = 10.0
POLL_S = 0.5


def start(plan: LaunchPlan) -> Launch:
    """Start a supervisor for `plan`.

    Raises:
        KdeployError: what stands against it; nothing was started.
    """
    refuse_missing_secrets(plan)
    refuse_missing_program(plan)
    take_lock_fd = _lock(plan.name)
    fds = [take_lock_fd]
    try:
        if plan.gpus:
            _await_gpus(plan)
            fds += leases.take([gpu.uuid for gpu in plan.gpus], plan.name, plan.lease_dir or None)
        _await_port(plan)
    except BaseException:
        leases.release(fds)
        raise
    return launch(plan, fds[0], fds[1:])


def _lock(name: str) -> int:
    try:
        return take_lock(name)
    except KdeployError:
        return wait_for_lock(name)


def _await_gpus(plan: LaunchPlan) -> None:
    deadline = time.monotonic() + MEMORY_LIMIT_S
    named = ",".join(gpu.uuid for gpu in plan.gpus)
    while True:
        try:
            present = inventory()
        except NoGpus as error:
            raise error.as_error() from None
        try:
            choose(present, len(plan.gpus), named, {}, Needs(plan.gpu_memory_utilization))
            return
        except KdeployError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(POLL_S)


def _await_port(plan: LaunchPlan) -> None:
    deadline = time.monotonic() + PORT_LIMIT_S
    others = [
        (entry.name, int(entry.plan.get("port", 0)))
        for entry in observe_all()
        if entry.active and entry.name != plan.name
    ]
    while True:
        try:
            refuse_taken_port(plan, others)
            return
        except KdeployError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(POLL_S)


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


def refuse_missing_program(plan: LaunchPlan) -> None:
    """Exit 6 when the plan's engine or its local model is not here any more."""
    if os.path.isabs(plan.argv[0]) and not os.access(plan.argv[0], os.X_OK):
        raise environment(f"the engine of {plan.name} is not here any more", evidence=[plan.argv[0]])
    if os.path.isabs(plan.model) and not os.path.isdir(plan.model):
        raise environment(f"the model of {plan.name} is not here any more", evidence=[plan.model])
