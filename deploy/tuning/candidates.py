"""Candidates of a tune: named changes of environment and arguments, ours and the user's. Pure."""

from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from deploy.engine.flags import MANAGED, canonical, shipped_flags
from deploy.profile.schema import NAME, Args, Env, Ranks, Section, Text, Version1
from deploy.profile.validate import validate_as
from deploy.profile.yaml_reader import Mapping, Node, Position, Problem, Unreadable, read_document

FILE = Path(__file__).resolve().parent / "candidates.yaml"
BASELINE = "baseline"


class Candidate(NamedTuple):
    """One change. `env` and `args` as in a profile (None takes out); `ranks` empty: any number; `file`: where it is
    from."""

    name: str
    env: dict[str, str | None]
    args: dict[str, Any]
    why: str
    source: str
    ranks: list[int]
    otherwise: str
    file: str

    @property
    def reduces(self) -> bool:
        """Whether it changes nothing but the collectives, so that an all-reduce alone can tell what it is worth."""
        return not self.args and all(key.startswith(("NCCL_", "CUDA_DEVICE_")) for key in self.env)


class _Entry(Section):
    env: Env = Field(default_factory=dict)
    args: Args = Field(default_factory=dict)
    why: Text = ""
    source: Text = ""
    ranks: list[Ranks] = Field(default_factory=list)
    otherwise: Text = ""


class _File(Section):
    schema_: Version1 = Field(1, alias="schema")
    candidates: dict[Annotated[str, Field(pattern=rf"^{NAME.pattern}$")], _Entry]


def built_in() -> list[Candidate]:
    """The shipped ones, in the order of their file."""
    found, problems = read(FILE.read_bytes(), str(FILE))
    assert not problems, problems
    return found


def read(data: bytes, file: str) -> tuple[list[Candidate], list[Problem]]:
    """The candidates of a file, or everything that is wrong with it."""
    try:
        tree = read_document(data, file)
    except Unreadable as error:
        return [], error.problems
    document, problems = validate_as(_File, tree)
    if document is None:
        return [], problems
    problems = [problem for name, entry in document.candidates.items() for problem in _wrong(name, entry, tree)]
    return [
        Candidate(name, entry.env, entry.args, entry.why, entry.source, list(entry.ranks), entry.otherwise, file)
        for name, entry in document.candidates.items()
    ], problems


def _wrong(name: str, entry: _Entry, tree: Mapping) -> list[Problem]:
    at = _at(tree, "candidates", name)
    if name == BASELINE:
        return [Problem(at, f"`{BASELINE}` is what the candidates are compared with")]
    if not entry.env and not entry.args:
        return [Problem(at, f"`{name}` changes nothing", "give it `env:` or `args:`")]
    return [
        Problem(_at(tree, "candidates", name, "args", key), f"--{canonical(key)} is decided by {managed}", hint)
        for key in entry.args
        if (managed := _managed(key))
        for hint in ["a tune changes `args` and `env` only"]
    ]


def _managed(key: str) -> str | None:
    """The profile's key that decides the flag `key`; vLLM's parser takes abbreviations."""
    meant = [canonical(key).removeprefix("no-"), *shipped_flags().lookup(f"--{key}")]
    return next((MANAGED[flag] for flag in meant if flag in MANAGED), None)


def _at(tree: Mapping, *path: str) -> Position:
    node: Node = tree
    at = tree.at
    for key in path:
        if not isinstance(node, Mapping) or key not in node.entries:
            break
        at, node = node.keys[key], node.entries[key]
    return at
