"""YAML 1.2 core values that keep their file, line, column and exact characters. Pure: text in, tree out.

PyYAML reads 1.1, where `no` is false, `22:22` is 1342 and a second key silently wins. So only its nodes are
used; what a scalar means is decided here, by the core rules, and at the place that knows what belongs there.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

BYTES_LIMIT = 1 << 18
VALUES_LIMIT = 20_000
DEPTH_LIMIT = 50
DIGITS_LIMIT = 1000  # Python converts no longer ones

TAGGED = re.compile(r"(&\S+\s+)?!")
UNUSABLE = re.compile("[\0\ud800-\udfff]")  # neither an argument nor UTF-8 can hold them

INT = re.compile(r"[-+]?[0-9]+")
OCTAL = re.compile(r"0o[0-7]+")
HEX = re.compile(r"0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)")
CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}


class Position(NamedTuple):
    """A place in a file; line and column count from 1. A word of the command line has line 0."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class Problem(NamedTuple):
    """Something wrong in a profile: where, what, and the way out if one is known."""

    at: Position
    text: str
    hint: str | None = None


class Unreadable(Exception):
    """The text is no YAML that can be used; carries every problem that was found, and what could be read all the
    same (so that its other errors can be told together with these)."""

    def __init__(self, problems: list[Problem], rest: "Node | None" = None) -> None:
        super().__init__("; ".join(f"{problem.at}: {problem.text}" for problem in problems))
        self.problems = problems
        self.rest = rest


@dataclass(frozen=True, slots=True)
class Scalar:
    """One scalar: its exact characters, whether it was written without quotes, and where."""

    text: str
    plain: bool
    at: Position

    @property
    def value(self) -> Any:
        """What the characters mean by the YAML 1.2 core rules: None, bool, int, float or text."""
        return core_value(self.text) if self.plain else self.text


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list, and where it begins."""

    items: tuple["Node", ...]
    at: Position


@dataclass(frozen=True, slots=True)
class Mapping:
    """A map in file order, with the place of each key."""

    entries: dict[str, "Node"]
    keys: dict[str, Position]
    at: Position


Node = Scalar | Sequence | Mapping


def core_value(text: str) -> Any:
    """The meaning of a plain scalar: YAML 1.2.2, 10.3.2 (core schema)."""
    if text in CONSTANTS:
        return CONSTANTS[text]
    if INT.fullmatch(text) and len(text) < DIGITS_LIMIT:
        return int(text)
    if OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if HEX.fullmatch(text):
        return int(text, 16)
    if FLOAT.fullmatch(text):
        return float(text)
    if INFINITE.fullmatch(text):
        return -math.inf if text[0] == "-" else math.inf
    return text


def plain_data(node: Node) -> Any:
    """The node as plain Python values, by the core rules."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Sequence):
        return [plain_data(item) for item in node.items]
    return {key: plain_data(value) for key, value in node.entries.items()}


