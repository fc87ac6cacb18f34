"""`kdeploy down`: drain, stop, and prove that it is gone."""

import os
import signal
import time
from collections.abc import Sequence

import click

from deploy import errors
from deploy.commands import options
from deploy.commands.choosing import named, only
from deploy.commands.following import TimedOut, follow, let_go, tell_failure
from deploy.console import output
from deploy.errors import KdeployError, not_running
from deploy.lifecycle.fold import Observed
from deploy.lifecycle.states import FAILED, STOPPED
from deploy.store import swaps
from deploy.store.deployments import Deployment, observe, observe_all, supervisor_of, to_json
from deploy.store.journal import Journal
from deploy.store.launches import Launch, lock_path
from deploy.store.locks import try_lock
from deploy.supervise.client import ask_to_stop, ensure_supervised, held, signal_supervisor

UNRESPONSIVE_S = 10.0


@click.command()
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every deployment that is active.")
@click.option("--force", is_flag=True, help="Do not wait for running requests.")
@options.timeout
@options.as_json
def command(names: Sequence[str], everything: bool, force: bool, timeout: float | None, as_json: bool) -> int:
    """Drain, stop, and prove that it is gone (without NAME: the only deployment)."""
    if everything:
        targets = [named(entry.name) for entry in observe_all() if entry.active]
        if not targets:
            output.say("nothing is running")
    elif names:
        targets = [named(name) for name in dict.fromkeys(names)]
    else:
        targets = [only(None, "down")]
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        codes = _stop_all(targets, deadline, force=force)
    except KeyboardInterrupt:
        output.say("\nno longer waiting; what was asked to stop goes on stopping   (kdeploy ps shows it)")
        return errors.DETACHED
    if as_json:
        found = [observe(deployment.name) for deployment in targets]
        output.document({"schema": 1, "deployments": [to_json(entry) for entry in found if entry]})
    return max(codes, default=errors.OK)


def stop(deployment: Deployment, *, force: bool) -> int:
    """Stop one deployment and follow it to its end; the exit code."""
    return _stop_all([deployment], None, force=force)[0] if deployment.active else errors.OK


def _stop_all(targets: Sequence[Deployment], deadline: float | None, *, force: bool) -> list[int]:
    """Ask all of them first, then follow each to its end; their exit codes."""
    active = [deployment for deployment in targets if deployment.active]
    for deployment in active if not force else ():  # with force the swap sees that it has ended, and decides anew
        swaps.refuse_in_swap(deployment.name)
    for deployment in active:
        _ask(deployment, force=force)
    codes = []
    for deployment in targets:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            codes.append(_ended(deployment, left, force=force))
        except KdeployError as error:
            if len(targets) == 1:
                raise
            output.error(error)
            codes.append(error.code)
    return codes


def _ask(deployment: Deployment, *, force: bool) -> None:
    deadline = time.monotonic() + 5.0
    while not ask_to_stop(deployment, force=force):
        # a command holds the lock for the moment between planning and the supervisor's start
        fresh = observe(deployment.name)
        if fresh is None or not fresh.active:
            return
        if time.monotonic() > deadline:
            raise held(deployment.name)
        ensure_supervised(fresh)
        time.sleep(0.05)


def _ended(deployment: Deployment, timeout: float | None, *, force: bool) -> int:
    """Follow one deployment to its end; the exit code."""
    name = deployment.name
    if not deployment.active:
        return _already_ended(deployment)
    began = time.monotonic()
    replaced = False

    def over(observed: Observed, launch: Launch) -> bool:
        nonlocal replaced
        answered = observed.state not in ("starting", "ready", "unhealthy")
        if not answered and not replaced and time.monotonic() - began > UNRESPONSIVE_S:
            replaced = True
            _replace_supervisor(name, force=force)
        return (observed.over and observed.state in (STOPPED, FAILED)) or _incomplete(observed)

    try:
        follow(deployment.launch, deployment.plan, done=over, timeout=timeout)
    except TimedOut:
        output.say(f"{name} is not down after {timeout:g} s; it goes on stopping")
        return errors.TIMED_OUT
    let_go(name)
    fresh = observe(name)
    assert fresh is not None
    if fresh.state == STOPPED:
        output.say(f"{name} is down: every process ended{_memory_words(fresh.observed)}")
        return errors.OK
    if _incomplete(fresh.observed):
        return tell_failure(fresh)
    return _already_ended(fresh)


def _memory_words(observed: Observed) -> str:
    if not observed.gpu_memory:
        return ""
    count = len(observed.gpu_memory)
    if observed.memory_unproven:
        return "; GPU memory was not proven to be back"
    return f", and its memory on {count} GPU{'' if count == 1 else 's'} is back"


def _incomplete(observed: Observed) -> bool:
    return observed.diagnosis is not None and observed.diagnosis["cause"] == "teardown-incomplete"


def _replace_supervisor(name: str, *, force: bool) -> None:
    """The supervisor does not react. With --force it is ended and another one takes the engine over to stop it."""
    identity = supervisor_of(name)
    if identity is None:
        return
    if not force:
        output.say(f"the supervisor of {name} (pid {identity.pid}) does not react; down --force replaces it")
        return
    from deploy.host.processes import send

    send(identity, signal.SIGKILL)
    time.sleep(0.2)
    deployment = observe(name)
    if deployment is not None:
        ensure_supervised(deployment)
        signal_supervisor(deployment, signal.SIGUSR1)


def _already_ended(deployment: Deployment) -> int:
    """Nothing runs any more. A failed one is put away; a stopped one is not there to be stopped."""
    name = deployment.name
    if deployment.state == STOPPED:
        raise not_running(f"{name} is already stopped", fix=[f"kdeploy up {deployment.plan.get('profile', name)}"])
    lock_fd = try_lock(lock_path(name))
    if lock_fd is None:
        raise held(name)
    Journal(deployment.launch.events).append("stopped", {"state": STOPPED, "after": FAILED})
    os.close(lock_fd)
    output.say(f"{name} had failed, and nothing of it is running; now stopped")
    return errors.OK
