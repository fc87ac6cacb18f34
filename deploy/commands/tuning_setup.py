"""What a tune is going to do: whom it is about, which candidates apply, how long it takes."""

import os
from typing import Any

from deploy.commands.choosing import supervised
from deploy.commands.launching import checked_plan, choose_gpus, needs_of
from deploy.commands.restart import recorded_plan
from deploy.engine.flags import shipped_flags
from deploy.errors import KdeployError, refused, usage
from deploy.measure.bench import Wanted
from deploy.measure.prompts import TASKS
from deploy.plan.gather import Wish, resolve
from deploy.plan.launch_plan import LaunchPlan
from deploy.profile.catalogue import SUFFIXES, Resolved, invalid, standard
from deploy.profile.validate import nearest
from deploy.profile.yaml_reader import BYTES_LIMIT
from deploy.store import benches, history, tunes
from deploy.store.deployments import observe
from deploy.store.launches import NAME
from deploy.tuning import budget
from deploy.tuning.budget import Estimate
from deploy.tuning.candidates import Candidate, built_in, read
from deploy.tuning.changes import objection, shape_of
from deploy.tuning.course import Setup, tried
from deploy.tuning.decision import LEAST


def name_of(which: str, chosen: dict[str, Any]) -> str:
    """The deployment's name that the argument means."""
    path = "/" in which or which.endswith(SUFFIXES)
    if not path and NAME.fullmatch(which) and observe(which) is not None:
        return which
    return _resolved(which, chosen).name


def _resolved(which: str, chosen: dict[str, Any]) -> Resolved:
    return resolve(standard(chosen["profiles"]), Wish(which, sets=chosen["sets"], port=chosen["port"]))


def subject(which: str, name: str, chosen: dict[str, Any]) -> LaunchPlan:
    """The plan of the baseline: of what runs as it runs, else of the profile as it would be launched."""
    deployment = observe(name)
    if deployment is not None and deployment.active:
        if which != name:
            raise refused(f"{name} runs, and what runs is tuned by its name", fix=[f"kdeploy tune {name}"])
        if chosen["sets"] or chosen["gpus"] or chosen["port"]:
            raise usage(f"{name} runs and is tuned as it runs", fix=["leave --set, --gpus and --port out"])
        return recorded_plan(supervised(deployment))
    try:
        resolved = _resolved(which, chosen)
    except KdeployError:
        if deployment is None or chosen["sets"]:
            raise
        return recorded_plan(deployment)  # its profile is gone; what it was launched with is not
    choice = choose_gpus(resolved.profile.gpus, chosen["gpus"], needs_of(resolved.profile))
    return checked_plan(resolved, Wish(which, None, chosen["sets"], (), chosen["port"]), choice)


def setup(plan: LaunchPlan, chosen: dict[str, Any]) -> tuple[Setup, Estimate]:
    """What is going to be done, and how long that takes. Refuses (exit 2) what cannot come to anything."""
    candidates = _candidates(chosen)
    flags = shipped_flags()
    objections = {one.name: text for one in candidates if (text := objection(one, plan, flags, os.path.exists))}
    wanted = Setup(
        name=plan.name,
        profile=plan.profile,
        metric=chosen["metric"],
        concurrency=chosen["concurrency"],
        rounds=chosen["rounds"],
        finalists=chosen["finalists"],
        margin=chosen["margin"],
        runs=chosen["runs"],
        input_tokens=chosen["input_tokens"],
        output_tokens=chosen["output_tokens"],
        budget_s=chosen["budget"],
        candidates=candidates,
        objections=objections,
        no_collective=_no_collective(plan),
        coherence=bool(plan.canary.get("coherence", True)),
    )
    if not tried(wanted):
        why = [f"{name}: {text}" for name, text in objections.items()]
        raise usage("no candidate can do anything here", evidence=why, fix=["others: --candidates FILE"])
    loads, stops = tunes.past_seconds(plan.profile)
    key = history.fingerprint(plan.model, plan.engine, plan.argv, len(plan.gpus))
    # loads of this very command line say more than those of the profile
    same = [sum(entry["phases"].values()) for entry in history.entries(key)[-history.LEARNED_FROM :]]
    found = budget.estimate(same or loads, stops, _cell_seconds(plan.name, chosen))
    wanted = budget.trimmed(wanted, found)
    least = budget.too_small(wanted, found)
    if least is not None:
        raise usage(
            f"the budget of {budget.words(chosen['budget'])} is too small for one candidate",
            evidence=[
                f"{LEAST} rounds take about {budget.words(least)}, by this profile's last {found.launches} loads"
            ],
            fix=[f"--budget {least * 1.2:.0f}s"],
        )
    return wanted, found


def _candidates(chosen: dict[str, Any]) -> list[Candidate]:
    """The shipped ones and the user's (a name given twice is the later one), or those of --only."""
    known = {one.name: one for one in built_in()}
    for file in chosen["candidates"]:
        try:
            with open(file, "rb") as stream:
                found, problems = read(stream.read(BYTES_LIMIT + 1), file)
        except OSError as error:
            raise usage(f"cannot read {file}", evidence=[f"{file}: {error.strerror}"]) from None
        if problems:
            raise usage("the candidates are not valid", evidence=invalid(problems).evidence)
        known |= {one.name: one for one in found}
    for name in chosen["only"]:
        if name not in known:
            close = nearest(name, known)
            hint = f"did you mean {close}?" if close else f"there are {', '.join(known)}"
            raise usage(f"no candidate is named {name!r}", fix=[hint])
    return [one for one in known.values() if not chosen["only"] or one.name in chosen["only"]]


def _no_collective(plan: LaunchPlan) -> str | None:
    shape = shape_of(plan)
    if shape.gpus == 0:
        return "a CPU engine has no NCCL"
    if shape.ranks < 2:
        return "one rank has nothing to reduce"
    return None if plan.engine.get("interpreter") else "the engine's interpreter is not known, so torch cannot be asked"


def _cell_seconds(name: str, chosen: dict[str, Any]) -> float | None:
    """What one cell takes by the newest measurement of this deployment; None where there is none."""
    stored = benches.stored(name)
    if not stored or chosen["concurrency"] != 1:
        return None
    rate = benches.read(stored[-1])["single"].get("wall_tok_s")
    tokens = chosen["output_tokens"] or Wanted().output_tokens
    return len(TASKS) * chosen["runs"] * tokens / rate if rate else None
