"""A profile as vLLM's argument list. Pure; golden tests hold what comes out."""

import json
import re
from collections.abc import Container, Sequence
from typing import Any

from deploy.engine.flags import MANAGED, canonical
from deploy.errors import usage
from deploy.profile.schema import Profile

NEGATIVE_NUMBER = re.compile(r"-\d+(\.\d*)?([eE][-+]?\d+)?|-\.\d+")

# `load.strategy` names that vLLM spells as one flag or the other.
SAFETENSORS_STRATEGIES = ("lazy", "prefetch", "eager", "torchao")


def serve_arguments(
    profile: Profile, model: str, extra: Sequence[str] = (), *, plain_switches: Container[str] = frozenset()
) -> list[str]:
    """What follows the executable: `serve MODEL --flag …`.

    Args:
        profile: the resolved profile.
        model: local folder or hub id.
        extra: verbatim tail.
        plain_switches: flags that have no `--no-` form: false means that they are not written.

    Raises:
        KdeployError: (exit 2) `args` names a flag that a profile key decides, or one flag twice.
    """
    words = ["serve", model]
    for flag, value in _managed(profile):
        words += flag_words(flag, value)
    seen: dict[str, str] = {}
    for key, value in profile.args.items():
        name = canonical(key)
        if name.removeprefix("no-") in MANAGED:
            managed = name.removeprefix("no-")
            raise usage(f"args.{key}: this flag is decided by {MANAGED[managed]}", fix=[f"set {MANAGED[managed]}"])
        if key.startswith("-"):
            raise usage(f"args.{key}: flags are written without dashes here", fix=[f"args: {{{key.lstrip('-')}: …}}"])
        if "." not in key and name in seen:
            raise usage(f"args.{key}: given twice, the other time as {seen[name]!r}", fix=["keep one of them"])
        seen[name] = key
        if value is False and name in plain_switches:
            continue
        words += flag_words(_spelled(key), value)
    return [*words, *extra]


def _spelled(key: str) -> str:
    head, dot, tail = key.partition(".")
    return head.replace("_", "-") + dot + tail


def _managed(profile: Profile) -> list[tuple[str, Any]]:
    """The flags that profile keys decide; those left at vLLM's own default are not written."""
    parallel, serve, model = profile.parallel, profile.serve, profile.model
    flags: list[tuple[str, Any]] = [
        ("served-model-name", model.served_name),
        ("revision", None if model.path else model.revision),
        ("trust-remote-code", model.trust_remote_code or None),
        ("host", serve.host),
        ("port", str(serve.port)),
        ("tensor-parallel-size", _above_one(parallel.tensor)),
        ("pipeline-parallel-size", _above_one(parallel.pipeline)),
        ("data-parallel-size", _above_one(parallel.data)),
        ("decode-context-parallel-size", _above_one(parallel.decode_context)),
        ("enable-expert-parallel", parallel.expert or None),
        ("max-model-len", _written(serve.max_model_len)),
        ("gpu-memory-utilization", _written(serve.gpu_memory_utilization)),
        ("kv-cache-dtype", serve.kv_cache_dtype),
        ("reasoning-parser", serve.reasoning_parser),
        ("tool-call-parser", serve.tool_call_parser),
        ("enable-auto-tool-choice", True if serve.tool_call_parser else None),
    ]
    if "enable-auto-tool-choice" in {canonical(key) for key in profile.args}:
        flags.pop()
    strategy = profile.load.strategy
    if strategy in SAFETENSORS_STRATEGIES:
        flags.append(("safetensors-load-strategy", strategy))
    elif strategy != "auto":
        flags.append(("load-format", strategy))
    return flags


def _above_one(value: int) -> str | None:
    return str(value) if value > 1 else None


def _written(value: float | None) -> str | None:
    return None if value is None else str(value)


def flag_words(name: str, value: Any) -> list[str]:
    """One flag as argument words: true → bare, false → --no-, list → repeated values, map → one JSON word,
    null → nothing, and everything else one word with exactly its characters."""
    if value is None:
        return []
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"]
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value, separators=(",", ":"), ensure_ascii=False)]
    if isinstance(value, list):
        return [f"--{name}", *value] if value else []
    # argparse would take `-x` for another flag; a negative number it knows
    if value.startswith("-") and not NEGATIVE_NUMBER.fullmatch(value):
        return [f"--{name}={value}"]
    return [f"--{name}", value]
