"""`kdeploy swap PROFILE`: replace what runs; if that fails, bring it back."""

import os
from typing import Any

import click

from deploy import errors
from deploy.commands import options
from deploy.commands.choosing import named, supervised
from deploy.commands.following import TimedOut
from deploy.commands.launching import Choice, checked_plan, choose_gpus, gpus_of, needs_of
from deploy.commands.rehearsing import is_rehearsed
from deploy.commands.rehearsing import rehearse as rehearse_plan
from deploy.commands.restart import recorded_plan
from deploy.commands.swapping import follow, tell
from deploy.console import output
from deploy.console.words import duration
from deploy.errors import KdeployError, not_running, usage
from deploy.lifecycle.states import READY
from deploy.plan.gather import Wish, resolve
from deploy.plan.launch_plan import LaunchPlan
from deploy.profile.catalogue import Resolved, standard
from deploy.profile.schema import Profile
from deploy.store import swaps
from deploy.store.deployments import Deployment, observe_all
from deploy.store.launches import check_name, newest
from deploy.supervise.client import held
from deploy.swap import client
from deploy.swap.estimate import start_seconds, stop_seconds
from deploy.swap.starting import refuse_missing_program, refuse_missing_secrets
from deploy.swap.warming import is_worth_it


@click.command()
@options.optional_wish
@click.option("--from", "old_name", metavar="NAME", help="The deployment to replace (default: the only active one).")
@click.option("--force", is_flag=True, help="Do not wait for the old one's running requests.")
@click.option("--no-rollback", is_flag=True, help="When the new one fails, do not bring the old one back.")
@options.timeout
@click.option("--rehearse", is_flag=True, help="First start PROFILE with random weights, and stop that again.")
@click.option("--dry-run", is_flag=True, help="Check everything and print the steps; touch nothing.")
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    profile: str | None,
    extra: tuple[str, ...],
    name: str | None,
    sets: tuple[str, ...],
    port: int | None,
    gpus: str | None,
    profiles: tuple[str, ...],
    old_name: str | None,
    force: bool,
    no_rollback: bool,
    timeout: float | None,
    rehearse: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Replace what runs by PROFILE. A failure before the old one stops leaves it untouched; a later one brings it back.

    Without PROFILE: follow the swap that is under way, or tell how the last one went.
    """
    if profile is None:
        return _followed(_under_way(), timeout, as_json=as_json)
    if (order := swaps.under_way()) is not None:
        raise swaps.busy(order)
    wish = Wish(profile, name, sets, extra, port)
    resolved = resolve(standard([*ctx.obj["profiles"], *profiles]), wish)
    new_name = check_name(name or resolved.name)
    old = _old(old_name, new_name)
    if old is None:
        output.say(f"{new_name} is ready already, and nothing else runs; nothing to do")
        return errors.OK
    if dry_run:
        plan, _ = _planned(resolved, wish, gpus, old, rollback=not no_rollback)
        _tell_steps(_order(plan, old, force=force, rollback=not no_rollback), as_json=as_json)
        return errors.OK
    lock_fd = client.take_lock()  # from here on nobody else swaps
    try:
        plan, choice = _planned(resolved, wish, gpus, old, rollback=not no_rollback)
        code = _rehearsed(resolved, plan, choice, old, timeout) if rehearse else errors.OK
        if code != errors.OK:
            return code  # the lock ends with us
        order = _order(plan, old, force=force, rollback=not no_rollback)
    except BaseException:
        os.close(lock_fd)
        raise
    output.say(f"swap {old.name} -> {new_name}: {_manner(order)}")
    return _followed(client.begin(order, lock_fd), timeout, as_json=as_json)


def _under_way() -> swaps.Swap:
    swap = swaps.unfinished()
    if swap is not None:
        return swap
    last = swaps.newest()
    if last is None:
        raise usage("there has been no swap", fix=["kdeploy swap PROFILE   begins one"])
    output.say("no swap is under way; the last one went so:")
    return last


def _old(old_name: str | None, new_name: str) -> Deployment | None:
    """The deployment to replace; None when the new one is what runs already."""
    if old_name is not None and not (old := named(old_name)).active:
        raise not_running(f"{old_name} is {old.state}; there is nothing to replace", fix=[f"kdeploy up {new_name}"])
    active = [supervised(entry) for entry in observe_all() if entry.active]
    new = next((entry for entry in active if entry.name == new_name), None)
    others = [entry for entry in active if entry is not new and old_name in (None, entry.name)]
    if new is not None:
        if not others and new.state == READY:
            return None
        raise _runs_already(new, others)
    if not others:
        raise not_running("nothing runs that could be replaced", fix=[f"kdeploy up {new_name}   starts it"])
    if len(others) > 1:
        raise usage(
            f"which one is to be replaced? {', '.join(entry.name for entry in others)}",
            fix=[f"kdeploy swap {new_name} --from {others[0].name}"],
        )
    return others[0]


def _runs_already(new: Deployment, others: list[Deployment]) -> KdeployError:
    refusal = held(new.name)
    fix = [f"kdeploy down {entry.name}   stops the other one" for entry in others]
    fix.append("kdeploy swap PROFILE --name ANOTHER   replaces it by a new version of itself")
    return errors.refused(refusal.what, evidence=refusal.evidence, fix=fix)


def _planned(
    resolved: Resolved, wish: Wish, gpus: str | None, old: Deployment, *, rollback: bool
) -> tuple[LaunchPlan, Choice]:
    """The plan of NEW, once nothing speaks against it: it must be able to start, and OLD to start again."""
    old_plan = recorded_plan(old)
    if rollback:
        refuse_missing_secrets(old_plan)
        refuse_missing_program(old_plan)
    choice = _choice(resolved.profile, gpus, old)
    return checked_plan(resolved, wish, choice, old), choice


def _rehearsed(resolved: Resolved, plan: LaunchPlan, choice: Choice, old: Deployment, timeout: float | None) -> int:
    if is_rehearsed(plan):
        return errors.OK
    shared = [str(gpu.index) for gpu in plan.gpus if gpu.uuid in gpus_of(old)]
    if shared:
        raise errors.refused(
            f"{plan.name} cannot be rehearsed on GPUs that {old.name} uses",
            evidence=[f"GPU {', '.join(shared)}"],
            fix=["rehearse it where they are free: kdeploy up PROFILE --rehearse", "or leave --rehearse out"],
        )
    return rehearse_plan(resolved, plan, choice, timeout)


def _order(plan: LaunchPlan, old: Deployment, *, force: bool, rollback: bool) -> dict[str, Any]:
    """What is to be done, as the runner reads it."""
    old_plan = recorded_plan(old)
    before = newest(plan.name)
    return {
        "old": old.name,
        "old_plan": old_plan.to_json(),
        "new_plan": plan.to_json(),
        "new_before": before.id if before is not None else None,
        "together": _together(plan, old_plan),
        "warm": is_worth_it(plan),
        "force": force,
        "rollback": rollback,
    }


def _choice(profile: Profile, gpus: str | None, old: Deployment) -> Choice:
    """GPUs beside those of OLD where it can go on serving meanwhile, else also its own."""
    needs = needs_of(profile)
    if profile.gpus and gpus_of(old) and profile.serve.port != old.plan.get("port"):
        try:
            return choose_gpus(profile.gpus, gpus, needs)
        except KdeployError as error:
            if error.code not in (errors.REFUSED, errors.WILL_NOT_FIT):
                raise
    return choose_gpus(profile.gpus, gpus, needs, leaving=old)


def _together(new: LaunchPlan, old: LaunchPlan) -> bool:
    """Whether NEW needs a GPU or the port of OLD, so that OLD must be gone first."""
    return new.port == old.port or bool({gpu.uuid for gpu in new.gpus} & {gpu.uuid for gpu in old.gpus})


def _manner(order: dict[str, Any]) -> str:
    if not order["together"]:
        return "no GPU and no port in common, so the new one starts first and nothing is interrupted"
    return "they share GPUs or the port, so the old one stops first"


def _steps(order: dict[str, Any]) -> list[dict[str, Any]]:
    old, new = order["old"], order["new_plan"]["name"]
    drain = "without a drain" if order["force"] else "when its requests have finished"
    stop = {"step": "stop-old", "what": f"stop {old} {drain}", "seconds": stop_seconds(old)}
    start = {"step": "start-new", "what": f"start {new}, until its canary has passed", "seconds": start_seconds(new)}
    if not order["together"]:
        return [start, stop]
    if not order["warm"]:
        return [stop, start]
    what = f"read the weights of {new} into memory while {old} serves"
    return [{"step": "warm", "what": what, "seconds": _warm_seconds(order["new_plan"])}, stop, start]


def _warm_seconds(plan: dict[str, Any]) -> float | None:
    """By the disk's own rate, where it was measured."""
    rate, cold = plan["load"].get("probe_bytes_per_s"), 1 - (plan["load"].get("resident") or 0)
    return round(cold * sum(shard["size"] for shard in plan["shards"]) / rate, 1) if rate else None


