"""Following a deployment until it is settled, with a deadline, and what that means for the exit code."""

import time
from collections.abc import Callable
from typing import Any

from deploy import errors
from deploy.console import output
from deploy.console.follow import renderer
from deploy.errors import KdeployError, environment
from deploy.lifecycle.fold import Observed, apply, is_settled
from deploy.lifecycle.states import FAILED, READY
from deploy.store.deployments import Deployment, observe, to_json
from deploy.store.launches import Launch, lock_path
from deploy.store.locks import is_held
from deploy.supervise.client import POLL_S, Follower, ensure_supervised

RELEASE_LIMIT_S = 10.0


class TimedOut(Exception):
    """The deadline passed; the deployment was left alone."""


def follow(
    launch: Launch,
    plan: dict[str, Any],
    *,
    done: Callable[[Observed, Launch], bool],
    timeout: float | None = None,
    replay: bool = False,
) -> Observed:
    """Read a deployment's journal on until `done(observed, launch)`, showing events; restarts are followed too.

    With `replay`, what has happened so far is shown too.

    Raises:
        TimedOut: `timeout` seconds have passed.
    """
    follower = Follower(launch)
    observed = Observed()
    show = renderer(plan)
    for event in follower.poll() if not replay else ():
        apply(observed, event)
        show.absorb(event)
    deadline = None if timeout is None else time.monotonic() + timeout
    checked = time.monotonic()
    adopted_at: tuple[Launch, int] | None = None
    try:
        while True:
            current = follower.launch
            for event in follower.poll():
                if follower.launch is not current:
                    current, observed = follower.launch, Observed()
                apply(observed, event)
                show.event(event)
            if done(observed, follower.launch):
                return observed
            show.idle()
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise TimedOut
            if now - checked >= 1.0:
                checked = now
                if _keep_supervised(launch.deployment):
                    place = (follower.launch, follower.tail.offset)
                    if place == adopted_at:  # the one before could not even write that it had adopted
                        raise _unwritable(follower.launch)
                    adopted_at = place
            time.sleep(POLL_S)
    finally:
        show.close()


def _keep_supervised(name: str) -> bool:
    """A supervisor that is killed while we follow is replaced, and its journal goes on. Whether it had to be."""
    if is_held(lock_path(name)):
        return False
    deployment = observe(name)
    return deployment is not None and ensure_supervised(deployment)[1]


def _unwritable(launch: Launch) -> KdeployError:
    deployment = observe(launch.deployment)
    alive = deployment is not None and deployment.engine_alive
    return environment(
        f"the journal of {launch.deployment} cannot be written",
        evidence=[launch.events, f"the engine {'is still running' if alive else 'has ended'}"],
        fix=[f"make room on that disk, then: kdeploy down {launch.deployment}"],
    )


def settled(observed: Observed, launch: Launch) -> bool:
    """Ready, stopped, or failed for good."""
    return is_settled(observed)


def outcome(name: str, *, as_json: bool, quiet_success: bool = False) -> int:
    """Tell how a deployment stands after following it; the exit code."""
    deployment = observe(name)
    assert deployment is not None
    if as_json:
        output.document(to_json(deployment))
    if deployment.state == READY:
        if not quiet_success:
            _tell_ready(deployment)
        return errors.OK
    if deployment.state == FAILED:
        return tell_failure(deployment)
    output.say(f"{name} is {deployment.state}")
    return errors.FAILED


def _tell_ready(deployment: Deployment) -> None:
    plan, name = deployment.plan, deployment.name
    status = to_json(deployment)
    output.say(f"{name} is ready: {status['url']}   model {status['model']}")
    body = f'{{"model": "{status["model"]}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    output.say(
        "  try it    " + f"curl {status['url']}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"
    )
    output.say(f"  follow    kdeploy logs -f {name}")
    output.say(f"  stop      kdeploy down {name}")
    for note in plan.get("notes", ()):
        output.say(f"  note      {note}")


def tell_failure(deployment: Deployment) -> int:
    """Why it failed, and what to do next; the exit code."""
    found = deployment.diagnosis or {"cause": "unknown", "summary": "no diagnosis was recorded"}
    output.say(f"error: {deployment.name} has failed")
    output.diagnosis(found, deployment.launch.log)
    output.say(f"  -> kdeploy logs {deployment.name}   shows the engine's log")
    if found["cause"] == "teardown-incomplete":
        return errors.TEARDOWN_INCOMPLETE
    return errors.ENVIRONMENT if found["cause"] == "cannot-spawn" else errors.FAILED


def let_go(name: str) -> None:
    """Wait until the supervisor has let go of the lock after its last record: the next command must find it free."""
    deadline = time.monotonic() + RELEASE_LIMIT_S
    while is_held(lock_path(name)) and time.monotonic() < deadline:
        time.sleep(POLL_S / 5)
