"""`kdeploy render PROFILE`: print what would run."""

import click

from deploy.commands import options
from deploy.console import output
from deploy.console.shell_script import shell_script
from deploy.plan.gather import Wish, plan_for_show, resolve
from deploy.plan.placement import choose
from deploy.profile.catalogue import standard

FORMATS = ("shell", "argv", "env", "json")


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
        chosen = choose(present, resolved.profile.gpus, gpus, {}, None, must_be_free=False)
    plan = plan_for_show(resolved, wish, chosen)
    if as_json or form == "json":
        output.document(plan.to_json())
    elif form == "argv":
        output.data(json.dumps(plan.argv, ensure_ascii=False))
    elif form == "env":
        for key, value in sorted(plan.env.items()):
            output.data(f"{key}={value}")
    else:
        output.data(shell_script(plan))
    for variable, reason in plan.dropped.items():
        output.say(f"not passed on: {variable} ({reason})")
    for note in plan.notes:
        output.say(f"note: {note}")
