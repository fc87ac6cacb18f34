"""Which patches there are: your own, the machine's, and the shipped ones. The first of a name wins."""

import os
from collections.abc import Sequence

from deploy.errors import usage
from deploy.homes import config_dir
from deploy.patching.diff import BadDiff, parse
from deploy.patching.folder import OWN
from deploy.patching.patch import Patch, PatchFile
from deploy.profile.catalogue import compiler_form
from deploy.profile.schema import NAME
from deploy.profile.validate import nearest, validate_as
from deploy.profile.yaml_reader import Problem, Unreadable, read_document
from deploy.shipped import shipped

DOCUMENT = "patch.yaml"
SKIPPED = ("__pycache__", ".git")
BYTES_LIMIT = 16 << 20  # of one file of a patch


def folders() -> list[str]:
    """`$KDEPLOY_PATCHES`, `$XDG_CONFIG_HOME/kdeploy/patches`, /etc/kdeploy/patches, then the shipped ones."""
    own = [os.path.abspath(entry) for entry in os.environ.get("KDEPLOY_PATCHES", "").split(":") if entry]
    return [*own, os.path.join(config_dir(), "patches"), "/etc/kdeploy/patches", str(shipped("patches"))]


def names(search: Sequence[str] | None = None) -> dict[str, str]:
    """Name -> folder of every patch, without reading them."""
    found: dict[str, str] = {}
    for parent in folders() if search is None else search:
        try:
            entries = sorted(os.listdir(parent))
        except OSError:
            continue
        for name in entries:
            folder = os.path.join(parent, name)
            if NAME.fullmatch(name) and os.path.isfile(os.path.join(folder, DOCUMENT)):
                found.setdefault(name, folder)
    return dict(sorted(found.items()))


def refuse_unknown(wanted: Sequence[str]) -> None:
    """Exit 2 when a profile names a patch that is not there, or one twice."""
    known = names() if wanted else {}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        close = nearest(unknown[0], list(known))
        hint = f"did you mean {close}?" if close else "kdeploy patch list shows what there is"
        raise usage(f"patches: unknown patch {', '.join(unknown)}", fix=[hint])
    twice = sorted({name for name in wanted if list(wanted).count(name) > 1})
    if twice:
        raise usage(f"patches: {', '.join(twice)} twice", fix=["name each once"])


def load(wanted: Sequence[str]) -> list[Patch]:
    """The patches of these names, in this order.

    Raises:
        KdeployError: (exit 2) one is unknown, or its files are not as they must be.
    """
    refuse_unknown(wanted)
    known = names() if wanted else {}
    return [read(known[name]) for name in wanted]


def read(folder: str) -> Patch:
    """The patch in `folder`.

    Raises:
        KdeployError: (exit 2) with every problem of its patch.yaml, or what its folder lacks.
    """
    path = os.path.join(folder, DOCUMENT)
    problems: list[Problem] = []
    document: PatchFile | None = None
    try:
        with open(path, "rb") as file:
            tree = read_document(file.read(), path)
        document, problems = validate_as(PatchFile, tree)
        if document is not None and document.name != os.path.basename(folder):
            problems.append(Problem(tree.at, f"`name` is {document.name}, and its folder {os.path.basename(folder)}"))
    except Unreadable as error:
        problems = error.problems
    except OSError as error:
        raise usage(f"cannot read the patch {folder}", evidence=[f"{path}: {error.strerror}"]) from None
    if document is None or problems:
        raise usage(
            f"the patch {os.path.basename(folder)} is not valid",
            evidence=compiler_form(problems),
            fix=["mend it; docs/patches.md has the keys"],
        )
    patch = Patch(document, folder, _files(folder))
    _check_files(patch)
    return patch


def _files(folder: str) -> dict[str, bytes]:
    files = {}
    for parent, below, entries in os.walk(folder):
        below[:] = sorted(name for name in below if name not in SKIPPED)
        for name in sorted(entries):
            full = os.path.join(parent, name)
            path = os.path.relpath(full, folder)
            if path == DOCUMENT or name.endswith(".pyc"):
                continue
            if os.path.getsize(full) > BYTES_LIMIT:
                raise usage(f"{full} is too large for a patch", fix=["leave data out of the patch's folder"])
            with open(full, "rb") as file:
                files[path] = file.read()
    return files


def _check_files(patch: Patch) -> None:
    """What patch.yaml speaks of must be there, and nothing may hide what is the engine's or the folder's own."""
    path = os.path.join(patch.folder, DOCUMENT)
    wrong = []
    plugin = patch.file.plugin
    if plugin is not None:
        stem = plugin.module.replace(".", "/")
        if f"{stem}.py" not in patch.files and f"{stem}/__init__.py" not in patch.files:
            wrong.append(f"{path}: plugin.module {plugin.module}: no {stem}.py beside it")
    for change in patch.file.overlay:
        text = patch.files.get(change.diff)
        if text is None:
            wrong.append(f"{path}: overlay.diff {change.diff}: no such file beside it")
            continue
        try:
            parse(text.decode())
        except (BadDiff, UnicodeDecodeError) as error:
            wrong.append(f"{os.path.join(patch.folder, change.diff)}: {error}")
    tops = sorted({name.split("/")[0] for name in patch.files})
    wrong += [f"{os.path.join(patch.folder, top)}: this name is not a patch's to give" for top in tops if top in OWN]
    if wrong:
        raise usage(f"the patch {patch.name} is not whole", evidence=wrong, fix=["docs/patches.md shows one of each"])
