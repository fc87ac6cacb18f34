"""`kdeploy wait NAME`: block until ready or failed."""

import click

from deploy import errors
from deploy.commands import options
from deploy.commands.choosing import named
from deploy.commands.following import TimedOut, follow, outcome, settled
from deploy.console import output
from deploy.errors import not_running
from deploy.lifecycle.states import STOPPED


@click.command()
@click.argument("name")
@options.timeout
@options.as_json
def command(name: str, timeout: float | None, as_json: bool) -> int:
    """Block until NAME is ready (exit 0) or has failed (exit 1)."""
    deployment = named(name)
    if deployment.state == STOPPED:
        raise not_running(f"{name} is stopped", fix=[f"kdeploy up {deployment.plan.get('profile', name)}"])
    try:
        observed = follow(deployment.launch, deployment.plan, done=settled, timeout=timeout)
    except TimedOut:
        output.say(f"{name} is not ready after {timeout:g} s; it was left alone")
        return errors.TIMED_OUT
    except KeyboardInterrupt:
        output.say(f"\nno longer waiting; {name} goes on")
        return errors.DETACHED
    if observed.state == STOPPED:
        raise not_running(f"{name} was stopped while we waited")
    return outcome(name, as_json=as_json)
