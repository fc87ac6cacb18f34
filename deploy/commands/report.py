"""`kdeploy report NAME`: one file to attach to a bug report, without secrets, prompts and names of the machine."""

import contextlib
import io
import json
import os
import platform
import pwd
import socket
import tarfile
import time
from typing import Any

import click

from deploy import __version__, errors
from deploy.commands import options
from deploy.commands.choosing import only
from deploy.console import output
from deploy.doctor.checks import examine
from deploy.doctor.gather import gather
from deploy.errors import KdeployError, environment
from deploy.host.gpus import NoGpus, read_machine
from deploy.plan.references import Unresolved, references
from deploy.store.deployments import Deployment, previous, to_json
from deploy.store.launches import Launch
from deploy.store.redaction import Redaction, secrets_in
from deploy.supervise.spawn import resolved

HEAD_BYTES = 1 << 20
TAIL_BYTES = 1 << 20


@click.command()
@click.argument("name", required=False)
@click.option("-o", "--output", "target", metavar="FILE", help="Write it here (default: in the current folder).")
@click.option("--with-names", is_flag=True, help="Leave the names of host, user and home folder in.")
@click.option("--stdout", is_flag=True, help="Print the redacted texts instead, to look through.")
@options.as_json
def command(name: str | None, target: str | None, with_names: bool, stdout: bool, as_json: bool) -> int:
    """Pack plan, journal, head and tail of the log, doctor's findings and versions of NAME into one redacted file."""
    deployment = only(name, "report")
    redact = Redaction(_secrets(deployment), {} if with_names else _places())
    texts = {file: redact(text) for file, text in _texts(deployment).items()}
    if stdout:
        for file, text in texts.items():
            output.data(f"==> {file} <==\n{text}")
        return errors.OK
    path = target or f"kdeploy-report-{deployment.name}-{deployment.launch.id}.tar.gz"
    _write(path, os.path.basename(path).removesuffix(".tar.gz"), texts)
    if as_json:
        output.document({"schema": 1, "file": os.path.abspath(path), "contents": sorted(texts)})
    else:
        output.data(path)
        output.say(f"  {os.path.getsize(path) / 1024:.0f} KiB: {', '.join(sorted(texts))}")
        output.say("  secrets, prompts and names of the machine were taken out; look before you send it:")
        output.say(f"  kdeploy report {deployment.name} --stdout | less")
    return errors.OK


def _texts(deployment: Deployment) -> dict[str, str]:
    texts = {
        "status.json": _json(to_json(deployment)),
        "versions.json": _json(_versions(deployment)),
        "doctor.json": _json(_doctor()),
        "gpus.json": _json(_gpus()),
    }
    before = previous(deployment.name)
    for launch, folder in ((deployment.launch, ""), *([(before, "previous/")] if before else [])):
        texts |= {folder + file: text for file, text in _launch(launch).items()}
    return texts


def _launch(launch: Launch) -> dict[str, str]:
    files = {"plan.json": launch.plan, "events.jsonl": launch.events, "engine.log": launch.log}
    files["supervisor.log"] = launch.supervisor_log
    return {name: _ends(path) for name, path in files.items() if os.path.exists(path)}


def _ends(path: str) -> str:
    """A file's beginning and end; what was left out is said."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= HEAD_BYTES + TAIL_BYTES:
                return file.read().decode(errors="replace")
            head = file.read(HEAD_BYTES)
            file.seek(size - TAIL_BYTES)
            tail = file.read(TAIL_BYTES)
    except OSError as error:
        return f"[cannot be read: {error.strerror}]\n"
    # only whole lines: half a secret would not be recognised
    head, tail = head[: head.rfind(b"\n") + 1], tail[tail.find(b"\n") + 1 :]
    left_out = f"[{size - len(head) - len(tail)} bytes are left out here]\n"
    return head.decode(errors="replace") + left_out + tail.decode(errors="replace")


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n"


def _versions(deployment: Deployment) -> dict[str, Any]:
    return {
        "kdeploy": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "engine": deployment.plan.get("engine"),
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _doctor() -> list[Any]:
    try:
        return [result.to_json() for result in examine(gather(None, None))]
    except KdeployError as error:
        return [error.to_json()]


def _gpus() -> dict[str, Any]:
    try:
        machine = read_machine()
    except NoGpus as error:
        return error.as_error().to_json()
    return {"gpus": [vars(gpu) if hasattr(gpu, "__dict__") else gpu._asdict() for gpu in machine.gpus]}


def _secrets(deployment: Deployment) -> list[str]:
    """Values that the plan refers to, as far as they are known here, and those of this shell."""
    found = secrets_in(os.environ)
    for text in [*deployment.plan.get("argv", ()), *deployment.plan.get("env", {}).values()]:
        for kind, name in references(text):
            try:
                found.append(resolved(f"${{{kind}:{name}}}"))
            except Unresolved:
                continue
    return found


def _places() -> dict[str, str]:
    host = socket.gethostname()
    places = {host: "HOST", host.partition(".")[0]: "HOST", os.path.expanduser("~"): "~"}
    with contextlib.suppress(KeyError):
        places[pwd.getpwuid(os.getuid()).pw_name] = "USER"
    # these say nothing about anybody, and stand in many texts
    return {word: instead for word, instead in places.items() if word not in ("", "/", "root", "localhost", "/root")}


def _write(path: str, folder: str, texts: dict[str, str]) -> None:
    try:
        with (
            os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz") as bundle,
        ):
            for name, text in texts.items():
                data = text.encode(errors="replace")
                about = tarfile.TarInfo(f"{folder}/{name}")
                about.size, about.mtime, about.mode = len(data), int(time.time()), 0o600
                bundle.addfile(about, io.BytesIO(data))
    except OSError as error:
        raise environment(
            f"cannot write {path}", evidence=[str(error.strerror)], fix=["name another place: -o FILE"]
        ) from None
