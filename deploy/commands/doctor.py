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
@click.option("--collective", is_flag=True, help="Time an all-reduce of PROFILE's ranks, and check its sums.")
@click.option("--gpus", metavar="LIST", help="With --collective: these GPUs, by index, UUID or PCI address.")
@click.option(
    "--step-timeout",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    metavar="S",
    help="With --collective: seconds without any progress after which it counts as hanging.",
)
@options.profiles
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    profile: str | None,
    sets: tuple[str, ...],
    collective: bool,
    gpus: str | None,
    step_timeout: float,
    profiles: tuple[str, ...],
    as_json: bool,
) -> int:
    """Examine the host, and what PROFILE asks of it. Reads only; remedies are printed, never carried out.

    Exit 0, or 1 when a check fails.
    """
    if collective and profile is None:
        raise errors.usage(
            "--collective runs in a profile's engine and NCCL environment", fix=["kdeploy doctor PROFILE --collective"]
        )
    if profile is None and sets:
        raise errors.usage("--set belongs to a profile", fix=["kdeploy doctor PROFILE --set KEY=VALUE"])
    resolved = plan = None
    if profile is not None:
        wish = Wish(profile, sets=sets)
        resolved = resolve(standard([*ctx.obj["profiles"], *profiles]), wish)
        if collective:
            from deploy.commands.all_reduce import try_all_reduce

            return try_all_reduce(resolved, wish, gpus, step_timeout, as_json=as_json)
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
