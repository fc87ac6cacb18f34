"""What a candidate makes of a launch, and whether it can do anything there at all. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from deploy.engine.flags import Flags, canonical, objections
from deploy.plan.command_line import arg_words
from deploy.plan.launch_plan import LaunchPlan
from deploy.plan.make import with_digest
from deploy.tuning.candidates import Candidate

SIZES = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "decode-context-parallel-size")
COLLECTIVE_VARIABLES = ("NCCL_", "VLLM_ALLREDUCE_")
COLLECTIVE_FLAGS = ("disable-custom-all-reduce",)
GRAPH = "NCCL_GRAPH_FILE"


class Shape(NamedTuple):
    """How a launch is split: sizes as vLLM's flags name them, GPUs (0: a CPU engine)."""

    tensor: int
    pipeline: int
    data: int
    decode_context: int
    gpus: int

    @property
    def ranks(self) -> int:
        """Processes that compute."""
        return self.tensor * self.pipeline * self.data


def shape_of(plan: LaunchPlan) -> Shape:
    """The shape that the plan's command line asks for."""
    given = {group[0]: group[1] for group in _groups(plan)[1] if len(group) == 2}
    tensor, pipeline, data, context = (
        int(text) if (text := given.get(f"--{flag}", "1")).isdigit() else 1 for flag in SIZES
    )
    return Shape(tensor, pipeline, data, context, plan.gpus_wanted)


def trial(plan: LaunchPlan, name: str) -> LaunchPlan:
    """The plan as a tune launches it: under a name of its own, never started again by itself, and not ready before
    the canary has passed, whatever the profile says."""
    limits = {**plan.limits, "restart": {**plan.limits.get("restart", {}), "policy": "never"}}
    return with_digest(replace(plan, name=name, limits=limits, canary={**plan.canary, "enabled": True}))


def applied(plan: LaunchPlan, candidate: Candidate, flags: Flags) -> LaunchPlan:
    """The plan with the candidate's environment and arguments laid over it.

    Raises:
        KdeployError: (exit 2) a value has a form that its flag cannot take.
    """
    head, groups = _groups(plan)
    for key, value in candidate.args.items():
        target = _target(key, flags)
        groups = [group for group in groups if _target(group[0].removeprefix("--"), flags) != target]
        words = arg_words(key, value, flags.flags.get(target, {})) if value is not None else []
        groups += [words] if words else []
    env = {**plan.env, **{key: value for key, value in candidate.env.items() if value is not None}}
    for key, value in candidate.env.items():
        if value is None:
            env.pop(key, None)
    return with_digest(replace(plan, argv=[*head, *(word for group in groups for word in group)], env=env))


def _groups(plan: LaunchPlan) -> tuple[list[str], list[list[str]]]:
    """`… serve MODEL`, and each flag with its values."""
    start = len(plan.engine.get("start", [])) + 2
    groups: list[list[str]] = []
    for word in plan.argv[start:]:
        flag = len(word) > 1 and word.startswith("-") and not word[1].isdigit()
        if flag and word.startswith("--") and "=" in word:
            groups.append(list(word.partition("=")[::2]))
        elif flag or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return plan.argv[:start], groups


def _target(key: str, flags: Flags) -> str:
    """The flag that `key` means, with the dotted tail of a part of a JSON argument."""
    found = flags.lookup(f"--{canonical(key)}" if not key.startswith("-") else key)
    name = found[0] if found else canonical(key).removeprefix("no-")
    return name + key[len(key.partition(".")[0]) :]


def objection(candidate: Candidate, plan: LaunchPlan, flags: Flags, exists: Callable[[str], bool]) -> str | None:
    """Why the candidate is not tried on this launch; None when it is. `exists`: whether a file is there."""
    shape = shape_of(plan)
    return (
        _no_collectives(candidate, shape)
        or _graph(candidate, shape, exists)
        or _wrong_ranks(candidate, shape)
        or _no_peers(candidate.env, plan.env)
        or _unknown_variable(candidate, flags)
        or _bad_flag(candidate, flags)
        or _as_it_is(candidate, plan, flags)
    )


def _no_collectives(candidate: Candidate, shape: Shape) -> str | None:
    variables = [key for key in candidate.env if key.startswith(COLLECTIVE_VARIABLES)]
    if not variables and not any(canonical(key) in COLLECTIVE_FLAGS for key in candidate.args):
        return None
    if shape.gpus == 0:
        return "a CPU engine has no NCCL"
    return "one rank has nothing to reduce" if shape.ranks == 1 else None


def _graph(candidate: Candidate, shape: Shape, exists: Callable[[str], bool]) -> str | None:
    file = candidate.env.get(GRAPH)
    if not file:
        return None
    if 4 in (shape.tensor, shape.decode_context, shape.ranks):
        return "a graph file ends groups of four ranks in 'unhandled system error'"
    wrong = _wrong_ranks(candidate, shape)
    return wrong or (None if exists(file) else f"{file} is not here; name yours with --candidates")


def _wrong_ranks(candidate: Candidate, shape: Shape) -> str | None:
    if not candidate.ranks or shape.ranks in candidate.ranks:
        return None
    return candidate.otherwise or f"it is meant for {', '.join(map(str, candidate.ranks))} ranks, not {shape.ranks}"


def _no_peers(env: Mapping[str, str | None], before: Mapping[str, str]) -> str | None:
    after = {**before, **env}
    off = after.get("NCCL_P2P_DISABLE") == "1"
    return "peer access is off, so its level means nothing" if off and env.get("NCCL_P2P_LEVEL") else None


def _unknown_variable(candidate: Candidate, flags: Flags) -> str | None:
    unknown = flags.unknown_variables(key for key, value in candidate.env.items() if value is not None)
    return f"vLLM {flags.version} reads no variable {unknown[0]}" if unknown else None


def _bad_flag(candidate: Candidate, flags: Flags) -> str | None:
    words = ["serve", "MODEL"]
    for key, value in candidate.args.items():
        words += arg_words(key, value, flags.flags.get(_target(key, flags), {})) if value is not None else []
    return next(iter(objections(words, flags)), None)


def _as_it_is(candidate: Candidate, plan: LaunchPlan, flags: Flags) -> str | None:
    after = applied(plan, candidate, flags)
    same = sorted(_groups(after)[1]) == sorted(_groups(plan)[1]) and after.env == plan.env
    return "the launch has it already" if same else None


def overlay(candidate: Candidate) -> dict[str, Any]:
    """The candidate as keys of a profile or host overlay."""
    return {key: value for key, value in (("env", candidate.env), ("args", candidate.args)) if value}
