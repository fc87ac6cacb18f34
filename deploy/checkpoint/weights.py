"""The weight files of a checkpoint folder: names, sizes, order, completeness. Headers are read, never weights."""

import json
import os
import re
import struct
from typing import NamedTuple

from deploy.errors import environment

INDEX = "model.safetensors.index.json"
LFS_POINTER = b"version https://git-lfs"
HEADER_LIMIT = 100_000_000  # the safetensors format's own


class WeightFile(NamedTuple):
    """One weight file: its name in the folder, and its size in bytes."""

    name: str
    size: int


def natural_key(name: str) -> list[tuple[int, int | str]]:
    """Sort key under which model-2 comes before model-10, as vLLM's loader orders its files."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", name) if part]


def read_weights(folder: str) -> list[WeightFile]:
    """The safetensors files that the loader will read, in its order; empty for a checkpoint of another format.

    Raises:
        KdeployError: (exit 6) the folder or a file is missing, a shard is an LFS pointer, truncated or unreadable.
            All damaged files are named together.
    """
    if not os.path.isdir(folder):
        raise environment(
            f"the model folder {folder} does not exist" if not os.path.exists(folder) else f"{folder} is no folder",
            fix=["name the folder that holds config.json: --set model.path=/path/to/model"],
        )
    if not os.path.isfile(os.path.join(folder, "config.json")):
        raise environment(
            f"{folder} holds no model: config.json is missing",
            evidence=[f"{folder}: {_listing(folder)}"],
            fix=["name the folder that holds config.json: --set model.path=/path/to/model"],
        )
    files: list[WeightFile] = []
    damage: list[str] = []
    for name in _names(folder):
        path = os.path.join(folder, name)
        try:
            size = os.stat(path).st_size
            problem = _problem(path, size)
        except OSError as error:
            size, problem = 0, error.strerror or "cannot be read"
        if problem:
            damage.append(f"{path}: {problem}")
        files.append(WeightFile(name, size))
    if damage:
        raise environment(
            f"the checkpoint in {folder} is not whole: {len(damage)} of {len(files)} weight files are unusable",
            evidence=damage[:8] + ([f"and {len(damage) - 8} more"] if len(damage) > 8 else []),
            fix=["fetch the named files again (an LFS pointer needs `git lfs pull`), then: kdeploy up …"],
        )
    return files


def _listing(folder: str) -> str:
    entries = sorted(os.listdir(folder))
    return ", ".join(entries[:6]) + (" …" if len(entries) > 6 else "") if entries else "empty"


def _names(folder: str) -> list[str]:
    index = os.path.join(folder, INDEX)
    if os.path.exists(index):
        try:
            with open(index, "rb") as file:
                names = set(json.load(file)["weight_map"].values())
            if not all(isinstance(name, str) for name in names):
                raise ValueError("weight_map names something that is no file")
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise environment(
                f"the checkpoint's index cannot be read: {index}",
                evidence=[f"{type(error).__name__}: {error}"],
                fix=["fetch model.safetensors.index.json again"],
            ) from None
    else:
        names = {entry for entry in os.listdir(folder) if entry.endswith(".safetensors")}
    return sorted(names, key=natural_key)


def _problem(path: str, size: int) -> str | None:
    """What is wrong with one safetensors file, judged by its header and size; None when nothing is."""
    with open(path, "rb") as file:
        start = file.read(len(LFS_POINTER))
        if start.startswith(LFS_POINTER):
            return "a git-lfs pointer, not the weights"
        if size < 8:
            return f"truncated: {size} bytes"
        (length,) = struct.unpack("<Q", start[:8])
        if length > HEADER_LIMIT:
            return f"not a safetensors file: its header claims {length} bytes"
        if length + 8 > size:
            return f"truncated in its header: {size} bytes of at least {length + 8}"
        file.seek(8)
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            expected = 8 + length + max(ends, default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            return "its header is not readable JSON"
    if size > expected:  # the loader refuses that, too
        return f"{size - expected} bytes too long: {size} of {expected}"
    return f"truncated: {size} bytes of {expected}" if size < expected else None
