"""`kdeploy status NAME`: one deployment in full."""

from typing import Any

import click

from deploy.commands import options
from deploy.commands.choosing import only
from deploy.console import output
from deploy.console.words import duration, load_summary, progress
from deploy.lifecycle.states import READY, STARTING
from deploy.store import history
from deploy.store.deployments import Deployment, to_json


@click.command()
@click.argument("name", required=False)
@options.as_json
def command(name: str | None, as_json: bool) -> None:
    """One deployment in full (without NAME: the only one)."""
    deployment = only(name, "status")
    memory: dict[str, int | None] = {}
    if deployment.plan.get("gpus") and deployment.active:
        from deploy.host.gpus import used_mib

        memory = used_mib()
    status = to_json(deployment, memory)
    if as_json:
        output.document(status)
        return
    for label, value in _lines(deployment, status):
        output.data(f"{label:<12}{value}")
    if deployment.diagnosis:
        output.say()
        output.diagnosis(deployment.diagnosis, deployment.launch.log)


def _lines(deployment: Deployment, status: dict[str, Any]) -> list[tuple[str, str]]:
    state = status["state"] + (f", {status['phase']}" if status["phase"] else "")
    lines = [
        ("name", status["name"]),
        ("state", state),
        ("profile", str(status["profile"])),
        ("model", str(status["model"])),
        ("url", str(status["url"])),
        ("engine", f"vLLM {status['engine']['version'] or 'of unknown version'} ({status['engine']['name']})"),
        ("launch", status["launch"]),
        ("started", str(status["started_at"])),
    ]
    if status["ready_at"]:
        lines.append(("ready", status["ready_at"]))
    if deployment.active:
        lines.append(("processes", f"engine {status['pid'] or '-'}, supervisor {status['supervisor_pid'] or 'none'}"))
    if status["state"] == STARTING:
        lines.append(("load", progress(status["load"])))
    if status["state"] == READY:
        plan = deployment.plan
        key = history.fingerprint(plan["model"], plan["engine"], plan["argv"], len(plan["gpus"]))
        took = deployment.observed.remembered
        past = [entry for entry in history.entries(key) if entry.get("on") != took.get("on")]
        lines += [("load", text) for text in load_summary(took, past)]
    lines += [("phase", f"{entry['phase']:<9}{duration(entry['seconds'])}") for entry in status["phases"]]
    lines += [("gpu", f"{gpu['index']}  {_mib(gpu['memory_used_mib'])}  {gpu['uuid']}") for gpu in status["gpus"]]
    lines += [("fact", f"{key} {value}") for key, value in status["facts"].items()]
    if status["restarts"]:
        lines.append(("restarts", str(status["restarts"])))
    if status["exit"]:
        lines.append(("exit", _exit(status["exit"])))
    lines.append(("log", status["log"]))
    return lines


def _mib(value: int | None) -> str:
    return "n/a" if value is None else f"{value} MiB"


def _exit(found: dict[str, Any]) -> str:
    how = found["signal"] or ("code unknown" if found["exit_code"] is None else f"code {found['exit_code']}")
    return f"{how}, {'asked' if found['asked'] else 'unasked'}"
