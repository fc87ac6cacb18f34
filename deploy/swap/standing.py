"""How the deployments of a swap stand, from what is observed of them. Pure."""

from deploy.lifecycle.states import FAILED, STARTING, STOPPED, STOPPING
from deploy.lifecycle.states import READY as IS_READY
from deploy.lifecycle.states import UNHEALTHY as IS_UNHEALTHY
from deploy.store.deployments import Deployment
from deploy.swap import decide


def standing(found: Deployment | None, after: str | None = None) -> str:
    """One deployment in the words of `decide`.

    Args:
        found: what is observed; None when it was never launched.
        after: only a launch newer than this one counts.
    """
    if found is None or found.launch.id == after or never_begun(found):
        return decide.ABSENT
    if found.observed.incomplete:
        return decide.LEAVING if found.supervised else decide.STUCK
    if found.state == FAILED and found.observed.retry is not None and not found.observed.over:
        return decide.WAITS
    if found.state in (FAILED, STOPPED):
        # whoever holds the lock has leases too; they are free when it is
        if found.supervised or not found.observed.over:
            return decide.LEAVING
        return decide.ENDED if found.state == STOPPED else decide.DIED
    return {
        STARTING: decide.LOADING,
        IS_READY: decide.READY,
        IS_UNHEALTHY: decide.UNHEALTHY,
        STOPPING: decide.LEAVING,
    }[found.state]


def never_begun(found: Deployment) -> bool:
    """Whether the launch is a folder and no more: whoever made it was killed before a supervisor had taken over."""
    return not found.supervised and found.observed.started_at is None
