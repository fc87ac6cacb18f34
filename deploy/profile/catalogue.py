"""Which profiles there are, and where: the search path, files, and their whole chain of layers."""

import os
import re
from collections.abc import Sequence as ListLike
from typing import NamedTuple

from deploy.errors import KdeployError, usage
from deploy.profile.merge import merge, nested, without
from deploy.profile.schema import Profile
from deploy.profile.validate import nearest, validate
from deploy.profile.yaml_reader import (
    BYTES_LIMIT,
    Mapping,
    Position,
    Problem,
    Scalar,
    Sequence,
    Unreadable,
    read_document,
    read_value,
)
from deploy.shipped import shipped

SUFFIXES = (".yaml", ".yml")
NAME_LINE = re.compile(rb"""^name:[ ]*(["']?)([^\s"'#]+)\1[ ]*(?:#.*)?\r?$""", re.MULTILINE)


class Found(NamedTuple):
    """One profile file: its name, and where it lies."""

    name: str
    file: str


class Resolved(NamedTuple):
    """A profile with all its layers: the typed one, the merged tree with origins, and the files that made it."""

    profile: Profile
    name: str
    tree: Mapping
    file: str
    layers: list[str]


class Catalogue:
    """The profiles that a search path holds. The first hit wins."""

    def __init__(self, folders: ListLike[str], host_overlay: str | None = None) -> None:
        self.folders = list(folders)
        self.host_overlay = host_overlay

    def all(self) -> list[Found]:
        """Every profile, those of earlier folders hiding those of later ones, by name.

        Raises:
            KdeployError: (exit 2) two files of one folder give the same name.
        """
        found: dict[str, Found] = {}
        for folder in self.folders:
            for name, file in _profiles_in(folder).items():
                found.setdefault(name, Found(name, file))
        return sorted(found.values())

    def find(self, argument: str, *, beside: str | None = None) -> Found:
        """The profile that a command's argument means: a path if it has a `/` or ends in .yaml, else a name.

        Args:
            beside: a folder that is searched first (for `extends` within one folder).
        """
        if "/" in argument or argument.endswith(SUFFIXES):
            if not os.path.exists(argument):
                raise usage(f"no such profile file: {argument}", fix=["kdeploy profile list shows what there is"])
            stem = os.path.splitext(os.path.basename(argument))[0]
            return Found(_name_inside(argument) or stem, os.path.abspath(argument))
        for folder in [beside, *self.folders] if beside else self.folders:
            file = _profiles_in(folder).get(argument)
            if file:
                return Found(argument, file)
        known = [entry.name for entry in self.all()]
        close = nearest(argument, known)
        raise usage(
            f"no profile is named {argument!r}",
            evidence=[f"searched: {', '.join(self.folders)}", f"found: {', '.join(known) or 'none'}"],
            fix=[f"did you mean {close}?" if close else "kdeploy profile list shows what there is"],
        )

    def resolve(self, argument: str, sets: ListLike[str] = ()) -> Resolved:
        """A profile with its bases, the host overlay and `--set`s laid over each other, validated as a whole.

        Raises:
            KdeployError: (exit 2) with every problem of the profile.
        """
        found = self.find(argument)
        tree, layers = self._with_bases(found, ())
        if self.host_overlay and os.path.exists(self.host_overlay):
            tree = _merged(tree, _read(self.host_overlay))
            layers.append(self.host_overlay)
        for text in sets:
            tree = _merged(tree, _set(text))
        profile, problems = validate(tree)
        if profile is None:
            raise invalid(problems)
        return Resolved(profile, profile.name or found.name, tree, found.file, layers)

    def _with_bases(self, found: Found, above: tuple[str, ...]) -> tuple[Mapping, list[str]]:
        if found.file in above:
            path = " -> ".join(os.path.basename(file) for file in (*above, found.file))
            raise usage(f"profiles extend each other in a circle: {path}", fix=["take one `extends` out"])
        document = _read(found.file)
        tree: Mapping | None = None
        layers: list[str] = []
        for base in _bases(document):
            below, files = self._with_bases(self._base(base, found), (*above, found.file))
            # what a base is called, and that it has bases itself, is its own affair
            below = without(without(without(below, "name"), "summary"), "extends")
            tree = below if tree is None else _merged(tree, below)
            layers += [file for file in files if file not in layers]
        return (document if tree is None else _merged(tree, document)), [*layers, found.file]

    def _base(self, base: Scalar, of: Found) -> Found:
        folder = os.path.dirname(of.file)
        name = base.text if "/" not in base.text else os.path.join(folder, os.path.expanduser(base.text))
        try:
            return self.find(name, beside=folder)
        except KdeployError as error:
            hint = error.fix[0] if error.fix else None
            raise invalid([Problem(base.at, f"unknown base profile `{base.text}`", hint)]) from None


