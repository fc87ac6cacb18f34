"""Which deployment a command means when it names one, several or none."""

from deploy.console.output import say
from deploy.errors import KdeployError, not_running, usage
from deploy.store.deployments import Deployment, observe, observe_all


def named(name: str) -> Deployment:
    """The deployment `name`, or exit 3 with the nearest names."""
    deployment = observe(name)
    if deployment is None:
        raise unknown(name)
    return supervised(deployment)


def unknown(name: str) -> KdeployError:
    """The error for a name that no deployment has."""
    import difflib

    known = [entry.name for entry in observe_all()]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"kdeploy up {name}   starts one"
    return not_running(
        f"no deployment is named {name!r}", evidence=[f"deployments: {', '.join(known) or 'none'}"], fix=[hint]
    )


def only(name: str | None, verb: str) -> Deployment:
    """The named deployment; without a name the only one there is, or the only active one."""
    if name is not None:
        return named(name)
    everything = observe_all()
    candidates = [entry for entry in everything if entry.active] or everything
    if not candidates:
        raise not_running("there is no deployment", fix=["kdeploy up PROFILE   starts one"])
    if len(candidates) > 1:
        raise usage(
            f"which one? {', '.join(entry.name for entry in candidates)}", fix=[f"kdeploy {verb} {candidates[0].name}"]
        )
    return supervised(candidates[0])


def supervised(deployment: Deployment) -> Deployment:
    """The deployment, with a new supervisor if its own has died; said so."""
    if not deployment.orphaned:
        return deployment
    from deploy.supervise.client import ensure_supervised

    fresh, adopted = ensure_supervised(deployment)
    if adopted and deployment.observed.incomplete:
        say(f"{fresh.name}: something of it was left when it ended; a new supervisor looks again")
        return fresh
    if adopted and deployment.engine_alive:
        say(f"{fresh.name}: its supervisor had died; a new one has adopted the engine, which runs on")
    elif adopted:
        say(f"{fresh.name}: its supervisor had died, and its engine too")
    return fresh
