"""`kdeploy patch list|status|check`: which patches apply here, and what an engine has confirmed."""

import shutil
from typing import Any, NamedTuple

import click
from packaging.version import Version

from deploy.commands import options
from deploy.commands.choosing import only
from deploy.console import output
from deploy.engine.installations import Engine, find, installed
from deploy.engine.sources import Sources, read_sources
from deploy.errors import ENVIRONMENT, FAILED, OK, KdeployError, environment
from deploy.patching import catalogue
from deploy.patching.applies import LOADED, NOT_APPLICABLE, Target, judge, version_of
from deploy.patching.patch import Patch
from deploy.patching.selection import private_copies
from deploy.plan.gather import hub_snapshot, local_model
from deploy.plan.patches import architectures_in, is_cpu_build, sources_for, target_of
from deploy.profile.catalogue import Catalogue, Resolved
from deploy.shipped import shipped
from deploy.store.deployments import patches_json

engine_option = click.option(
    "--engine", "executable", metavar="E", help="An installed engine's name, or a program (default: vllm on PATH)."
)


class Here(NamedTuple):
    """The engine and GPU that patches are held against; None where there is none."""

    engine: Engine | None
    sources: Sources | None
    capability: str | None

    def target(self) -> Target:
        """As patches are judged."""
        if self.engine is None:
            return Target(capability=self.capability)
        return target_of(self.engine, self.sources, self.capability, None)


@click.group()
def command() -> None:
    """Patches: which apply here, what a deployment has confirmed."""


@command.command("list")
@engine_option
@options.as_json
def listing(executable: str | None, as_json: bool) -> None:
    """Every patch, and what it is to this engine and GPU."""
    here = _here(executable)
    rows = [_row(name, folder, here) for name, folder in catalogue.names().items()]
    if as_json:
        engine = None if here.engine is None else {"name": here.engine.name, "version": here.engine.version}
        output.document({"schema": 1, "engine": engine, "capability": here.capability, "patches": rows})
        return
    against = "no engine" if here.engine is None else f"{here.engine.name}, vLLM {here.engine.version or 'unknown'}"
    output.say(f"held against {against}, {_gpu_words(here.capability)}")
    if not rows:
        output.say("no patch is there")
        return
    table = [("NAME", "STATE", "KIND", "SUMMARY", "WHY")]
    table += [(row["name"], row["state"], row["kind"], row["summary"], row["why"]) for row in rows]
    output.table(table)


def _row(name: str, folder: str, here: Here) -> dict[str, Any]:
    try:
        patch = catalogue.read(folder)
    except KdeployError as error:
        why = "; ".join([error.what, *error.evidence[:1]])
        row = {"name": name, "state": "invalid", "kind": "?", "summary": "", "why": why}
        return {**row, "folder": folder, "upstream": []}
    state, why = judge(patch.file, here.target())
    if state in LOADED and here.engine is not None:
        problem = _overlay_problem(patch, here.engine)
        if problem is not None:
            state, why = NOT_APPLICABLE, problem
    return {
        "name": name,
        "state": state,
        "kind": patch.file.kind,
        "summary": patch.file.summary,
        "why": "" if why == patch.file.summary else why,
        "folder": folder,
        "vllm": patch.file.applies.vllm,
        "capabilities": patch.file.applies.capabilities,
        "architectures": patch.file.applies.architectures,
        "needless_since": patch.file.needless_since,
        "verified_by": patch.file.verified_by,
        "upstream": [entry.model_dump() for entry in patch.file.upstream],
    }


def _overlay_problem(patch: Patch, engine: Engine) -> str | None:
    """Why an overlay does not fit the engine's files; None when it does, or when nothing can be read."""
    if not patch.file.overlay:
        return None
    sources = sources_for([patch], engine)
    if sources is None:
        return None
    try:
        private_copies([patch], sources.files)
    except KdeployError as error:
        return "; ".join([error.what, *error.evidence])
    return None


def _here(executable: str | None) -> Here:
    """The named engine, else `vllm` on PATH, else the newest installed one; and the GPUs of this machine."""
    engine: Engine | None = None
    if executable is not None or shutil.which("vllm"):
        engine = find(executable or "vllm")
    else:
        engines = sorted(installed(), key=lambda entry: version_of(entry.version) or Version("0"))
        engine = engines[-1] if engines else None
    if engine is None:
        return Here(None, None, _capability())
    sources = read_sources(engine)
    return Here(engine, sources, "cpu" if is_cpu_build(engine, sources) else _capability())