def _merged(below: Mapping, above: Mapping) -> Mapping:
    result = merge(below, above)
    assert isinstance(result, Mapping)
    return result


def _bases(document: Mapping) -> list[Scalar]:
    node = document.entries.get("extends")
    items = node.items if isinstance(node, Sequence) else [node] if node is not None else []
    return [item for item in items if isinstance(item, Scalar) and item.text]


def _profiles_in(folder: str) -> dict[str, str]:
    """Name -> file of one folder. A profile is called what its `name:` says, else what its file is called."""
    try:
        entries = sorted(os.listdir(folder))
    except OSError:
        return {}
    files: dict[str, str] = {}
    for entry in entries:
        stem, suffix = os.path.splitext(entry)
        if suffix not in SUFFIXES or entry.startswith("."):
            continue
        file = os.path.join(folder, entry)
        name = _name_inside(file) or stem
        if name in files:
            raise usage(
                f"two profiles are named {name!r} in {folder}",
                evidence=[files[name], file],
                fix=["give one of them another `name:`"],
            )
        files[name] = file
    return files


def _name_inside(file: str) -> str | None:
    """The top-level `name:` of a file, found without parsing it: a broken profile still has its name."""
    try:
        with open(file, "rb") as stream:
            match = NAME_LINE.search(stream.read(BYTES_LIMIT))
    except OSError:
        return None
    return match[2].decode(errors="replace") if match else None


def _read(file: str) -> Mapping:
    try:
        with open(file, "rb") as stream:
            data = stream.read(BYTES_LIMIT + 1)
    except OSError as error:
        raise usage(f"cannot read the profile {file}", evidence=[f"{file}: {error.strerror}"]) from None
    try:
        return read_document(data, file)
    except Unreadable as error:
        raise invalid(error.problems) from None


def _set(text: str) -> Mapping:
    """The layer that one `--set a.b=VALUE` is."""
    path, equals, value = text.partition("=")
    at = Position("--set " + text, 1, 1)
    if not equals or not all(path.split(".")):
        raise usage(f"--set wants KEY.KEY=VALUE, not {text!r}", fix=["for example: --set serve.port=8001"])
    try:
        node = read_value(value, "--set " + text) if value else Scalar("", True, at)
    except Unreadable as error:
        raise invalid(error.problems) from None
    head, *rest = path.split(".")
    # below args and env a dot belongs to the flag's or variable's own name
    keys = [head, ".".join(rest)] if head in ("args", "env") and rest else [head, *rest]
    return nested(keys, node or Scalar("", True, at), at)


def invalid(problems: list[Problem]) -> KdeployError:
    """Every problem of a profile in a compiler's form, as one error (exit 2)."""
    count = len(problems)
    what = "the profile is not valid" if count == 1 else f"the profile is not valid: {count} errors"
    return usage(what, evidence=[line for problem in problems for line in _compiler_form(problem)])


def _compiler_form(problem: Problem) -> list[str]:
    lines = [f"{problem.at}: error: {problem.text}"]
    source = _source_line(problem.at)
    if source is not None:
        lines += [f"    {source}", "    " + " " * (problem.at.column - 1) + "^"]
    if problem.hint:
        lines.append(f"    {problem.hint}")
    return lines


def _source_line(at: Position) -> str | None:
    try:
        with open(at.file, encoding="utf-8-sig", errors="replace") as stream:
            for number, line in enumerate(stream, 1):
                if number == at.line:
                    return line.rstrip("\n").replace("\t", " ")[:160]
    except OSError:
        return None
    return None


def standard(extra: ListLike[str] = ()) -> Catalogue:
    """The search path of the public interface: --profiles, $KDEPLOY_PROFILES, the user's, the machine's, ours."""
    from deploy.homes import config_dir

    folders = [os.path.abspath(folder) for folder in extra]
    folders += [entry for entry in os.environ.get("KDEPLOY_PROFILES", "").split(":") if entry]
    folders += [os.path.join(config_dir(), "profiles"), "/etc/kdeploy/profiles", str(shipped("profiles"))]
    return Catalogue(folders, os.path.join(config_dir(), "host.yaml"))
