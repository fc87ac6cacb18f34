"""From a merged tree to a `Profile`, or to every problem in it at once, each with its place. Pure."""

import difflib
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from deploy.profile.schema import Profile, for_validation
from deploy.profile.yaml_reader import Mapping, Node, Position, Problem, Sequence

M = TypeVar("M", bound=BaseModel)

FOREIGN = "a vLLM flag belongs under `args:`, a variable under `env:`"


def validate(tree: Mapping) -> tuple[Profile | None, list[Problem]]:
    """The profile that the tree describes, or None and every problem in it."""
    return validate_as(Profile, tree)


def validate_as(model: type[M], tree: Mapping) -> tuple[M | None, list[Problem]]:
    """The document of another schema that the tree describes, or None and every problem in it."""
    try:
        return model.model_validate(for_validation(tree)), []
    except ValidationError as error:
        return None, [_problem(tree, details, model) for details in error.errors(include_url=False)]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def _problem(tree: Mapping, details: Any, model: type[BaseModel]) -> Problem:
    path = [str(part) for part in details["loc"] if part != "[key]"]
    key = ".".join(path)
    kind = details["type"]
    if kind == "extra_forbidden":
        return Problem(_place(tree, path, of_key=True), f"unknown key `{key}`", _right_spelling(path, model))
    at = _place(tree, path, of_key="[key]" in details["loc"])
    if kind == "missing":
        return Problem(at, f"`{key}` is missing")
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return Problem(at, f"`{key}` is a map of keys")
    if kind == "literal_error":
        values = details["ctx"]["expected"]
        close = nearest(str(details["input"]), values.replace("'", "").replace(" or ", ", ").split(", "))
        hint = f"did you mean `{close}`?" if close else None
        return Problem(at, f"`{key}` is {values}, not `{details['input']}`", hint)
    if kind == "value_error":
        return Problem(at, f"`{key}`: {details['ctx']['error']}")
    return Problem(at, f"`{key}`: {str(details['msg']).replace('Input should be', 'must be')}")


def _right_spelling(path: list[str], model: type[BaseModel]) -> str | None:
    """What an unknown key was probably meant to be: here with other dashes, elsewhere as it is, here but misspelt."""
    word = path[-1].replace("-", "_")
    close = nearest(word, _keys_at(path[:-1], model))
    if close != word:
        homes = [section for section in model.model_fields if word in _keys_at([section], model)]
        if homes:
            return "it belongs under " + " or ".join(f"`{section}:`" for section in homes)
    if close:
        return f"did you mean `{close}`?"
    return FOREIGN if model is Profile else None


def _keys_at(path: list[str], model: type[BaseModel]) -> list[str]:
    """The keys that the schema knows under `path`."""
    for part in path:
        field = model.model_fields.get(part)
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return [field.alias or name for name, field in model.model_fields.items()]


def _place(tree: Mapping, path: list[str], *, of_key: bool = False) -> Position:
    """Where the value (or key) at `path` was written; the nearest enclosing place when it was not."""
    node: Node = tree
    at = tree.at
    for index, part in enumerate(path):
        if isinstance(node, Mapping) and part in node.entries:
            last = index == len(path) - 1
            at = node.keys[part] if (last and of_key) else node.entries[part].at
            node = node.entries[part]
        elif isinstance(node, Sequence) and part.isdigit() and int(part) < len(node.items):
            node = node.items[int(part)]
            at = node.at
        else:
            break
    return at
