"""`kdeploy doctor [PROFILE]`: the host examined before the long wait."""

import click

from deploy import errors
from deploy.commands import options
from deploy.console import output
from deploy.console.examination import lines
from deploy.doctor.checks import counts, examine
from deploy.doctor.finding import FAIL
from deploy.doctor.gather import gather
from deploy.plan.gather import Wish, plan_for_show, resolve
from deploy.profile.catalogue import standard


@click.command()
@click.argument("profile", required=False)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override one key: --set serve.port=1.")
@options.profiles
@options.as_json
@click.pass_context
def command(
    ctx: click.Context, profile: str | None, sets: tuple[str, ...], profiles: tuple[str, ...], as_json: bool
) -> int:
    """Examine the host, and what PROFILE asks of it. Reads only; remedies are printed, never carried out.

    Exit 0, or 1 when a check fails.
    """
    if profile is None and sets:
        raise errors.usage("--set belongs to a profile", fix=["kdeploy doctor PROFILE --set KEY=VALUE"])
    resolved = plan = None
    if profile is not None:
        wish = Wish(profile, sets=sets)
        resolved = resolve(standard([*ctx.obj["profiles"], *profiles]), wish)
        if resolved.profile.model.path or resolved.profile.model.id:
            plan = plan_for_show(resolved, wish)
    results = examine(gather(resolved, plan))
    found = counts(results)
    if as_json:
        document = {
            "schema": 1,
            "profile": resolved.name if resolved else None,
            "checks": [result.to_json() for result in results],
            "counts": found,
        }
        output.document(document)
    else:
        for line in lines(results):
            output.data(line)
        output.data("")
        output.data(", ".join(f"{count} {status}" for status, count in found.items() if count))
    return errors.FAILED if found[FAIL] else errors.OK