def leaves(node: Node, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
    """Every scalar, list and empty map with its key path, in order."""
    if isinstance(node, Mapping) and node.entries:
        for key, value in node.entries.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, node


def read_document(data: bytes, file: str) -> Mapping:
    """The one map that a profile file is.

    Raises:
        Unreadable: not UTF-8, not YAML, empty, several documents, no map at the top, duplicate keys, too large.
    """
    start = Position(file, 1, 1)
    if len(data) > BYTES_LIMIT:
        raise Unreadable([Problem(start, f"too large for a profile, which has {BYTES_LIMIT >> 10} KiB at most")])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable([Problem(Position(file, line, 1), f"not UTF-8 text: byte {data[error.start]:#04x}")]) from None
    node = read_value(text, file)
    if node is None or (isinstance(node, Scalar) and node.plain and node.value is None):
        raise Unreadable([Problem(start, "the file is empty", "`kdeploy profile show NAME` prints one to start from")])
    if not isinstance(node, Mapping):
        kind = "a list" if isinstance(node, Sequence) else "a single value"
        raise Unreadable([Problem(node.at, f"{kind} at the top; a profile is a map of keys")])
    return node


def _words(error: yaml.MarkedYAMLError, at: Position) -> str:
    """PyYAML's own words; where a block that does not end began, too."""
    if error.context == "expected a single document in the stream":
        return "a second document begins; a profile is one document"
    words = error.problem or error.context or "cannot be read"
    begin = error.context_mark
    if error.problem and error.context and begin and begin.line + 1 != at.line:
        words += f" {error.context}, which began in line {begin.line + 1}"
    return f"not YAML: {words}"


def read_value(text: str, file: str) -> Node | None:
    """Any YAML value; None for an empty document. Raises Unreadable."""
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = Position(file, mark.line + 1, mark.column + 1) if mark else Position(file, 1, 1)
        raise Unreadable([Problem(at, _words(error, at), _hint(text, at))]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Unreadable([Problem(Position(file, line, 1), f"not YAML: {error.reason}")]) from None
    except RecursionError:
        raise Unreadable([Problem(Position(file, 1, 1), "nested too deeply")]) from None
    if root is None:
        return None
    builder = _Builder(file, text)
    node = builder.build(root, ())
    if builder.problems:
        raise Unreadable(builder.problems, node)
    return node


def _hint(text: str, at: Position) -> str | None:
    lines = text.splitlines()
    line = lines[at.line - 1] if at.line <= len(lines) else ""
    return "YAML wants spaces here, not tabs" if "\t" in line[: max(at.column, 1)] else None


def _joined(text: str) -> str:
    """The text with pairs of surrogates, as JSON escapes a character beyond U+FFFF, as that character."""
    if not UNUSABLE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


class _Builder:
    """Turns PyYAML's nodes into ours, collecting every problem on the way."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.count = 0
        self.problems: list[Problem] = []

    def build(self, node: yaml.Node, above: tuple[int, ...]) -> Node:
        at = Position(self.file, node.start_mark.line + 1, node.start_mark.column + 1)
        self.count += 1
        if self.count > VALUES_LIMIT:
            raise Unreadable([Problem(at, f"more than {VALUES_LIMIT} values (aliases counted as often as used)")])
        if id(node) in above:
            raise Unreadable([Problem(at, "an alias that contains itself")])
        if len(above) > DEPTH_LIMIT:
            raise Unreadable([Problem(at, "nested too deeply")])
        above = (*above, id(node))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, at)
        if isinstance(node, yaml.SequenceNode):
            self._refuse_tag(node, at, "tag:yaml.org,2002:seq")
            return Sequence(tuple(self.build(item, above) for item in node.value), at)
        assert isinstance(node, yaml.MappingNode)
        self._refuse_tag(node, at, "tag:yaml.org,2002:map")
        return self._mapping(node, at, above)

    def _scalar(self, node: yaml.ScalarNode, at: Position) -> Scalar:
        self._refuse_tag(node, at, "tag:yaml.org,2002:str")
        text = _joined(node.value)
        if UNUSABLE.search(text):
            self.problems.append(Problem(at, "a character that no argument or file can hold"))
        tagged_text = TAGGED.match(self.text, node.start_mark.index) is not None
        return Scalar(text, node.style is None and not tagged_text, at)

    def _refuse_tag(self, node: yaml.Node, at: Position, usual: str) -> None:
        if node.tag not in (usual, "!"):
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            self.problems.append(Problem(at, f"a tag ({tag}); profiles use plain YAML", "remove the tag"))

    def _mapping(self, node: yaml.MappingNode, at: Position, above: tuple[int, ...]) -> Mapping:
        entries: dict[str, Node] = {}
        keys: dict[str, Position] = {}
        for key_node, value_node in node.value:
            key_at = Position(self.file, key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(key_at, "a key that is not a word"))
                continue
            key = _joined(key_node.value)
            if key == "<<" and key_node.style is None:
                self.problems.append(Problem(key_at, "YAML 1.2 has no merge keys", "use extends: [BASE]"))
                continue
            if UNUSABLE.search(key):
                self.problems.append(Problem(key_at, "a character that no argument or file can hold"))
                continue
            if key in entries:
                first = keys[key]
                self.problems.append(
                    Problem(key_at, f"duplicate key `{key}`; the first is in line {first.line}", "keep one of them")
                )
                continue
            keys[key] = key_at
            entries[key] = self.build(value_node, above)
        return Mapping(entries, keys, at)
