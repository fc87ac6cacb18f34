"""Sources read without importing them: which names a module has, and what a class has from itself and its bases."""

import ast
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
INSIDE = (ast.If, ast.Try, ast.With)


class Module:
    """One module: its text, and what its top level names, with what stands under `if` and `try`."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in _top(self.tree.body) if isinstance(node, ast.ClassDef)}

    @cached_property
    def functions(self) -> dict[str, Function]:
        return {node.name: node for node in _top(self.tree.body) if isinstance(node, Function)}

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Name -> module and the name that it has there."""
        found: dict[str, tuple[str, str]] = {}
        for node in _top(self.tree.body):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                module = "." * node.level + node.module
                found |= {entry.asname or entry.name: (module, entry.name) for entry in node.names}
        return found

    @cached_property
    def names(self) -> set[str]:
        assigned = {
            target.id
            for node in _top(self.tree.body)
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        return assigned | set(self.classes) | set(self.functions) | set(self.imports)


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, INSIDE):
            yield from _top([*node.body, *getattr(node, "orelse", [])])
            for handler in getattr(node, "handlers", []):
                yield from _top(handler.body)


class Sources:
    """Modules below some folders, the first of which wins."""

    def __init__(self, *roots: Path) -> None:
        self.roots = roots
        self.module = cache(self._module)

    def _module(self, name: str) -> Module | None:
        for root in self.roots:
            stem = root.joinpath(*name.split("."))
            for path in (stem.with_suffix(".py"), stem / "__init__.py"):
                if path.is_file():
                    return Module(path)
        return None

    def need(self, name: str) -> Module:
        """A module that must be there."""
        module = self.module(name)
        assert module is not None, f"no module {name}"
        return module

    def has(self, module: str, name: str) -> bool:
        """Whether `from module import name` finds something."""
        found = self.module(module)
        return found is not None and (name in found.names or self.module(f"{module}.{name}") is not None)

    def lineage(self, module: str, name: str) -> list[tuple[str, ast.ClassDef]]:
        """A class and its bases, nearest first, each with its module; what is not in these sources is left out."""
        found = self.module(module)
        if found is None:
            return []
        if name not in found.classes:
            if name not in found.imports:
                return []
            origin, name = found.imports[name]
            return self.lineage(_absolute(origin, module), name)
        node = found.classes[name]
        line = [(module, node)]
        for base in node.bases:
            inner = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(inner, ast.Name):
                line += [entry for entry in self.lineage(module, inner.id) if entry not in line]
        return line

    def has_attribute(self, module: str, cls: str) -> set[str]:
        """Every attribute of a class's objects: fields, methods, and what any method stores on self or cls."""
        found: set[str] = set()
        for _, node in self.lineage(module, cls):
            found |= attributes(node)
        return found


def _absolute(module: str, within: str) -> str:
    if not module.startswith("."):
        return module
    dots = len(module) - len(module.lstrip("."))
    return ".".join([*within.split(".")[:-dots], module[dots:]])


def attributes(node: ast.ClassDef) -> set[str]:
    """What one class gives its objects."""
    found = class_variables(node) | {entry.name for entry in node.body if isinstance(entry, Function)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and isinstance(inner.value, ast.Name):
            found.add(inner.attr)
    return found


def class_variables(node: ast.ClassDef) -> set[str]:
    """Names assigned or annotated in the body of a class."""
    found: set[str] = set()
    for entry in node.body:
        targets = entry.targets if isinstance(entry, ast.Assign) else [getattr(entry, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def methods(node: ast.ClassDef) -> dict[str, Function]:
    """The functions in the body of a class."""
    return {entry.name: entry for entry in node.body if isinstance(entry, Function)}


def parameters(function: Function) -> tuple[list[str], int]:
    """Positional parameters without self or cls, and how many of them have no default."""
    every = [entry.arg for entry in [*function.args.posonlyargs, *function.args.args]]
    needed = len(every) - len(function.args.defaults)
    if every[:1] in (["self"], ["cls"]):
        return every[1:], needed - 1
    return every, needed


def read_of(function: ast.AST, variable: str) -> set[str]:
    """Attributes that are read of a local variable, `x.name`; what is asked for with getattr may be absent."""
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == variable
    }