def _capability() -> str | None:
    """The capability of this machine's GPUs; None without one, or with several kinds."""
    from deploy.host.gpus import NoGpus, inventory

    try:
        found = {gpu.capability for gpu in inventory()}
    except NoGpus:
        return None
    return found.pop() if len(found) == 1 else None


def _gpu_words(capability: str | None) -> str:
    if capability == "cpu":
        return "the CPU build"
    return f"GPUs of capability {capability}" if capability else "no GPU (or several kinds)"


@command.command("status")
@click.argument("name", required=False)
@options.as_json
def status(name: str | None, as_json: bool) -> None:
    """A deployment's patches, and what each of its processes said of them."""
    deployment = only(name, "patch status")
    rows = patches_json(deployment.observed, deployment.plan)
    if as_json:
        output.document({"schema": 1, "name": deployment.name, "state": deployment.state, "patches": rows})
        return
    if not rows:
        output.say(f"{deployment.name} was launched without patches")
        return
    table = [("PATCH", "OUTCOME", "PID", "PROCESS", "WHY")]
    for row in rows:
        for entry in row["processes"]:
            table.append((row["name"], entry["outcome"], str(entry["pid"]), entry["title"], entry["why"]))
        if not row["processes"]:
            outcome = "unconfirmed" if row["loaded"] else str(row["state"])
            table.append((row["name"], outcome, "-", "-", "" if row["loaded"] else str(row["why"])))
    output.table(table)


@command.command("check")
@engine_option
@options.as_json
def check(executable: str | None, as_json: bool) -> int:
    """Would everything that the built-in profiles name apply to this engine? Exit 1 if not."""
    here = _here(executable)
    if here.engine is None:
        raise environment("no engine to check against", fix=["kdeploy engine install", "or name one: --engine PATH"])
    profiles = Catalogue([str(shipped("profiles"))])
    rows: list[dict[str, Any]] = []
    for found in profiles.all():
        resolved = profiles.resolve(found.file)
        rows += [_checked(resolved, name, here.engine, here) for name in resolved.profile.patches]
    wrong = [row for row in rows if row["state"] in (NOT_APPLICABLE, "invalid")]
    if as_json:
        engine = {"name": here.engine.name, "version": here.engine.version}
        output.document({"schema": 1, "engine": engine, "ok": not wrong, "patches": rows})
    elif rows:
        table = [("PROFILE", "PATCH", "STATE", "WHY")]
        output.table([*table, *((row["profile"], row["name"], row["state"], row["why"]) for row in rows)])
    else:
        output.say("no built-in profile names a patch")
    return FAILED if wrong else OK


def _checked(resolved: Resolved, name: str, engine: Engine, here: Here) -> dict[str, Any]:
    """One patch of one profile. A profile that is not for this engine is told, and is no failure."""
    profile = resolved.profile
    row: dict[str, Any] = {"profile": resolved.name, "name": name}
    if (profile.gpus == 0) != (here.capability == "cpu"):
        kind = "the CPU build" if profile.gpus == 0 else "GPUs"
        return {**row, "state": "other-engine", "why": f"the profile is for {kind}, and this engine is not"}
    from deploy.engine.installations import check_version

    try:
        check_version(engine, profile.engine.version)
    except KdeployError as error:
        if error.code != ENVIRONMENT:
            raise
        return {**row, "state": "other-engine", "why": error.what}
    try:
        (patch,) = catalogue.load([name])
    except KdeployError as error:
        return {**row, "state": "invalid", "why": "; ".join([error.what, *error.evidence[:1]])}
    folder = local_model(resolved) or hub_snapshot(profile.model.id or "", profile.model.revision, profile.env)
    capability = "cpu" if profile.gpus == 0 else profile.hardware.capability or here.capability
    architectures = architectures_in(folder) if folder else None
    state, why = judge(patch.file, target_of(engine, here.sources, capability, architectures))
    problem = _overlay_problem(patch, engine) if state in LOADED else None
    if problem is not None:
        state, why = NOT_APPLICABLE, problem
    return {**row, "state": state, "why": why}
