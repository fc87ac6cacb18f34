"""What each checkpoint's likelihood was when it first passed: one small file a checkpoint, in the state folder."""

import json
import os
from typing import Any

from deploy.errors import KdeployError
from deploy.homes import make_private, state_dir


def path_of(key: str | None) -> str:
    """The file of a checkpoint's expectation."""
    return os.path.join(state_dir(), "canary", f"{key or 'unknown'}.json")


def recall(key: str | None) -> float | None:
    """The mean log-probability a token at the first pass; None when none is known."""
    if key is None:
        return None
    try:
        with open(path_of(key), "rb") as file:
            value = json.load(file)["mean"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return float(value) if isinstance(value, int | float) else None


def remember(key: str | None, document: dict[str, Any], *, anew: bool = False) -> bool:
    """Keep the first expectation of a checkpoint, or with `anew` this one instead; whether it could be written."""
    if key is None:
        return False
    path = path_of(key)
    try:
        make_private(state_dir())
        make_private(os.path.dirname(path))
        unfinished = f"{path}.{os.getpid()}"
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(document, file)
        if anew:
            os.replace(unfinished, path)
            return True
        try:
            os.link(unfinished, path)  # the first one stays
        finally:
            os.unlink(unfinished)
    except FileExistsError:
        return True
    except (OSError, KdeployError):  # a full disk costs the comparison, never the deployment
        return False
    return True
