"""Every deployment, one row each: what `kdeploy ps` shows."""

from deploy.commands.choosing import supervised
from deploy.console import output
from deploy.console.words import duration, progress
from deploy.lifecycle.fold import seconds_between
from deploy.lifecycle.states import READY, SERVING, STARTING
from deploy.store.deployments import Deployment, observe_all, to_json
from deploy.store.journal import timestamp


def overview(*, as_json: bool) -> None:
    """Print it: a table, or one JSON document."""
    everything = [supervised(deployment) for deployment in observe_all()]
    if as_json:
        output.document({"schema": 1, "deployments": [to_json(deployment) for deployment in everything]})
        return
    if not everything:
        output.say("no deployments; kdeploy up PROFILE starts one")
        return
    rows: list[tuple[str, ...]] = [("NAME", "STATE", "DETAIL", "MODEL", "URL", "PID")]
    rows += [_row(deployment) for deployment in everything]
    output.table(rows)


def _row(deployment: Deployment) -> tuple[str, ...]:
    status = to_json(deployment)
    return (
        deployment.name,
        deployment.state,
        _detail(deployment, status),
        str(status["model"] or ""),
        str(status["url"] or "") if deployment.active else "",
        str(status["pid"] or ""),
    )


def _detail(deployment: Deployment, status: dict[str, object]) -> str:
    observed = deployment.observed
    if deployment.state == STARTING:
        load = status["load"]
        assert isinstance(load, dict)
        return f"{observed.phase} {progress(load)}".strip() if observed.phase == "weights" else str(observed.phase)
    if deployment.state in SERVING and observed.ready_at:
        import time

        up = duration(seconds_between(observed.ready_at, timestamp(time.time())))
        return f"up {up}" if deployment.state == READY else f"was up {up}"
    return str(deployment.diagnosis["cause"]) if deployment.diagnosis else ""
