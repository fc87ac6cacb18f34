"""Tunes on disk: STATE/tune/NAME/ID/ with setup.json, the plans, the journal and the launch folders of the tries."""

import json
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from deploy.errors import KdeployError, environment
from deploy.homes import make_private, state_dir
from deploy.lifecycle.events import Event
from deploy.lifecycle.fold import fold, seconds_between
from deploy.store import journal
from deploy.store.launches import LAUNCH, check_name, folder, launches, names

RECENT = 5  # loads of a profile that an estimate stands on


class Tune(NamedTuple):
    """One tune's folder: `id` is like 20261201T101500-1."""

    name: str
    id: str
    folder: str

    @property
    def events(self) -> str:
        """The journal."""
        return os.path.join(self.folder, "events.jsonl")

    def read(self) -> list[Event]:
        """Every record of the journal."""
        return journal.read(self.events)


def home(name: str) -> str:
    """The folder of a deployment's tunes."""
    return os.path.join(state_dir(), "tune", check_name(name))


def lock_path(name: str) -> str:
    """The lock that a tune of `name` holds while it runs."""
    return os.path.join(home(name), "lock")


def make_home(name: str) -> str:
    """Make the folder of a deployment's tunes (0700)."""
    make_private(state_dir())
    make_private(os.path.dirname(home(name)))
    return make_private(home(name))


def stored(name: str) -> list[Tune]:
    """The tunes of a deployment, oldest first."""
    try:
        ids = [entry for entry in os.listdir(home(name)) if LAUNCH.fullmatch(entry)]
    except OSError:
        return []
    ordered = sorted(ids, key=lambda id: (id.partition("-")[0], int(id.partition("-")[2])))
    return [Tune(name, id, os.path.join(home(name), id)) for id in ordered]


def make(name: str, files: dict[str, Any]) -> Tune:
    """A new tune with these documents in it, whole or not at all. Only the lock's holder may."""
    stamp, number = time.strftime("%Y%m%dT%H%M%S", time.gmtime()), 1
    last = stored(name)
    if last and last[-1].id.partition("-")[0] >= stamp:
        stamp, number = last[-1].id.partition("-")[0], int(last[-1].id.partition("-")[2]) + 1
    tune = Tune(name, f"{stamp}-{number}", os.path.join(make_home(name), f"{stamp}-{number}"))
    try:
        unfinished = make_private(tune.folder + ".new")
        for file, document in files.items():
            write(os.path.join(unfinished, file), document)
        os.rename(unfinished, tune.folder)
    except OSError as error:
        raise environment(f"cannot write the tune: {error.strerror}", evidence=[str(error.filename)]) from None
    return tune


def write(path: str, document: Any) -> None:
    """One JSON document, for the owner alone."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(document, file, indent=1, ensure_ascii=False)


def read(tune: Tune, file: str) -> Any:
    """One of its documents. Raises KdeployError for one that cannot be read."""
    path = os.path.join(tune.folder, file)
    try:
        with open(path, "rb") as stream:
            return json.load(stream)
    except (OSError, ValueError) as error:
        raise KdeployError(
            f"{path} cannot be read", evidence=[str(error)], fix=[f"kdeploy tune {tune.name} --fresh"]
        ) from None


def put_away(tune: Tune, deployment: str) -> None:
    """Move the launches of the tries from among the deployments into the tune's own folder, with their logs."""
    if not os.path.isdir(folder(deployment)):
        return
    number = 1
    while os.path.exists(target := os.path.join(tune.folder, f"tries-{number}")):
        number += 1
    os.rename(folder(deployment), target)


def past_seconds(profile: str) -> tuple[list[float], list[float]]:
    """Seconds of the last loads of a profile, and of its last stops, whatever the deployments were called."""
    found = sorted(_past(profile))[-RECENT:]
    return [load for _, load, _ in found], [stop for _, _, stop in found if stop is not None]


def _past(profile: str) -> Iterator[tuple[str, float, float | None]]:
    for name in names():
        for launch in launches(name):
            try:
                with open(launch.plan, "rb") as file:
                    plan = json.load(file)
            except (OSError, ValueError):
                continue
            if not isinstance(plan, dict) or plan.get("profile") != profile:
                continue
            events = journal.read(launch.events)
            observed = fold(events)
            if observed.started_at is None or observed.ready_at is None:
                continue
            asked = [event.at for event in events if event.kind == "stop-asked"]
            gone = [event.at for event in events if event.kind == "stopped"]
            stop = seconds_between(asked[-1], gone[-1]) if asked and gone else None
            yield observed.started_at, seconds_between(observed.started_at, observed.ready_at), stop
