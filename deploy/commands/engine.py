"""`kdeploy engine list|show|install|remove`: vLLM installations that profiles can name."""

import click

from deploy.commands import options
from deploy.console import output
from deploy.engine import install as installing
from deploy.engine.installations import find, installed
from deploy.errors import refused
from deploy.store.deployments import observe_all


@click.group()
def command() -> None:
    """vLLM installations that profiles can name."""


@command.command("list")
@options.as_json
def listing(as_json: bool) -> None:
    """Every installed engine."""
    engines = installed()
    if as_json:
        output.document({"schema": 1, "engines": [engine.to_json() for engine in engines]})
        return
    if not engines:
        output.say("no engine is installed; kdeploy engine install   (or --cpu) installs one")
        return
    output.table([("NAME", "VERSION", "INTERPRETER"), *((e.name, str(e.version), str(e.interpreter)) for e in engines)])


@command.command("show")
@click.argument("name")
@options.as_json
def show(name: str, as_json: bool) -> None:
    """One engine: an installed one, or a program by name or path."""
    engine = find(name)
    if as_json:
        output.document({"schema": 1, **engine.to_json()})
        return
    output.data(f"name         {engine.name}")
    output.data(f"version      {engine.version or f'unknown: {engine.why_unknown}'}")
    output.data(f"interpreter  {engine.interpreter or 'unknown'}")
    output.data(f"starts as    {' '.join(engine.start)} serve MODEL …")
    for key, value in engine.env.items():
        output.data(f"environment  {key}={value}")


@command.command("install")
@click.argument("version", required=False)
@click.option("--cpu", is_flag=True, help="The CPU build, for machines without a GPU.")
@click.option("--name", metavar="N", help="Name of the engine (default: vllm-VERSION).")
@options.as_json
def install(version: str | None, cpu: bool, name: str | None, as_json: bool) -> None:
    """Install vLLM VERSION into an environment of its own. An interrupted install goes on when run again."""
    engine = installing.install(installing.recipe(version, cpu=cpu, name=name), output.say)
    if as_json:
        output.document({"schema": 1, **engine.to_json()})


@command.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Remove an installed engine."""
    users = [entry.name for entry in observe_all() if entry.active and entry.plan.get("engine", {}).get("name") == name]
    if users:
        raise refused(f"{name} is in use by {', '.join(users)}", fix=[f"kdeploy down {users[0]}"])
    installing.remove(name)
    output.say(f"{name} is removed")
