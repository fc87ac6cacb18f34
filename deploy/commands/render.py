"""`kdeploy render PROFILE`: print what would run."""

import os
import shutil
import sys

import click

from deploy.commands import options
from deploy.console import output
from deploy.console.manifests import Invocation, compose_file, kubernetes_manifest, slurm_job, systemd_unit
from deploy.console.shell_script import shell_script
from deploy.plan.gather import Wish, plan_for_show, resolve
from deploy.plan.placement import Needs, choose
from deploy.profile.catalogue import standard

FORMATS = ("shell", "argv", "env", "json", "systemd", "compose", "k8s", "slurm")


@click.command()
@options.wish
@click.option("--format", "form", type=click.Choice(FORMATS), default="shell", show_default=True)
@options.as_json
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
    form: str,
    as_json: bool,
) -> None:
    """Print what would run. `kdeploy render PROFILE | sh` really runs it."""
    import json

    wish = Wish(profile, name, sets, extra, port)
    resolved = resolve(standard([*ctx.obj["profiles"], *profiles]), wish)
    chosen = None
    if gpus is not None:
        from deploy.host.gpus import NoGpus, inventory

        try:
            present = inventory()
        except NoGpus as error:
            raise error.as_error() from None
        chosen = choose(present, resolved.profile.gpus, gpus, {}, Needs(), must_be_free=False)
    plan = plan_for_show(resolved, wish, chosen)
    if as_json or form == "json":
        output.document(plan.to_json())
    elif form == "argv":
        output.data(json.dumps(plan.argv, ensure_ascii=False))
    elif form == "env":
        for key, value in sorted(plan.env.items()):
            output.data(f"{key}={value}")
    elif form == "systemd":
        output.data(systemd_unit(plan, _called_again(ctx, profiles, wish, gpus)).rstrip("\n"))
    elif form == "compose":
        output.data(compose_file(plan).rstrip("\n"))
    elif form == "k8s":
        output.data(kubernetes_manifest(plan).rstrip("\n"))
    elif form == "slurm":
        output.data(slurm_job(plan, shell_script(plan)))
    else:
        output.data(shell_script(plan))
    for variable, reason in plan.dropped.items():
        output.say(f"not passed on: {variable} ({reason})")
    for reason in plan.load.get("reasons", ()):
        output.say(f"load: {plan.load['strategy']}: {reason}")
    for note in plan.notes:
        output.say(f"note: {note}")


def _called_again(ctx: click.Context, profiles: tuple[str, ...], wish: Wish, gpus: str | None) -> Invocation:
    """The words with which `kdeploy supervise` makes the same launch, from any working directory."""
    words = [os.path.abspath(wish.profile) if os.path.exists(wish.profile) and "/" in wish.profile else wish.profile]
    for folder in (*ctx.obj["profiles"], *profiles):
        words += ["--profiles", os.path.abspath(folder)]
    words += ["--name", wish.name] if wish.name else []
    for text in wish.sets:
        words += ["--set", text]
    words += ["--port", str(wish.port)] if wish.port is not None else []
    words += ["--gpus", gpus] if gpus else []
    words += ["--", *wish.extra] if wish.extra else []
    return Invocation(shutil.which("kdeploy") or os.path.join(os.path.dirname(sys.executable), "kdeploy"), words)
