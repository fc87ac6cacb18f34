"""Stored measurements: STATE/bench/NAME/ID.json, one document a run, and its HTML page beside it."""

import json
import os
import re
import time
from typing import Any, NamedTuple

from deploy.errors import KdeployError, environment, not_running
from deploy.homes import make_private, state_dir
from deploy.store.launches import check_name

ID = re.compile(r"\d{8}T\d{6}-\d+")


class Stored(NamedTuple):
    """One stored measurement. `id` is like 20261201T101500-1; NAME/ID names it anywhere."""

    name: str
    id: str
    path: str

    @property
    def page(self) -> str:
        """Its HTML page."""
        return self.path.removesuffix(".json") + ".html"


def folder(name: str = "") -> str:
    """The folder of all measurements, or of those of `name`."""
    return os.path.join(state_dir(), "bench", *([check_name(name)] if name else []))


def keep(name: str, document: dict[str, Any], page: str) -> Stored:
    """Store a document and its page, whole or not at all. Raises KdeployError (exit 6) where there is no room."""
    make_private(state_dir())
    make_private(folder())
    parent = make_private(folder(name))
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    number = 1
    while os.path.exists(os.path.join(parent, f"{stamp}-{number}.json")):
        number += 1
    stored = Stored(name, f"{stamp}-{number}", os.path.join(parent, f"{stamp}-{number}.json"))
    text = json.dumps({**document, "id": f"{name}/{stored.id}"}, indent=1, ensure_ascii=False) + "\n"
    try:
        _write(stored.page, page)
        _write(stored.path, text)
    except OSError as error:
        raise environment(
            "the measurement cannot be stored",
            evidence=[f"{parent}: {error.strerror}"],
            fix=["make room there, or export KDEPLOY_STATE_DIR=/path; --json prints it all the same"],
        ) from None
    return stored


def _write(path: str, text: str) -> None:
    unfinished = f"{path}.{os.getpid()}"
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
        raise


def stored(name: str | None = None) -> list[Stored]:
    """Every measurement, or those of `name`, oldest first."""
    try:
        names = [name] if name else sorted(os.listdir(folder()))
    except OSError:
        return []
    found = []
    for one in names:
        try:
            entries = os.listdir(folder(one))
        except OSError:
            continue
        ids = [entry.removesuffix(".json") for entry in entries if entry.endswith(".json")]
        found += [Stored(one, id, os.path.join(folder(one), f"{id}.json")) for id in ids if ID.fullmatch(id)]
    return sorted(found, key=lambda one: (_order(one.id), one.name))


def _order(id: str) -> tuple[str, int]:
    stamp, _, number = id.partition("-")
    return stamp, int(number)


def find(word: str) -> Stored:
    """The measurement that `word` means: NAME/ID, or the newest of NAME. Raises KdeployError (exit 3)."""
    name, _, wanted = word.partition("/")
    found = [one for one in stored(name) if not wanted or one.id == wanted]
    if not found:
        known = sorted({one.name for one in stored()})
        raise not_running(
            f"no measurement is stored as {word!r}",
            evidence=[f"measured: {', '.join(known) or 'nothing yet'}"],
            fix=["kdeploy bench list   shows them all", f"kdeploy bench {name}   measures it"],
        )
    return found[-1]


def read(one: Stored) -> dict[str, Any]:
    """The document. Raises KdeployError for a file that is none."""
    try:
        with open(one.path, "rb") as file:
            document = json.load(file)
    except (OSError, ValueError) as error:
        raise KdeployError(f"{one.path} cannot be read", evidence=[str(error)]) from None
    if not isinstance(document, dict) or document.get("schema") != 1:
        raise KdeployError(f"{one.path} is no measurement that this kdeploy knows")
    return document
