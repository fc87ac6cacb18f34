"""`kdeploy doctor PROFILE --collective`: a timed all-reduce that checks its sums, in the engine's own interpreter."""

from collections.abc import Mapping
from typing import Any

from deploy import errors
from deploy.commands.launching import choose_gpus, close_all
from deploy.console import output
from deploy.console.examination import all_reduce_lines
from deploy.doctor.collective import Question, run
from deploy.doctor.finding import FAIL
from deploy.doctor.verdict import FAILED, HANGS, WRONG, Run, judge
from deploy.engine.installations import find
from deploy.errors import environment, usage
from deploy.plan.gather import Wish, plan_for_show
from deploy.plan.placement import Needs
from deploy.plan.references import references
from deploy.profile.catalogue import Resolved
from deploy.store import leases

SHARE = 0.03  # of each GPU's memory: context, communicators and buffers are below 3 GiB
HOLDER = "doctor --collective"
P2P_OFF = {"NCCL_P2P_DISABLE": "1"}


def try_all_reduce(resolved: Resolved, wish: Wish, gpus: str | None, step_s: float, *, as_json: bool) -> int:
    """Run it, and once more without peer access when it hangs or lies; 1 when it fails.

    Args:
        resolved: the profile.
        wish: as it was asked for.
        gpus: `--gpus`.
        step_s: seconds without progress after which it counts as hanging.
    """
    profile = resolved.profile
    ranks = profile.parallel.tensor * profile.parallel.pipeline * profile.parallel.data
    if ranks < 2:
        raise usage(f"{resolved.name} has one rank: there is nothing to reduce", fix=["--set parallel.tensor=2"])
    engine = find(profile.engine.executable)
    if engine.interpreter is None:
        raise environment(
            "the engine's interpreter cannot be told, so torch cannot be run in it",
            evidence=[engine.why_unknown or engine.name],
            fix=["name the engine by its `vllm` script, or install one: kdeploy engine install"],
        )
    choice = choose_gpus(profile.gpus, gpus, Needs(SHARE, profile.hardware.capability))
    plan = plan_for_show(resolved, wish, choice.gpus)
    held = leases.take([gpu.uuid for gpu in choice.gpus], HOLDER) if choice.gpus else []
    try:
        backend = "nccl" if choice.gpus else "gloo"
        env = {name: value for name, value in plan.env.items() if not references(value)}
        output.say(f"{ranks} ranks over {backend}, in {engine.interpreter}")
        question = Question(engine.interpreter, ranks, backend, env, step_s)
        first = run(question, output.say)
        control = None
        if first.outcome in (HANGS, WRONG):
            output.say(f"{first.outcome}: {first.detail}; once more without peer access")
            control = run(question._replace(env=_without_peers(env)), output.say)
    finally:
        close_all(held)
    return _tell(resolved.name, backend, ranks, first, control, as_json=as_json)


def _without_peers(env: Mapping[str, str]) -> dict[str, str]:
    return {**{name: value for name, value in env.items() if name != "NCCL_P2P_LEVEL"}, **P2P_OFF}


def _tell(profile: str, backend: str, ranks: int, first: Run, control: Run | None, *, as_json: bool) -> int:
    finding = judge(first, control, on_gpu=backend == "nccl")
    if as_json:
        document: dict[str, Any] = {
            "schema": 1,
            "profile": profile,
            "backend": backend,
            "ranks": ranks,
            "status": finding.status,
            "summary": finding.summary,
            "fix": list(finding.fix),
            "run": first.to_json(),
            "control": control.to_json() if control else None,
        }
        output.document(document)
    else:
        for line in all_reduce_lines(first, control, finding):
            output.data(line)
    if first.outcome == FAILED:
        return errors.ENVIRONMENT
    return errors.FAILED if finding.status == FAIL else errors.OK
