"""`kdeploy up PROFILE`: plan, check, launch under a supervisor, follow until ready."""

from typing import Any

import click

from deploy import errors
from deploy.commands import options
from deploy.commands.choosing import supervised
from deploy.commands.following import TimedOut, follow, let_go, outcome, settled
from deploy.commands.launching import checked_plan, choose_gpus, needs_of, prepare, take_or_wait
from deploy.console import output
from deploy.lifecycle.states import FAILED, READY
from deploy.plan.gather import Wish, resolve
from deploy.plan.launch_plan import LaunchPlan
from deploy.profile.catalogue import standard
from deploy.store.deployments import observe
from deploy.store.launches import Launch, check_name
from deploy.supervise.client import held, launch


@click.command()
@options.wish
@click.option("-d", "--detach", is_flag=True, help="Return as soon as the supervisor has taken over.")
@options.timeout
@click.option("--dry-run", is_flag=True, help="Check everything and print the plan; start nothing.")
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    profile: str,
    extra: tuple[str, ...],
    name: str | None,
    sets: tuple[str, ...],
    port: int | None,
    gpus: str | None,
    profiles: tuple[str, ...],
    detach: bool,
    timeout: float | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Launch PROFILE under a supervisor and follow it until it is ready.

    Ready twice is a no-op. Ctrl-C stops following, never the load.
    """
    wish = Wish(profile, name, sets, extra, port)
    resolved = resolve(standard([*ctx.obj["profiles"], *profiles]), wish)
    deployment = check_name(name or resolved.name)
    if dry_run:
        choice = choose_gpus(resolved.profile.gpus, gpus, needs_of(resolved.profile))
        output.document(checked_plan(resolved, wish, choice).to_json())
        return errors.OK
    if _is_ready(deployment):
        return outcome(deployment, as_json=as_json, quiet_success=False)
    plan, lock_fd, lease_fds = prepare(resolved, wish, gpus, take_or_wait)
    _announce(plan)
    try:
        started = launch(plan, lock_fd, lease_fds)
        if detach:
            output.say(f"{deployment} is starting; kdeploy wait {deployment}   waits until it is ready")
            return outcome_detached(deployment, as_json=as_json)
        return _followed(plan, started, timeout, as_json=as_json)
    except KeyboardInterrupt:
        _tell_detached(deployment)
        return errors.DETACHED


def _is_ready(name: str) -> bool:
    """Whether it serves already. A deployment in any other state of being active is somebody's operation: exit 4."""
    existing = observe(name)
    if existing is None:
        return False
    existing = supervised(existing)
    if existing.state == READY and existing.supervised:
        output.say(f"{name} is already ready; nothing to do")
        return True
    if existing.active and existing.state != FAILED:
        raise held(name)
    return False


def _announce(plan: LaunchPlan) -> None:
    engine = plan.engine.get("version") or "of unknown version"
    output.say(f"{plan.name}: vLLM {engine}, {plan.model}, {plan.url}")
    for variable, reason in plan.dropped.items():
        output.say(f"  not passed on: {variable} ({reason})")
    for note in plan.notes:
        output.say(f"  note: {note}")


def _followed(plan: LaunchPlan, started: Launch, timeout: float | None, *, as_json: bool) -> int:
    document: dict[str, Any] = plan.to_json()
    try:
        observed = follow(started, document, done=settled, timeout=timeout, replay=True)
    except TimedOut:
        output.say(f"{plan.name} is not ready after {timeout:g} s; it goes on loading")
        output.say(f"  -> kdeploy wait {plan.name}")
        return errors.TIMED_OUT
    if observed.state != READY:
        let_go(plan.name)
    return outcome(plan.name, as_json=as_json)


def outcome_detached(name: str, *, as_json: bool) -> int:
    """The answer of `up --detach`: it has been started, which is all that was asked."""
    if as_json:
        from deploy.store.deployments import to_json

        deployment = observe(name)
        assert deployment is not None
        output.document(to_json(deployment))
    return errors.OK


def _tell_detached(name: str) -> None:
    output.say()
    output.say(f"detached; {name} goes on loading")
    output.say(f"  come back   kdeploy wait {name}   or   kdeploy logs -f {name}")
    output.say(f"  stop it     kdeploy down {name}")
