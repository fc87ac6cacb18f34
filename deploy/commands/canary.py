"""`kdeploy canary NAME`: the last gate before ready, asked again of what runs."""

import time
from dataclasses import replace
from typing import Any

import click

from deploy import errors
from deploy.commands import options
from deploy.commands.choosing import only
from deploy.commands.restart import recorded_plan
from deploy.console import output
from deploy.console.canary import lines
from deploy.errors import KdeployError, environment, not_running
from deploy.lifecycle.states import SERVING
from deploy.plan.launch_plan import LaunchPlan
from deploy.store import likelihoods
from deploy.supervise.canary import Canary
from deploy.supervise.gate import canary_of, offered
from deploy.supervise.likelihood import key_of
from deploy.supervise.talk import talk


@click.command()
@click.argument("name", required=False)
@click.option("--learn", is_flag=True, help="If it passes, expect this likelihood of the checkpoint from now on.")
@options.timeout
@options.as_json
def command(name: str | None, learn: bool, timeout: float | None, as_json: bool) -> int:
    """Ask NAME the questions of the canary (without NAME: the only deployment).

    Exit 0 when it answers with sense, 1 when it does not, 3 when it does not serve.
    """
    deployment = only(name, "canary")
    if deployment.state not in SERVING:
        raise not_running(
            f"{deployment.name} is {deployment.state}: nothing answers there",
            fix=[f"kdeploy wait {deployment.name}" if deployment.active else f"kdeploy up {deployment.name}"],
        )
    plan = recorded_plan(deployment)
    if timeout is not None:
        plan = replace(plan, canary={**plan.canary, "timeout_s": timeout})
    canary, learned = ask_canary(plan, learn=learn)
    document: dict[str, Any] = {"schema": 1, "name": deployment.name, **canary.account(), "learned": learned}
    if canary.problem is not None:
        document["diagnosis"] = canary.diagnosis(plan.canary, likelihoods.path_of(key_of(plan)))
    if as_json:
        output.document(document)
    else:
        for line in lines(document):
            output.data(line)
    return errors.OK if canary.problem is None else errors.FAILED


def ask_canary(plan: LaunchPlan, *, learn: bool = False) -> tuple[Canary, bool]:
    """Ask the engine of `plan` everything; the canary with its verdict, and whether a likelihood was recorded.

    Raises:
        KdeployError: nothing answers, or it wants a key that is not to be had here.
    """
    patience = float(plan.health["timeout_s"])
    models = talk(plan, "GET", "/v1/models", patience)
    if models.status in (401, 403):
        raise environment(
            f"{plan.url} wants an API key",
            evidence=[f"GET /v1/models: HTTP {models.status}"],
            fix=["set the variable that the profile's key refers to, in this shell"],
        )
    if models.status != 200:
        raise KdeployError(
            f"{plan.url} does not answer",
            evidence=[f"GET /v1/models: {models.why or f'HTTP {models.status}'}"],
            fix=[f"kdeploy status {plan.name}", f"kdeploy logs {plan.name}"],
        )
    key = key_of(plan)
    expected = None if learn else likelihoods.recall(key)
    canary = canary_of(plan, expected, dict(offered(models.body)).get(plan.served_names[0]))
    while not canary.done:
        ask = canary.next_ask(time.monotonic())
        canary.take(talk(plan, "POST", ask.path, ask.timeout_s, ask.body), time.monotonic())
    mean = canary.learnable
    if mean is None:
        return canary, False
    document = {"mean": mean, "model": plan.model, "engine": plan.engine.get("version"), "launch": None}
    return canary, likelihoods.remember(key, document, anew=learn)
