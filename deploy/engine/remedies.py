"""Settings that mend a failure, where they have to be worked out. Pure.

Each function takes the groups of an entry's pattern (from 1; group 0 is empty) and what is known about the launch, and
gives `KEY=VALUE` for `--set`; nothing where no one setting is known to help.
"""

import re
from collections.abc import Callable, Sequence
from math import floor
from typing import NamedTuple

UNITS = {"KiB": 1 / (1 << 20), "MiB": 1 / 1024, "GiB": 1.0}
LOWEST = 0.5  # a share below which another model or fewer processes are the answer
RESERVE = 0.01  # a share that stays free beside what was missing


class Context(NamedTuple):
    """What is known about a launch beside its log. `gpus`: indices by rank. `utilization`: share of each GPU.

    `ranks`: processes that hold a part of the model. `serving_since`: the log's line from which it serves.
    """

    ranks: int | None = None
    gpus: Sequence[int] = ()
    utilization: float | None = None
    serving_since: int | None = None
    kv_cache_taken: bool = False


# Flags that vLLM has taken back, and what does their work now: a key and its value (None: the old one's), or nothing.
RETIRED: dict[str, tuple[str, str | None] | None] = {
    "enable-reasoning": None,
    "use-v2-block-manager": None,
    "max-seq-len-to-capture": None,
    "swap-space": None,
    "num-lookahead-slots": None,
    "preemption-mode": None,
    "disable-log-requests": ("args.enable-log-requests", "false"),
    "cuda-graph-sizes": ("args.cudagraph-capture-sizes", None),
    "enable-microbatching": ("args.enable-dbo", "true"),
    "override-pooler-config": ("args.pooler-config", None),
    "guided-decoding-backend": ("args.structured-outputs-config.backend", None),
    "task": ("args.runner", None),
}


def retired_flags(groups: Sequence[str], context: Context) -> list[str]:
    """Retired flags by their new names; nothing as long as one of the refused flags is not known to be retired."""
    settings: list[str] = []
    for flag, value in re.findall(r"(?:^|\s)--([\w-]+)(?:[= ](?!--)(.*?))?(?=\s--|$)", groups[1]):
        name = flag.replace("_", "-")
        if name not in RETIRED:
            return []
        settings.append(f"args.{name}=null")
        successor = RETIRED[name]
        if successor is not None:
            key, fixed = successor
            settings.append(f"{key}={fixed if fixed is not None else value.strip()}")
    return settings


def utilization_from_free(groups: Sequence[str], context: Context) -> list[str]:
    """The share that the free memory allows (groups: device, free GiB, total GiB, wanted share)."""
    free, total = float(groups[2]), float(groups[3])
    wanted = float(groups[4]) if len(groups) > 4 and groups[4] else context.utilization
    share = floor(100 * (free / total - RESERVE)) / 100 if total else 0.0
    return [f"serve.gpu_memory_utilization={share:g}"] if share >= LOWEST and (not wanted or share < wanted) else []


def utilization_from_shortfall(groups: Sequence[str], context: Context) -> list[str]:
    """The share lowered by what was missing (groups: asked, GPU, capacity, free). Only once the KV cache was taken:
    before it, the weights do not fit, and a lower share makes that no better."""
    if not context.kv_cache_taken or context.utilization is None:
        return []
    asked, capacity, free = (_gib(groups[number]) for number in (1, 3, 4))
    share = floor(100 * (context.utilization - max(0.0, asked - free) / capacity - RESERVE) + 1e-9) / 100
    return [f"serve.gpu_memory_utilization={share:g}"] if share >= LOWEST else []


def half_the_requests(groups: Sequence[str], context: Context) -> list[str]:
    """Half as many requests at once as could not be held (group: that number)."""
    return [f"args.max-num-seqs={max(1, int(groups[1]) // 2)}"]


def _gib(text: str) -> float:
    number, unit = text.split()
    return float(number) * UNITS[unit]


REMEDIES: dict[str, Callable[[Sequence[str], Context], list[str]]] = {
    function.__name__: function
    for function in (retired_flags, utilization_from_free, utilization_from_shortfall, half_the_requests)
}
