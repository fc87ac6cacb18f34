"""What this host has learned about its disks and loaders: one small JSON file, lost without harm."""

import contextlib
import json
import os
import time
from typing import Any

from deploy.errors import KdeployError
from deploy.homes import make_private, state_dir

DISK_VALID_S = 30 * 86400


def _path() -> str:
    return os.path.join(state_dir(), "history", "loads.json")


def _read() -> dict[str, Any]:
    try:
        with open(_path(), "rb") as file:
            document = json.load(file)
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _write(document: dict[str, Any]) -> None:
    with contextlib.suppress(OSError, KdeployError):
        make_private(os.path.dirname(_path()))
        fresh = f"{_path()}.{os.getpid()}"
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(document, file, indent=1)
        os.replace(fresh, _path())


def disk_rate(device: str) -> float | None:
    """Bytes a second of an earlier O_DIRECT probe of this device (major:minor), none older than a month."""
    entry = _read().get("disks", {}).get(device)
    if not entry or time.time() - entry["at"] > DISK_VALID_S:
        return None
    return float(entry["bytes_per_s"])


def note_disk_rate(device: str, rate: float) -> None:
    """Remember a probe."""
    document = _read()
    document.setdefault("disks", {})[device] = {"at": time.time(), "bytes_per_s": round(rate)}
    _write(document)


def crashed(folder: str) -> tuple[str, ...]:
    """Strategies whose loader has crashed on the model in `folder`."""
    return tuple(_read().get("models", {}).get(folder, {}).get("crashed", ()))


def note_crash(folder: str, strategy: str) -> None:
    """Remember that this strategy cannot load this model here."""
    document = _read()
    known = document.setdefault("models", {}).setdefault(folder, {}).setdefault("crashed", [])
    if strategy not in known:
        known.append(strategy)
    _write(document)


def rates(folder: str) -> dict[str, float]:
    """The last measured rate of each strategy on the model in `folder`, from loads that had to read the disk."""
    return dict(_read().get("models", {}).get(folder, {}).get("rates", {}))


def note_rate(folder: str, strategy: str, rate: float) -> None:
    """Remember how fast a strategy was."""
    document = _read()
    document.setdefault("models", {}).setdefault(folder, {}).setdefault("rates", {})[strategy] = round(rate)
    _write(document)
