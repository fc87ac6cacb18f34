"""Puts private copies of modules before the installed ones. Copied into a launch's patch folder, where
`sitecustomize.py` installs it before anything of vLLM is imported.

Runs in the engine's interpreter, without kdeploy. The copies are compiled from their text each time, so no byte code is
kept or found; installed files are read, to see that they are still those that were copied, and never written.
"""

import hashlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))


class Changed(ImportError):
    """An installed file is not the one that its private copy was made from."""


class Copy(importlib.abc.InspectLoader):
    """Loads one module from its private copy."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path

    def get_source(self, fullname: str) -> str:
        """The copy's text, for tracebacks and for what compiles from source."""
        with open(self.path, encoding="utf-8") as file:
            return file.read()

    def get_filename(self, fullname: str) -> str:
        """Where the copy lies."""
        return self.path

    def get_code(self, fullname: str) -> types.CodeType:
        """The copy, compiled now."""
        code: types.CodeType = compile(self.get_source(fullname), self.path, "exec", dont_inherit=True)
        return code

    def is_package(self, fullname: str) -> bool:
        """Whether it is a package's own module."""
        return os.path.basename(self.path) == "__init__.py"


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that have a private copy; `copies` by name: file, and SHA-256 of its installed original."""

    def __init__(self, copies: "dict[str, dict[str, str]]") -> None:
        self.copies = copies

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> "importlib.machinery.ModuleSpec | None":
        """The copy's place, once the installed file was held against what it was made from."""
        copy = self.copies.get(fullname)
        if copy is None:
            return None
        installed = _installed(fullname, path)
        if installed is None or installed.origin is None:
            raise Changed(f"{fullname} is not installed where its private copy was made from", name=fullname)
        check_file(fullname, installed.origin, copy["base"])
        place = os.path.join(HERE, copy["file"])
        spec = importlib.machinery.ModuleSpec(fullname, Copy(fullname, place), origin=place)
        spec.has_location = True
        spec.submodule_search_locations = installed.submodule_search_locations
        return spec


def _installed(fullname: str, path: Any) -> "importlib.machinery.ModuleSpec | None":
    """Where the other finders (an editable install has one of its own) see the module."""
    for finder in sys.meta_path:
        if isinstance(finder, Finder) or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(fullname, path, None)
        if spec is not None:
            return spec  # type: ignore[no-any-return, unused-ignore]
    return None


def check_file(module: str, path: str, base: str) -> None:
    """Raise unless the installed file is the one that the copy was made from."""
    with open(path, "rb") as file:
        found = hashlib.sha256(file.read()).hexdigest()
    if found != base:
        raise Changed(
            f"{path} has changed since its private copy was made ({found[:12]}, not {base[:12]})", name=module
        )


def install() -> None:
    """Put the finder first, once in a process."""
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    with open(os.path.join(HERE, "kdeploy_patches.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    sys.meta_path.insert(0, Finder(manifest["copies"]))


def check(modules: "list[str]") -> str:
    """What the runner says of an overlay: its modules are ours, those that are imported and those that will be.

    Raises:
        RuntimeError: the hook is not in place, or a module was imported from its installed file.
        Changed: an installed file has changed.
    """
    finder = next((entry for entry in sys.meta_path if isinstance(entry, Finder)), None)
    if finder is None:
        raise RuntimeError("the import hook is not installed: this interpreter did not run our sitecustomize")
    imported = []
    for name in modules:
        module = sys.modules.get(name)
        if module is not None:
            if not isinstance(getattr(module, "__loader__", None), Copy):
                raise RuntimeError(f"{name} was imported from {getattr(module, '__file__', '?')} before the hook")
            imported.append(name)
        else:
            _check_installed(name, finder.copies[name])
    return f"{len(modules)} module(s) from private copies, {len(imported)} of them imported so far"


def _check_installed(name: str, copy: "dict[str, str]") -> None:
    """Hold an installed file against its copy without importing the packages above it."""
    top, _, rest = name.partition(".")
    spec = _installed(top, None)
    if spec is None:
        raise RuntimeError(f"{top} is not installed")
    for root in spec.submodule_search_locations or []:
        for end in (".py", "/__init__.py"):
            path = os.path.join(root, rest.replace(".", "/") + end) if rest else os.path.join(root, "__init__.py")
            if os.path.isfile(path):
                check_file(name, path, copy["base"])
                return
    raise RuntimeError(f"{name} is not installed where its private copy was made from")
