"""The form of a `patch.yaml`, read as strictly as a profile. Pure."""

from collections.abc import Mapping as Table
from typing import Annotated, Literal, NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from deploy.profile.schema import NAME, Flag, MaybeText, Names, Section, Text, Version1


def _range(text: str | None) -> str | None:
    if text is not None:
        try:
            SpecifierSet(text)
        except InvalidSpecifier:
            raise ValueError(f"{text!r} is no version range, such as >=0.24,<0.34") from None
    return text


def _release(text: str | None) -> str | None:
    if text is not None:
        try:
            Version(text)
        except InvalidVersion:
            raise ValueError(f"{text!r} is no version") from None
    return text


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError(f"{text!r} cannot be a name: letters, digits, '.', '_' and '-', 63 at most")
    return text


Range = Annotated[MaybeText, AfterValidator(_range)]
Release = Annotated[MaybeText, AfterValidator(_release)]


class Applies(Section):
    """What the patch is for. An empty list is everything."""

    vllm: Range = Field(None, description="PEP 440 range of the vLLM versions that it can be loaded into.")
    tried: Range = Field(None, description="Those of them that it was run on or whose sources were read.")
    capabilities: Names = Field([], description='CUDA capabilities, such as "12.0"; `cpu` for the CPU build.')
    architectures: Names = Field([], description="Model architectures, as in config.json.")


class Upstream(Section):
    """A pull request or issue of vLLM's that the patch has to do with."""

    reference: Text = Field(description="As in vllm-project/vllm#43477.")
    what: Text = Field(description="What it changes.")
    landed: Release = Field(None, description="First release that has it; null while it is open.")


class Plugin(Section):
    """Code that vLLM calls in each of its processes."""

    module: Text = Field(description="Module beside patch.yaml.")
    function: Text = Field("apply", description="Function without arguments in it; see docs/patches.md.")


class Change(Section):
    """One module of vLLM's that an overlay changes."""

    module: Text = Field(description="As in vllm.v1.attention.backends.mla.triton_mla.")
    diff: Text = Field(description="Unified diff beside patch.yaml.")
    bases: Names = Field(description="SHA-256 of the files that the diff was made for.")


class Distribution(Section):
    """Metadata of a distribution that the engine lacks, put before it on the path."""

    name: Text
    version: Text = Field(description="`{version}` stands for the engine's, without its local label.")


class PatchFile(Section):
    """A kdeploy patch: what it fixes, for whom, and how it is done and proven."""

    schema_: Version1 = Field(1, alias="schema", description="Version of this format.")
    name: Annotated[Text, AfterValidator(_name)] = Field(description="As its folder.")
    summary: Text = Field(description="One line for `kdeploy patch list`.")
    fixes: Text = Field("", description="What is wrong without it.")
    kind: Annotated[Literal["plugin", "overlay"], BeforeValidator(lambda node: getattr(node, "text", node))]
    applies: Applies = Field(default_factory=lambda: Applies.model_validate({}))
    upstream: list[Upstream] = Field(default_factory=list)
    needless_since: Release = Field(None, description="First release that needs it no more.")
    experimental: MaybeText = Field(None, description="Why it is not to be relied on yet.")
    needs_canary: Flag = Field(False, description="A launch with it must ask the canary, and for sense.")
    verified_by: Text = Field("", description="How its effect is proven in a running engine.")
    plugin: Plugin | None = None
    overlay: list[Change] = Field(default_factory=list)
    distribution: Distribution | None = None
    env: dict[str, Text] = Field(default_factory=dict, description="Variables; `{folder}` is the generated folder.")

    @model_validator(mode="after")
    def _parts(self) -> "PatchFile":
        if self.kind == "overlay" and not self.overlay:
            raise ValueError("kind overlay without `overlay:`, the list of modules")
        if self.kind == "plugin" and self.overlay:
            raise ValueError("`overlay:` in a patch of kind plugin")
        if self.kind == "plugin" and not self.plugin:
            raise ValueError("kind plugin without `plugin:`, the module to call")
        return self


class Patch(NamedTuple):
    """A patch with everything that lies in its folder: `files` by path relative to the folder, patch.yaml left out."""

    file: PatchFile
    folder: str
    files: Table[str, bytes]

    @property
    def name(self) -> str:
        """Its name."""
        return self.file.name
