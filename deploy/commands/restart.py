"""`kdeploy restart NAME`: down, then up with the same plan."""

import signal

import click

from deploy import errors
from deploy.commands import options
from deploy.commands.choosing import only
from deploy.commands.following import TimedOut, follow, let_go, outcome, settled
from deploy.commands.launching import choose_gpus, close_all, free_ports
from deploy.console import output
from deploy.errors import KdeployError, environment
from deploy.lifecycle.fold import Observed
from deploy.lifecycle.states import READY
from deploy.plan.launch_plan import LaunchPlan, loads
from deploy.plan.placement import Needs
from deploy.store import leases, swaps
from deploy.store.deployments import Deployment
from deploy.store.launches import Launch
from deploy.supervise.client import held, launch, signal_supervisor, take_lock
from deploy.swap.starting import refuse_missing_secrets


@click.command()
@click.argument("name", required=False)
@options.timeout
@options.as_json
def command(name: str | None, timeout: float | None, as_json: bool) -> int:
    """Stop NAME and start it again with the plan it was launched with."""
    deployment = only(name, "restart")
    plan = recorded_plan(deployment)
    swaps.refuse_in_swap(deployment.name)
    old = deployment.launch.id if deployment.active else None
    if deployment.active:
        # the supervisor does both under one lock: nobody can get in between, and our death changes nothing
        if not signal_supervisor(deployment, signal.SIGUSR2):
            raise held(deployment.name)
        first = deployment.launch
    else:
        first = launch_recorded(plan)

    def done(observed: Observed, current: Launch) -> bool:
        # the old launch comes to its own end when somebody stops it meanwhile, or when it cannot be stopped
        return settled(observed, current) if current.id != old else _cancelled(observed)

    try:
        observed = follow(first, plan.to_json(), done=done, timeout=timeout)
    except TimedOut:
        output.say(f"{plan.name} is not ready after {timeout:g} s; it was left alone")
        return errors.TIMED_OUT
    except KeyboardInterrupt:
        output.say(f"\ndetached; {plan.name} goes on restarting: kdeploy wait {plan.name}")
        return errors.DETACHED
    if observed.state != READY:
        let_go(plan.name)
    return outcome(plan.name, as_json=as_json)


def _cancelled(observed: Observed) -> bool:
    """Whether the launch before came to an end that no new launch follows: not asked to restart any more."""
    return observed.incomplete or (observed.over and not observed.restarting)


def recorded_plan(deployment: Deployment) -> LaunchPlan:
    """The plan that a deployment was launched with."""
    try:
        with open(deployment.launch.plan, "rb") as file:
            return loads(file.read())
    except (OSError, ValueError) as error:
        raise environment(
            f"the plan of {deployment.name} cannot be read",
            evidence=[f"{deployment.launch.plan}: {error}"],
            fix=["kdeploy up PROFILE   makes a new one"],
        ) from None


def launch_recorded(plan: LaunchPlan) -> Launch:
    """Start a plan as it is, on the GPUs and the port that it names."""
    swaps.refuse_in_swap(plan.name)
    fds = [take_lock(plan.name)]
    try:
        if plan.gpus:
            named = ",".join(gpu.uuid for gpu in plan.gpus)
            choose_gpus(len(plan.gpus), named, Needs(plan.gpu_memory_utilization), plan.lease_dir or None)
            fds += leases.take([gpu.uuid for gpu in plan.gpus], plan.name, plan.lease_dir or None)
        free_ports(plan)
        refuse_missing_secrets(plan)
    except (KdeployError, KeyboardInterrupt):
        close_all(fds)
        raise
    return launch(plan, fds[0], fds[1:])
