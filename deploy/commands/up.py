"""`kdeploy up PROFILE`: plan, check, launch under a supervisor, follow until ready."""

import shlex
from typing import Any

import click

from deploy import errors
from deploy.commands import options
from deploy.commands.choosing import supervised
from deploy.commands.following import TimedOut, follow, let_go, outcome, settled
from deploy.commands.launching import checked_plan, choose_gpus, needs_of, prepare, take_or_wait
from deploy.commands.rehearsing import is_rehearsed
from deploy.commands.rehearsing import rehearse as rehearse_plan
from deploy.console import output
from deploy.lifecycle.states import FAILED, READY
from deploy.plan.gather import Wish, resolve
from deploy.plan.launch_plan import LaunchPlan
from deploy.profile.catalogue import Resolved, standard
from deploy.store.deployments import observe, to_json
from deploy.store.launches import Launch, check_name
from deploy.supervise.client import held, launch


@click.command()
@options.wish
@click.option("-d", "--detach", is_flag=True, help="Return as soon as the supervisor has taken over.")
@options.timeout
@click.option(
    "--retry-with-fix",
    is_flag=True,
    help="When it fails and the diagnosis knows the one setting that mends it: start once more with that setting.",
)
@click.option("--rehearse", is_flag=True, help="First start the same with random weights, and stop that again.")
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
    retry_with_fix: bool,
    rehearse: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Launch PROFILE under a supervisor and follow it until it is ready.

    Ready twice is a no-op. Ctrl-C stops following, never the load.
    """
    if retry_with_fix and (detach or dry_run):
        raise errors.usage("--retry-with-fix waits for the outcome", fix=["leave --detach and --dry-run out"])
    catalogue = standard([*ctx.obj["profiles"], *profiles])
    wish = Wish(profile, name, sets, extra, port)
    resolved = resolve(catalogue, wish)
    deployment = check_name(name or resolved.name)
    if dry_run:
        if rehearse:
            raise errors.usage("--rehearse starts something", fix=["leave --dry-run out"])
        choice = choose_gpus(resolved.profile.gpus, gpus, needs_of(resolved.profile))
        output.document(checked_plan(resolved, wish, choice).to_json())
        return errors.OK
    if _is_ready(deployment):
        return outcome(deployment, as_json=as_json, quiet_success=False)
    if rehearse:
        code, gpus = _rehearsed(resolved, wish, gpus, timeout)
        if code != errors.OK:
            return code
    code = _launched(resolved, wish, gpus, timeout, detach=detach, as_json=as_json and not retry_with_fix)
    if not retry_with_fix:
        return code
    settings = _settings_that_mend(deployment) if code == errors.FAILED else []
    if settings:
        words = " ".join(f"--set {shlex.quote(setting)}" for setting in settings)
        output.say(f"starting {deployment} once more with {words}")
        wish = wish._replace(sets=(*sets, *settings))
        code = _launched(resolve(catalogue, wish), wish, gpus, timeout, detach=False, as_json=False)
        if code == errors.OK:
            output.say(f"  to keep it: kdeploy up {profile} {words}, or the same keys in the profile")
    elif code == errors.FAILED:
        output.say("no one setting is known to mend this; not started again")
    if as_json:
        document_of(deployment)
    return code


def _rehearsed(resolved: Resolved, wish: Wish, gpus: str | None, timeout: float | None) -> tuple[int, str | None]:
    """The exit code of the rehearsal, and the GPUs that the real launch is to have."""
    choice = choose_gpus(resolved.profile.gpus, gpus, needs_of(resolved.profile))
    plan = checked_plan(resolved, wish, choice)
    same = ",".join(gpu.uuid for gpu in plan.gpus) or gpus
    return errors.OK if is_rehearsed(plan) else rehearse_plan(resolved, plan, choice, timeout), same


def _launched(
    resolved: Resolved, wish: Wish, gpus: str | None, timeout: float | None, *, detach: bool, as_json: bool
) -> int:
    """One launch, followed unless it is detached; the exit code."""
    plan, lock_fd, lease_fds = prepare(resolved, wish, gpus, take_or_wait)
    _announce(plan)
    try:
        started = launch(plan, lock_fd, lease_fds)
        if detach:
            output.say(f"{plan.name} is starting; kdeploy wait {plan.name}   waits until it is ready")
            if as_json:
                document_of(plan.name)
            return errors.OK
        return _followed(plan, started, timeout, as_json=as_json)
    except KeyboardInterrupt:
        _tell_detached(plan.name)
        return errors.DETACHED


def _settings_that_mend(name: str) -> list[str]:
    """`KEY=VALUE` for `--set`, as the diagnosis of its failure worked them out; nothing where none is known."""
    existing = observe(name)
    found = existing.diagnosis if existing is not None and existing.state == FAILED else None
    return list(found.get("settings", [])) if found else []


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
    if plan.load.get("reasons"):
        output.say(f"  load: {plan.load['strategy']}; {'; '.join(plan.load['reasons'])}")
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


def document_of(name: str) -> None:
    """The deployment as `status --json` gives it."""
    deployment = observe(name)
    assert deployment is not None
    output.document(to_json(deployment))


def _tell_detached(name: str) -> None:
    output.say()
    output.say(f"detached; {name} goes on loading")
    output.say(f"  come back   kdeploy wait {name}   or   kdeploy logs -f {name}")
    output.say(f"  stop it     kdeploy down {name}")
