"""Layers of a profile: maps merge, everything else replaces, and each value keeps the place that set it. Pure."""

from deploy.profile.yaml_reader import Mapping, Node, Position, Scalar


def merge(below: Node, above: Node) -> Node:
    """`above` laid over `below`. A section with nothing below its key (`args:` and only comments) is one not given;
    a written `null` takes everything out."""
    if isinstance(below, Mapping) and isinstance(above, Scalar) and above.plain and not above.text:
        return below
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    entries = dict(below.entries)
    keys = dict(below.keys)
    for key, value in above.entries.items():
        entries[key] = merge(entries[key], value) if key in entries else value
        keys[key] = above.keys[key]
    return Mapping(entries, keys, above.at)


def nested(path: list[str], value: Node, at: Position) -> Mapping:
    """The map that holds `value` at the key path `path`: what `--set a.b=VALUE` lays over a profile."""
    node: Node = value
    for key in reversed(path):
        node = Mapping({key: node}, {key: at}, at)
    assert isinstance(node, Mapping)
    return node


def without(node: Mapping, key: str) -> Mapping:
    """The map without one key."""
    entries = {name: value for name, value in node.entries.items() if name != key}
    keys = {name: at for name, at in node.keys.items() if name != key}
    return Mapping(entries, keys, node.at)