def _tell_steps(order: dict[str, Any], *, as_json: bool) -> None:
    steps = _steps(order)
    old, new = order["old"], order["new_plan"]["name"]
    if as_json:
        keys = ("together", "warm", "force", "rollback")
        output.document(
            {"schema": 1, "dry_run": True, "from": old, "to": new}
            | {key: order[key] for key in keys}
            | {"steps": steps, "plan": order["new_plan"]}
        )
        return
    output.data(f"swap {old} -> {new}: {_manner(order)}")
    for number, step in enumerate(steps, 1):
        seconds = step["seconds"]
        basis = "by the disk's rate" if step["step"] == "warm" else "as before"
        took = "never done before" if seconds is None else f"about {duration(seconds)}, {basis}"
        output.data(f"  {number}. {step['what']}   ({took})")
    back = start_seconds(old)
    took = "" if back is None else f", about {duration(back)}"
    if not order["rollback"]:
        output.data(f"  if {new} fails: nothing is brought back (--no-rollback)")
    elif order["together"]:
        output.data(f"  if {new} fails: start {old} again from its recorded plan{took}")
    else:
        output.data(f"  if {new} fails: {old} goes on, it was not stopped")


def _followed(swap: swaps.Swap, timeout: float | None, *, as_json: bool) -> int:
    try:
        told = follow(swap, timeout)
    except TimedOut:
        output.say(f"the swap is not over after {timeout:g} s; it goes on: kdeploy swap   follows it")
        return errors.TIMED_OUT
    except KeyboardInterrupt:
        output.say("\ndetached; the swap goes on: kdeploy swap   follows it to its end")
        return errors.DETACHED
    return tell(swap, told, as_json=as_json)
