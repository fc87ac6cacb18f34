"""A profile's command held against the parser of the engine that would really run it."""

from typing import NamedTuple

from deploy.engine.ask import CannotAsk, ask
from deploy.engine.flags import MANAGED, Flags, canonical
from deploy.engine.installations import Engine
from deploy.plan.launch_plan import LaunchPlan
from deploy.profile.catalogue import Resolved
from deploy.profile.yaml_reader import Mapping, Position, Problem


class Held(NamedTuple):
    """What came out: `asked` is the version whose parser answered, None when it could not be asked and why."""

    asked: str | None
    problems: list[Problem]
    notes: list[str]


def against_engine(resolved: Resolved, plan: LaunchPlan) -> Held:
    """Ask the engine's own parser about the plan's command line; every objection with the line that caused it."""
    engine = Engine(**plan.engine)
    arguments = plan.argv[len(engine.start) + 1 :]
    try:
        answer = ask(engine, arguments)
    except CannotAsk as why:
        note = f"the engine's own parser could not be asked ({why}); the shipped catalogue of flags was used"
        return Held(None, [], [note])
    flags = answer.flags
    problems = _unknown_flags(resolved, flags) + _unknown_variables(resolved, flags)
    if answer.verdict is not None and not problems:
        problems = [_from_verdict(resolved, answer.verdict, flags)]
    return Held(flags.version, problems, [])


def _unknown_flags(resolved: Resolved, flags: Flags) -> list[Problem]:
    problems = []
    for key, value in resolved.profile.args.items():
        name = canonical(key)
        if value is None or flags.lookup(f"--{name}"):
            continue
        close = flags.nearest(name)
        hint = f"did you mean `{close}`?" if close else None
        problems.append(Problem(_place(resolved, "args", key), f"vLLM {flags.version} knows no flag --{name}", hint))
    return problems


def _unknown_variables(resolved: Resolved, flags: Flags) -> list[Problem]:
    """vLLM says nothing useful to a variable that it does not read: the setting would just not be there."""
    problems = []
    named = [name for name, value in resolved.profile.env.items() if value is not None]
    for name in flags.unknown_variables(named):
        close = flags.nearest_variable(name)
        hint = f"did you mean `{close}`?" if close else None
        problems.append(Problem(_place(resolved, "env", name), f"vLLM {flags.version} reads no variable {name}", hint))
    return problems


def _from_verdict(resolved: Resolved, verdict: str, flags: Flags) -> Problem:
    """The parser's words, at the key that they speak of."""
    words = {word.strip("'\":,()") for word in verdict.replace("=", " ").replace("/", " ").split()}
    for key in resolved.profile.args:
        if f"--{canonical(key)}" in words:
            return Problem(_place(resolved, "args", key), f"vLLM {flags.version}: {verdict}")
    for flag, managed in MANAGED.items():
        if f"--{flag}" in words:
            return Problem(_place(resolved, *managed.split(" ")[0].split(".")), f"vLLM {flags.version}: {verdict}")
    return Problem(resolved.tree.at, f"vLLM {flags.version}: {verdict}")


def _place(resolved: Resolved, *path: str) -> Position:
    """Where the key at `path` was written; the nearest section when it was not."""
    node = resolved.tree
    at = node.at
    for key in path:
        if key not in node.entries:
            break
        at = node.keys[key]
        below = node.entries[key]
        if not isinstance(below, Mapping):
            break
        node = below
    return at
