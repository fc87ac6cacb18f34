"""The folder that carries patches into an engine: generated, named after its content, put on the launch's PYTHONPATH.

Since the name is a digest of every byte in it, an edited patch gets another folder, and never meets the byte code of
the one before; launches with the same patches share one, and a plan that is started again finds the one that it was
made with. Nothing else of the engine changes.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from importlib.resources import files as package_files
from typing import Any, NamedTuple

from deploy.homes import make_private, state_dir
from deploy.patching.sitecustomize_text import TEXT as SITECUSTOMIZE

PLUGIN = "kdeploy_patches"  # vLLM's name of it, for VLLM_PLUGINS
RUNNER = "kdeploy_patch_runner"
HOOK = "kdeploy_patch_hook"
MANIFEST = "kdeploy_patches.json"
OWN = {"sitecustomize.py", "usercustomize.py", MANIFEST, f"{RUNNER}.py", f"{HOOK}.py", "vllm", "overlay"}


class PrivateCopy(NamedTuple):
    """A changed module: its text, the SHA-256 of the installed file, and whether it is a package's `__init__.py`."""

    text: str
    base: str
    package: bool


def compose(
    patches: list[dict[str, Any]],
    code: Mapping[str, bytes],
    copies: Mapping[str, PrivateCopy],
    metadata: Mapping[str, str],
) -> dict[str, bytes]:
    """Every file of a patch folder, by its path in it.

    Args:
        patches: what the runner does: name, summary, module, function, modules of each.
        code: the patches' own files.
        copies: changed modules by name.
        metadata: versions of distributions that the engine lacks.
    """
    files = dict(code)
    here = package_files("deploy.patching")
    files[f"{RUNNER}.py"] = here.joinpath("runner.py").read_bytes()
    info = f"{PLUGIN}-1.dist-info"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: 1\n".encode()
    files[f"{info}/entry_points.txt"] = f"[vllm.general_plugins]\n{PLUGIN} = {RUNNER}:run\n".encode()
    manifest: dict[str, Any] = {"patches": patches, "copies": {}}
    for module, copy in sorted(copies.items()):
        # no tree of packages here: that would be a `vllm` to whoever looks for one
        file = f"overlay/{module}/__init__.py" if copy.package else f"overlay/{module}.py"
        files[file] = copy.text.encode()
        manifest["copies"][module] = {"file": file, "base": copy.base}
    if copies:
        files[f"{HOOK}.py"] = here.joinpath("hook.py").read_bytes()
        files["sitecustomize.py"] = SITECUSTOMIZE.encode()
    for name, version in sorted(metadata.items()):
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        files[f"{name}-{version}.dist-info/METADATA"] = text.encode()
    files[MANIFEST] = json.dumps(manifest, indent=1, sort_keys=True).encode()
    return files


def digest(files: Mapping[str, bytes]) -> str:
    """The name of a folder with these files."""
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(f"{path}\0{len(files[path])}\0".encode() + files[path])
    return total.hexdigest()[:16]


def place(files: Mapping[str, bytes]) -> str:
    """Where the folder with these files lies, or would."""
    return os.path.join(state_dir(), "patches", digest(files))


def write(files: Mapping[str, bytes]) -> str:
    """Make the folder unless it is there, whole or not at all; its path.

    A folder that was changed by hand is made anew beside it and put in its place.
    """
    path = place(files)
    if os.path.isdir(path) and changed(path) is None:
        return path
    make_private(os.path.dirname(path))
    fresh = f"{path}.{os.getpid()}"
    shutil.rmtree(fresh, ignore_errors=True)
    for name, content in files.items():
        target = os.path.join(fresh, name)
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        with open(target, "wb") as file:
            file.write(content)
    if os.path.isdir(path):
        os.rename(path, f"{fresh}.old")
    try:
        os.rename(fresh, path)
    except OSError:  # another command made it in this moment
        shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(f"{fresh}.old", ignore_errors=True)
    return path


def changed(path: str) -> str | None:
    """What is wrong with a patch folder that a plan names; None when every byte is as it was generated."""
    files = {}
    for parent, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            full = os.path.join(parent, name)
            with open(full, "rb") as file:
                files[os.path.relpath(full, path)] = file.read()
    if not files:
        return f"the patch folder {path} is missing"
    return None if digest(files) == os.path.basename(path) else f"the patch folder {path} was changed by hand"
