"""A rehearsal: the same launch without the weights. What it is, what tells two of them apart, what it says. Pure."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deploy.plan.launch_plan import LaunchPlan

SUFFIX = ".rehearsal"
# A loader of dummy weights refuses settings of other loaders.
LOADERS = ("--load-format", "--model-loader-extra-config")
NOT_COVERED = (
    "not covered: the weight files themselves (missing, damaged, wrong scales), requests and the sense of the answers, "
    "and how long and with how much host memory the weights load"
)


def rehearsal_of(plan: LaunchPlan, port: int) -> LaunchPlan:
    """The plan of a rehearsal: the same words, environment, patches and GPUs, with random weights, on another port, so
    that no client of the real one is answered by it. It ends once it listens. Nothing is asked of it: routed by random
    weights, the CPU engine's mixture of experts dies of SIGSEGV at the first request (0.32.0)."""
    argv = [*_with_port(_without(plan.argv, LOADERS), port), "--load-format", "dummy"]
    return replace(
        plan,
        name=plan.name + SUFFIX,
        argv=argv,
        port=port,
        shards=[],
        load={},  # nothing is read: neither ahead, nor followed, nor remembered as this disk's rate
        canary={**plan.canary, "enabled": False},
        limits={**plan.limits, "restart": {**plan.limits["restart"], "policy": "never"}},
        notes=[],
        rehearsal=True,
    )


def _without(argv: list[str], flags: tuple[str, ...]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in argv:
        if not skip and word.partition("=")[0] not in flags:
            kept.append(word)
        skip = not skip and word in flags
    return kept


def _with_port(argv: list[str], port: int) -> list[str]:
    at = argv.index("--port") + 1
    return [*argv[:at], str(port), *argv[at + 1 :]]


def fingerprint(plan: LaunchPlan, host: Mapping[str, Any]) -> str:
    """The same for two launches that a rehearsal cannot tell apart: all but names, port and weights' bytes.

    Args:
        plan: the real launch.
        host: what else matters of this machine: kernel, driver.
    """
    document = plan.to_json()
    matters = {key: document[key] for key in ("model", "env", "engine", "canary", "gpus", "patches", "shards")}
    words = {"argv": _without(plan.argv, ("--port",)), "host": dict(host), **matters}
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:16]


def kv_words(tokens: int | None, predicted: int | None, max_model_len: int | None) -> list[str]:
    """The KV cache that the engine told, beside what `fit` had predicted."""
    if tokens is None:
        return ["the engine did not tell the size of its KV cache"]
    lines = [f"KV cache {tokens:,} tokens"]
    if predicted:
        lines[0] += f"; fit predicted {predicted:,} ({100 * (tokens - predicted) / predicted:+.0f} %)"
    if max_model_len and tokens < 2 * max_model_len:
        lines.append(f"that is {tokens / max_model_len:.1f} requests of full length ({max_model_len:,} tokens)")
    return lines
