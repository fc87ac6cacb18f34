"""The folders of deployments and their launches."""

import json
import os
import re
import time
from typing import Any, NamedTuple

from deploy.errors import usage
from deploy.homes import make_private, state_dir

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
LAUNCH = re.compile(r"(\d{8}T\d{6})-(\d+)")


class Launch(NamedTuple):
    """One launch's folder: `id` like 20261201T101500-1, and the files in it."""

    deployment: str
    id: str
    folder: str

    @property
    def plan(self) -> str:
        """The plan, one JSON document."""
        return os.path.join(self.folder, "plan.json")

    @property
    def events(self) -> str:
        """The journal."""
        return os.path.join(self.folder, "events.jsonl")

    @property
    def log(self) -> str:
        """The engine's own log."""
        return os.path.join(self.folder, "engine.log")

    @property
    def supervisor_log(self) -> str:
        """The supervisor's standard error."""
        return os.path.join(self.folder, "supervisor.log")


def check_name(name: str) -> str:
    """A name that can be a folder and a word on a command line, or an error (exit 2)."""
    if not NAME.fullmatch(name):
        raise usage(
            f"{name!r} cannot be a deployment's name",
            fix=["letters, digits, '.', '_' and '-', beginning with a letter or digit, 63 at most"],
        )
    return name


def deployments_dir() -> str:
    """The folder that holds one folder for each deployment."""
    return os.path.join(state_dir(), "deployments")


def folder(name: str) -> str:
    """The folder of the deployment `name`."""
    return os.path.join(deployments_dir(), check_name(name))


def lock_path(name: str) -> str:
    """The lock that the deployment's supervisor holds for its life."""
    return os.path.join(folder(name), "lock")


def names() -> list[str]:
    """Every deployment that has a folder."""
    try:
        found = os.listdir(deployments_dir())
    except OSError:
        return []
    return sorted(name for name in found if NAME.fullmatch(name))


def _order(launch_id: str) -> tuple[str, int]:
    match = LAUNCH.fullmatch(launch_id)
    return (match[1], int(match[2])) if match else ("", 0)


def launches(name: str) -> list[Launch]:
    """The launches of a deployment, oldest first."""
    parent = os.path.join(folder(name), "launches")
    try:
        ids = [entry for entry in os.listdir(parent) if LAUNCH.fullmatch(entry)]
    except OSError:
        return []
    return [Launch(name, entry, os.path.join(parent, entry)) for entry in sorted(ids, key=_order)]


def newest(name: str) -> Launch | None:
    """The newest launch of a deployment."""
    found = launches(name)
    return found[-1] if found else None


def make_deployment(name: str) -> str:
    """Make the deployment's folder (0700) and return it."""
    make_private(state_dir())
    make_private(deployments_dir())
    return make_private(folder(name))


def make_launch(name: str, plan: dict[str, Any], *, wall: float | None = None) -> Launch:
    """Make the folder of a new launch, with its plan in it or not at all. Only the lock's holder may.

    Its id sorts after every earlier one, even when the clock went back.
    """
    parent = make_private(os.path.join(make_deployment(name), "launches"))
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(time.time() if wall is None else wall))
    last = newest(name)
    number = 1
    if last is not None and _order(last.id)[0] >= stamp:
        stamp, number = _order(last.id)[0], _order(last.id)[1] + 1
    launch = Launch(name, f"{stamp}-{number}", os.path.join(parent, f"{stamp}-{number}"))
    unfinished = make_private(launch.folder + ".new")
    with open(
        os.open(os.path.join(unfinished, "plan.json"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w"
    ) as file:
        json.dump(plan, file, indent=1)
    os.rename(unfinished, launch.folder)
    return launch
