"""`kdeploy explain [FILE|-|NAME]`: why an engine failed, from the log of any vLLM run."""

import gzip
import os
import sys
from collections.abc import Iterator
from typing import IO, Any

import click

from deploy import errors
from deploy.commands import options
from deploy.commands.choosing import only
from deploy.console import output
from deploy.engine.diagnosis import context_of, explain
from deploy.engine.knowledge import entries
from deploy.engine.log import LogReader
from deploy.engine.trouble import Trouble
from deploy.errors import environment, located
from deploy.store.deployments import Deployment, observe

CHUNK = 1 << 20
NOTHING: dict[str, Any] = {
    "cause": None,
    "summary": "nothing in this log speaks of a failure",
    "evidence": [],
    "fix": [],
    "retryable": False,
    "settings": [],
}


@click.command()
@click.argument("source", required=False, metavar="[FILE|-|NAME]")
@options.as_json
def command(source: str | None, as_json: bool) -> int:
    """Diagnose a log: FILE (also .gz), - for standard input, or a deployment's (without a word: the only one's)."""
    name, found = _of_source(source)
    if as_json:
        output.document(found or NOTHING)
        return errors.OK
    if found is None:
        output.data(f"{name}: {NOTHING['summary']}")
        return errors.OK
    output.data(f"{found['cause']}: {found['summary']}")
    if found.get("explanation"):
        output.data(f"  {found['explanation']}")
    for item in found["evidence"]:
        times = f"   ({item['times']} times)" if item.get("times") else ""
        output.data(f"  {located(item, name)}{times}")
    for fix in found["fix"]:
        output.data(f"  -> {fix}")
    return errors.OK


def _of_source(source: str | None) -> tuple[str, dict[str, Any] | None]:
    """What the evidence's lines are lines of, and the diagnosis. A deployment's name stands before a file's unless the
    word looks like a path."""
    if source == "-":
        return "-", _of_stream(sys.stdin.buffer, "-", {})
    looks_like_a_path = source is not None and ("/" in source or not _is_deployment(source))
    if source is not None and looks_like_a_path and os.path.exists(source):
        return source, _of_file(source, {})
    if source is not None and "/" in source:
        raise environment(f"no such file: {source}", fix=["kdeploy explain NAME   for a deployment"])
    deployment = only(source, "explain")
    return deployment.launch.log, _of_deployment(deployment)


def _is_deployment(word: str) -> bool:
    try:
        return observe(word) is not None
    except errors.KdeployError:
        return False


def _of_deployment(deployment: Deployment) -> dict[str, Any] | None:
    """What `status` says, where it says something; else what the log says so far."""
    if deployment.diagnosis is not None:
        return deployment.diagnosis
    if not os.path.exists(deployment.launch.log):
        return None
    return _of_file(deployment.launch.log, deployment.plan)


def _of_file(path: str, plan: dict[str, Any]) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else open(path, "rb") as file:
            return _of_stream(file, path, plan)
    except (OSError, EOFError) as error:
        raise environment(f"cannot read {path}", evidence=[str(error)]) from None


def _of_stream(file: IO[bytes] | gzip.GzipFile, name: str, plan: dict[str, Any]) -> dict[str, Any] | None:
    reader, trouble = LogReader(), Trouble(entries())
    for chunk in _chunks(file):
        _see(reader.feed(chunk), trouble)
    _see(reader.finish(), trouble)
    return explain(trouble, tail=reader.tail(), context=context_of(plan, reader))


def _chunks(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk


def _see(sightings: list[Any], trouble: Trouble) -> None:
    for sighting in sightings:
        if sighting.kind == "trouble":
            trouble.append(sighting.data["line"])
