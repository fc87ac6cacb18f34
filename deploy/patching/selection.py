"""From the patches that a profile names to what goes into its launch, or to why not. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from deploy.engine.sources import Source
from deploy.errors import KdeployError, environment, usage
from deploy.patching.applies import LOADED, NOT_APPLICABLE, Target, Verdict, judge, public
from deploy.patching.diff import Drifted, apply, parse
from deploy.patching.folder import PrivateCopy, compose
from deploy.patching.patch import Patch

VERSION = "{version}"
FOLDER = "{folder}"


class Selection(NamedTuple):
    """`entries`: what plan.json says of each named patch. `files`: of the patch folder, empty when nothing is loaded.
    `env`: variables, with `{folder}` where the folder's path belongs."""

    entries: list[dict[str, Any]]
    files: dict[str, bytes]
    env: dict[str, str]


def select(patches: Sequence[Patch], target: Target, sources: Mapping[str, Source]) -> Selection:
    """What of `patches` is loaded into an engine.

    Args:
        patches: in the order in which they are run.
        target: the engine, GPU and model.
        sources: installed files of the modules that overlays change; absent where they cannot be read.

    Raises:
        KdeployError: (exit 6) a patch does not apply, (exit 2) two of them claim the same thing.
    """
    verdicts = {patch.name: judge(patch.file, target) for patch in patches}
    wrong = [f"{name}: {why}" for name, (state, why) in verdicts.items() if state == NOT_APPLICABLE]
    if wrong:
        raise environment(
            "a patch of the profile does not apply here",
            evidence=wrong,
            fix=["kdeploy patch list shows what applies", "take it out: --set patches=[]"],
        )
    loaded = [patch for patch in patches if verdicts[patch.name].state in LOADED]
    entries = [_entry(patch, verdicts[patch.name], patch in loaded) for patch in patches]
    if not loaded:
        return Selection(entries, {}, {})
    copies = private_copies(loaded, sources)
    code = _once({patch.name: patch.files for patch in loaded}, "the file")
    env = _once({patch.name: patch.file.env for patch in loaded}, "the variable")
    metadata = {
        patch.file.distribution.name: patch.file.distribution.version.replace(VERSION, public(target.version))
        for patch in loaded
        if patch.file.distribution is not None
    }
    return Selection(entries, compose([_work(patch) for patch in loaded], code, copies, metadata), env)


def _entry(patch: Patch, verdict: Verdict, loaded: bool) -> dict[str, Any]:
    return {
        "name": patch.name,
        "kind": patch.file.kind,
        "state": verdict.state,
        "why": verdict.why,
        "loaded": loaded,
        "folder": patch.folder,
    }


def _work(patch: Patch) -> dict[str, Any]:
    """What the runner does for a patch."""
    plugin = patch.file.plugin
    return {
        "name": patch.name,
        "summary": patch.file.summary,
        "module": plugin.module if plugin else None,
        "function": plugin.function if plugin else None,
        "modules": [change.module for change in patch.file.overlay],
    }


V = Any


def _once(parts: Mapping[str, Mapping[str, V]], what: str) -> dict[str, V]:
    """All of the patches' parts in one; no two may give the same name."""
    whole: dict[str, V] = {}
    givers: dict[str, str] = {}
    for giver, part in parts.items():
        for name, value in part.items():
            # notes and licences lie in every folder, and nothing imports them
            if name in whole and "/" not in name and name.endswith((".md", ".txt")):
                continue
            if name in whole and whole[name] != value:
                raise usage(f"patches: {givers[name]} and {giver} both give {what} {name}", fix=["name one of them"])
            whole[name], givers[name] = value, giver
    return whole


def private_copies(patches: Sequence[Patch], sources: Mapping[str, Source]) -> dict[str, PrivateCopy]:
    """The changed copies of the modules that overlays name.

    Raises:
        KdeployError: (exit 6) a file cannot be read, is not one that the diff was made for, or a hunk does not apply.
    """
    copies: dict[str, PrivateCopy] = {}
    changed_by: dict[str, str] = {}
    for patch in patches:
        for change in patch.file.overlay:
            if change.module in changed_by:
                raise usage(f"patches: {changed_by[change.module]} and {patch.name} both change {change.module}")
            changed_by[change.module] = patch.name
            copies[change.module] = _copy(patch, change.module, change.diff, change.bases, sources.get(change.module))
    return copies


def _copy(patch: Patch, module: str, diff: str, bases: list[str], source: Source | None) -> PrivateCopy:
    if source is None:
        raise environment(
            f"the patch {patch.name} changes {module}, and the engine has no such source file",
            fix=["an overlay needs an engine whose interpreter can be asked: kdeploy engine show NAME"],
        )
    where = f"{patch.folder}/{diff}"
    try:
        text = apply(source.text, parse(patch.files[diff].decode()))
    except Drifted as drift:
        raise _drifted(patch, where, source, drift) from None
    if source.sha256 not in bases:
        raise environment(
            f"the patch {patch.name} was not made for this {module}",
            evidence=[f"{source.path}: sha256 {source.sha256}", f"{where}: every hunk applies, which proves nothing"],
            fix=["look at what changed in the file; if the diff is still right, add the hash to bases in patch.yaml"],
        )
    return PrivateCopy(text, source.sha256, source.path.endswith("/__init__.py"))


def _drifted(patch: Patch, where: str, source: Source, drift: Drifted) -> KdeployError:
    found = "the file ends before it" if drift.found is None else repr(drift.found)
    return environment(
        f"the patch {patch.name} does not fit this engine: hunk {drift.number} of {where} does not apply",
        evidence=[
            f"{where}: {drift.hunk.head}",
            f"{source.path}:{drift.line}: wanted {drift.wanted!r}",
            f"{source.path}:{drift.line}: found  {found}",
        ],
        fix=["make the diff anew for this version, or name an engine that it was made for"],
    )
