"""Rehearsals that were passed: STATE/rehearsals/FINGERPRINT.json."""

import json
import os
from typing import Any

from deploy.errors import environment
from deploy.homes import make_private, state_dir


def _path(mark: str) -> str:
    return os.path.join(state_dir(), "rehearsals", f"{mark}.json")


def read(mark: str) -> dict[str, Any] | None:
    """What a rehearsal with this fingerprint told; None when none was passed."""
    try:
        with open(_path(mark), "rb") as file:
            told = json.load(file)
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def remember(mark: str, told: dict[str, Any]) -> None:
    """Keep what a rehearsal told that was passed."""
    path = _path(mark)
    try:
        make_private(state_dir())
        make_private(os.path.dirname(path))
        with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(told, file)
        os.rename(path + ".new", path)
    except OSError as error:
        raise environment("cannot keep the rehearsal", evidence=[f"{path}: {error.strerror}"]) from None
