"""A profile as vLLM's argument list. Pure; golden tests hold what comes out."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from deploy.engine.flags import JOINED, MANAGED, Flags, canonical
from deploy.errors import usage
from deploy.profile.schema import Profile

NEGATIVE_NUMBER = re.compile(r"-[0-9]+")

# `load.strategy` names that vLLM spells as one flag or the other.
SAFETENSORS_STRATEGIES = ("lazy", "prefetch", "eager", "torchao")


def serve_arguments(profile: Profile, model: str, flags: Flags, extra: Sequence[str] = ()) -> list[str]:
    """What follows the executable: `serve MODEL --flag …`.

    Args:
        profile: the resolved profile.
        model: local folder or hub id.
        flags: the catalogue, for how a flag takes `false` and lists.
        extra: verbatim tail.

    Raises:
        KdeployError: (exit 2) `args` names a flag that a profile key decides, or one flag twice, or a value has a form
            that the flag cannot take.
    """
    words = ["serve", model]
    for flag, value in _managed(profile, model):
        words += flag_words(flag, value)
    decided = dict(MANAGED)
    if profile.load.strategy != "auto":
        decided |= dict.fromkeys(("load-format", "safetensors-load-strategy"), "load.strategy")
    seen: dict[str, str] = {}
    for key, value in profile.args.items():
        name = canonical(key)
        # vLLM's parser takes abbreviations: one of a managed flag would win over the profile's key
        managed = next(
            (flag for flag in [name.removeprefix("no-"), *flags.lookup(f"--{key}")] if flag in decided), None
        )
        if managed:
            where = decided[managed]
            raise usage(f"args.{key}: --{managed} is decided by {where}", fix=[f"set {where}"] if "." in where else [])
        if name.startswith("no-") and isinstance(value, bool):
            positive = name.removeprefix("no-")
            fix = f"args: {{{positive}: {'false' if value else 'true'}}}"
            raise usage(f"args.{key}: a flag is switched off by its own name", fix=[fix])
        target = (flags.lookup(f"--{key}") or [name])[0]
        earlier = seen.get(target)
        if earlier is not None and not ("." in key and "." in earlier):
            raise usage(f"args.{key}: given twice, the other time as {earlier!r}", fix=["keep one of them"])
        seen[target] = key
        words += arg_words(key, value, flags.flags.get(target, {}))
    return [*words, *extra]


def arg_words(key: str, value: Any, record: Mapping[str, Any]) -> list[str]:
    """One entry of `args`, in the form that this flag takes."""
    name = _spelled(key)
    if "." in key:
        # a part of a JSON argument: vLLM reads its value as JSON
        if isinstance(value, list):
            raise usage(f"args.{key}: a list cannot stand behind a dotted name", fix=["write the map that it is in"])
        return flag_words(name, str(value).lower() if isinstance(value, bool) else value)
    if value is False and record.get("kind") == "switch" and not record.get("negative"):
        return []
    if isinstance(value, list):
        if record.get("repeat"):
            return [word for item in value for word in flag_words(name, item)]
        if record.get("kind") == "json":
            return [f"--{name}", _json(value)]
        if canonical(key) in JOINED:
            return flag_words(name, ",".join(value))
        if len(value) > 1 and any(_like_a_flag(item) for item in value):
            raise usage(
                f"args.{key}: vLLM would take an item of a list that begins with `-` for another flag",
                fix=["give the flag one value only, or another one"],
            )
        return flag_words(name, value[0]) if len(value) == 1 else flag_words(name, value)
    return flag_words(name, value)


def _like_a_flag(value: str) -> bool:
    """Whether vLLM's parser would take the value for a flag; of negative numbers it knows whole ones."""
    return value.startswith("-") and not NEGATIVE_NUMBER.fullmatch(value)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _spelled(key: str) -> str:
    head, dot, tail = key.partition(".")
    return head.replace("_", "-") + dot + tail


def _managed(profile: Profile, where: str) -> list[tuple[str, Any]]:
    """The flags that profile keys decide; those left at vLLM's own default are not written."""
    parallel, serve, model = profile.parallel, profile.serve, profile.model
    local = model.path is not None or where.startswith("/")
    # found in one of model.folders: clients ask for it by its id all the same
    found = [model.id] if local and model.path is None and model.id else None
    flags: list[tuple[str, Any]] = [
        ("served-model-name", model.served_name or found),
        ("revision", None if local else model.revision),
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
        return [f"--{name}", _json(value)]
    if isinstance(value, list):
        return [f"--{name}", *value] if value else []
    if _like_a_flag(value):
        return [f"--{name}={value}"]
    return [f"--{name}", value]
