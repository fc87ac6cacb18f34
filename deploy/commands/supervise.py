"""`kdeploy supervise PROFILE`: the supervisor in the foreground, for a service manager that wants to own it."""

import click

from deploy.commands import options
from deploy.commands.launching import prepare, take_or_wait
from deploy.console import output
from deploy.errors import refused
from deploy.lifecycle.states import READY
from deploy.plan.gather import Wish, resolve
from deploy.profile.catalogue import standard
from deploy.store.deployments import observe
from deploy.store.launches import check_name, lock_path
from deploy.store.locks import try_lock
from deploy.supervise.client import become_supervisor, held, launch_folder


@click.command()
@options.wish
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
) -> None:
    """Launch PROFILE as `up` does, but be its supervisor: stay in the foreground until the deployment is over.

    Speaks sd_notify, prints the journal as JSON lines, and stops the engine on SIGTERM or SIGINT. An engine that serves
    without a supervisor is adopted, not loaded again.
    """
    wish = Wish(profile, name, sets, extra, port)
    resolved = resolve(standard([*ctx.obj["profiles"], *profiles]), wish)
    deployment = check_name(name or resolved.name)
    existing = observe(deployment)
    if existing is not None and existing.orphaned and existing.engine_alive:
        lock_fd = try_lock(lock_path(deployment))
        if lock_fd is None:
            raise held(deployment)
        output.say(f"{deployment}: its supervisor had died; this one adopts the engine, which runs on")
        become_supervisor("adopt", existing.launch, lock_fd, [])
    if existing is not None and existing.supervised and existing.state == READY:
        raise refused(
            f"{deployment} is served already, by supervisor {existing.supervisor_pid}",
            fix=[f"kdeploy down {deployment}"],
        )
    plan, lock_fd, lease_fds = prepare(resolved, wish, gpus, take_or_wait)
    become_supervisor("launch", launch_folder(plan), lock_fd, lease_fds)
