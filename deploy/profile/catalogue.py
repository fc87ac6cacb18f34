"""Which profiles there are, and where: the search path, files, and their whole chain of layers."""

import os
import re
from collections.abc import Sequence as ListLike
from typing import NamedTuple

from deploy.errors import KdeployError, usage
from deploy.profile.merge import merge, nested, without
from deploy.profile.schema import NAME, Profile
from deploy.profile.validate import nearest, validate
from deploy.profile.yaml_reader import (
    BYTES_LIMIT,
    UNUSABLE,
    Mapping,
    Node,
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

    def find(self, argument: str) -> Found:
        """The profile that a command's argument means: a path if it has a `/` or ends in .yaml, else a name."""
        if "/" in argument or argument.endswith(SUFFIXES):
            if not os.path.exists(argument):
                raise usage(f"no such profile file: {argument}", fix=["kdeploy profile list shows what there is"])
            stem = os.path.splitext(os.path.basename(argument))[0]
            return Found(stem, os.path.abspath(argument))
        found = self._named(argument, self.folders)
        if found:
            return found
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
        problems: list[Problem] = []
        tree, layers = self._with_bases(found, (), problems)
        if self.host_overlay and os.path.exists(self.host_overlay):
            overlay = _read(self.host_overlay, problems)
            problems += [
                Problem(overlay.keys[key], f"`{key}` in the host's overlay, which is merged into every profile")
                for key in ("name", "extends")
                if key in overlay.entries
            ]
            tree = _merged(tree, overlay)
            layers.append(self.host_overlay)
        for text in sets:
            tree = _merged(tree, _set(text))
        profile, more = validate(tree)
        if profile is None or problems:
            # the first word about a place is enough
            told = {problem.at: problem for problem in reversed([*problems, *more])}
            raise invalid(sorted(told.values(), key=lambda problem: problem.at))
        return Resolved(profile, profile.name or found.name, tree, found.file, layers)

    def _named(self, name: str, folders: ListLike[str]) -> Found | None:
        for folder in folders:
            file = _profiles_in(folder).get(name)
            if file:
                return Found(name, file)
        return None

    def _with_bases(self, found: Found, above: tuple[str, ...], problems: list[Problem]) -> tuple[Mapping, list[str]]:
        if found.file in above:
            path = " -> ".join(os.path.basename(file) for file in (*above, found.file))
            raise usage(
                f"profiles extend each other in a circle: {path}",
                evidence=[*above, found.file],
                fix=["take one `extends` out"],
            )
        document = _read(found.file, problems)
        tree: Mapping | None = None
        layers: list[str] = []
        for word in _bases(document, problems):
            base = self._base(word, found, problems)
            if base is None:
                continue
            below, files = self._with_bases(base, (*above, found.file), problems)
            # what a base is called, and that it has bases itself, is its own affair
            below = without(without(without(below, "name"), "summary"), "extends")
            tree = below if tree is None else _merged(tree, below)
            layers += [file for file in files if file not in layers]
        return (document if tree is None else _merged(tree, document)), [*layers, found.file]

    def _base(self, base: Scalar, of: Found, problems: list[Problem]) -> Found | None:
        """The base that a word of `extends` means: a file beside the profile, else a name, first in the same folder."""
        folder = os.path.dirname(of.file)
        hint = None
        if "/" in base.text or base.text.endswith(SUFFIXES):
            file = os.path.normpath(os.path.join(folder, os.path.expanduser(base.text)))
            if os.path.exists(file):
                return Found(base.text, file)
        else:
            found = self._named(base.text, [folder, *self.folders])
            if found:
                return found
            close = nearest(base.text, [entry.name for entry in self.all()])
            hint = f"did you mean `{close}`?" if close else None
        problems.append(Problem(base.at, f"unknown base profile `{base.text}`", hint))
        return None


def _merged(below: Mapping, above: Mapping) -> Mapping:
    result = merge(below, above)
    assert isinstance(result, Mapping)
    return result


def _bases(document: Mapping, problems: list[Problem]) -> list[Scalar]:
    node = document.entries.get("extends")
    items = node.items if isinstance(node, Sequence) else [node] if node is not None else []
    words = [item for item in items if isinstance(item, Scalar)]
    problems += [Problem(item.at, "`extends`: a list of names") for item in items if not isinstance(item, Scalar)]
    return [word for word in words if word.text and not (word.plain and word.value is None)]


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
    """The top-level `name:` of a file, found without parsing it: a broken profile still has its name. A file in flow
    style (`{name: x}`, or JSON) is parsed. What cannot be a name is none."""
    try:
        with open(file, "rb") as stream:
            data = stream.read(BYTES_LIMIT)
    except OSError:
        return None
    match = NAME_LINE.search(data)
    node: Node | None = None
    if match:
        node = Scalar(match[2].decode(errors="replace"), not match[1], Position(file, 1, 1))
    elif data.lstrip().startswith(b"{"):
        try:
            node = read_document(data, file).entries.get("name")
        except Unreadable:
            return None
    if isinstance(node, Scalar) and node.value is not None and NAME.fullmatch(node.text):
        return node.text
    return None


def _read(file: str, problems: list[Problem]) -> Mapping:
    """The file's tree. What is wrong in it is added to `problems`; where no tree is left, they are raised."""
    try:
        with open(file, "rb") as stream:
            data = stream.read(BYTES_LIMIT + 1)
    except OSError as error:
        raise usage(f"cannot read the profile {file}", evidence=[f"{file}: {error.strerror}"]) from None
    try:
        return read_document(data, file)
    except Unreadable as error:
        if not isinstance(error.rest, Mapping):
            raise invalid([*problems, *error.problems]) from None
        problems += error.problems
        return error.rest


def _set(text: str) -> Mapping:
    """The layer that one `--set a.b=VALUE` is."""
    path, equals, value = text.partition("=")
    at = Position("--set " + text, 0, 0)
    if not equals or not all(path.split(".")):
        raise usage(f"--set wants KEY.KEY=VALUE, not {text!r}", fix=["for example: --set serve.port=8001"])
    if UNUSABLE.search(text):
        raise usage(f"--set {text!a}: a character that no argument or file can hold", fix=["write it as UTF-8"])
    # without quotes or brackets, exactly the characters written: YAML would cut ` #…` off and take `a: b` for a map
    node: Node | None = Scalar(value, True, at)
    if value.lstrip()[:1] in ("[", "{", '"', "'"):
        try:
            node = read_value(value, "--set " + text)
        except Unreadable as error:
            raise invalid(error.problems) from None
    head, *rest = path.split(".")
    if head == "extends":
        raise usage("--set cannot change `extends`", fix=["write a profile of your own that extends others"])
    # below args and env a dot belongs to the flag's or variable's own name
    keys = [head, ".".join(rest)] if head in ("args", "env") and rest else [head, *rest]
    return nested(keys, node or Scalar("", True, at), at)


def invalid(problems: list[Problem]) -> KdeployError:
    """Every problem of a profile in a compiler's form, as one error (exit 2)."""
    count = len(problems)
    what = "the profile is not valid" if count == 1 else f"the profile is not valid: {count} errors"
    in_files = any(problem.at.line for problem in problems)
    fix = "mend it, then: kdeploy profile check" if in_files else "kdeploy profile show PROFILE lists the keys"
    return usage(what, evidence=compiler_form(problems), fix=[fix])


def compiler_form(problems: list[Problem]) -> list[str]:
    """Problems as compilers write them: place, text, and the line with a mark below."""
    return [line for problem in problems for line in _compiler_form(problem)]


def _compiler_form(problem: Problem) -> list[str]:
    lines = [f"{problem.at}: error: {problem.text}"]
    source = _source_line(problem.at)
    if source is not None and source.isprintable():
        # of a long line, the part around the place
        cut = max(0, problem.at.column - 80)
        lines += [f"    {source[cut : cut + 120]}", "    " + " " * (problem.at.column - 1 - cut) + "^"]
    if problem.hint:
        lines.append(f"    {problem.hint}")
    return lines


def _source_line(at: Position) -> str | None:
    try:
        with open(at.file, encoding="utf-8-sig", errors="replace") as stream:
            for number, line in enumerate(stream, 1):
                if number == at.line:
                    return line.rstrip("\n").replace("\t", " ")
    except OSError:
        return None
    return None


def standard(extra: ListLike[str] = ()) -> Catalogue:
    """The search path of the public interface: --profiles, $KDEPLOY_PROFILES, the user's, the machine's, ours."""
    from deploy.homes import config_dir

    folders = [os.path.abspath(folder) for folder in extra]
    folders += [os.path.abspath(entry) for entry in os.environ.get("KDEPLOY_PROFILES", "").split(":") if entry]
    folders += [os.path.join(config_dir(), "profiles"), "/etc/kdeploy/profiles", str(shipped("profiles"))]
    return Catalogue(folders, os.path.join(config_dir(), "host.yaml"))
