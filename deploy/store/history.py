"""What earlier launches of the same thing took: phases, bytes, rates. One small file for each fingerprint."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from deploy.errors import KdeployError
from deploy.homes import make_private, state_dir

KEPT = 50
LEARNED_FROM = 5
PASSING = ("--host", "--port")  # flags that make no difference to a load
FINGERPRINT = re.compile(r"[0-9a-f]{16}")


def fingerprint(model: str, engine: Mapping[str, Any], argv: Sequence[str], gpus: int) -> str:
    """What two launches share when one says how long the other will take."""
    words = [word for index, word in enumerate(argv) if word not in PASSING and argv[index - 1] not in PASSING]
    text = json.dumps([model, engine.get("name"), engine.get("version"), words, gpus])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _path(key: str) -> str:
    return os.path.join(state_dir(), "history", f"{key}.jsonl")


def entries(key: str) -> list[dict[str, Any]]:
    """Earlier launches, oldest first; lines that were cut are passed over."""
    found = []
    try:
        with open(_path(key), "rb") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    entry = json.loads(line)
                    if isinstance(entry, dict) and isinstance(entry.get("phases"), dict):
                        found.append(entry)
    except OSError:
        pass
    return found[-KEPT:]


def add(key: str, entry: dict[str, Any]) -> None:
    """Remember one launch that came up. Never raises: a full disk costs a memory, not a launch."""
    with contextlib.suppress(OSError, KdeployError):
        make_private(os.path.dirname(_path(key)))
        kept = [*entries(key), entry][-KEPT:]
        fresh = f"{_path(key)}.{os.getpid()}"
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.writelines(json.dumps(one, separators=(",", ":")) + "\n" for one in kept)
        os.replace(fresh, _path(key))


def learned(past: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of each phase: the median of the last few launches."""
    recent = past[-LEARNED_FROM:]
    names = {name for entry in recent for name in entry["phases"]}
    return {name: median(entry["phases"][name] for entry in recent if name in entry["phases"]) for name in names}
