"""Starting the engine: its own session, its own log file, nothing inherited but what the plan says."""

import os
import subprocess
from collections.abc import Callable, Mapping
from typing import NamedTuple

from deploy.host import cgroups
from deploy.host.processes import Identity, identity_of
from deploy.plan.launch_plan import LaunchPlan
from deploy.plan.references import Unresolved, resolve


class CannotSpawn(Exception):
    """The engine could not be started; its text says why."""


class Spawned(NamedTuple):
    """The engine's first process, which leads a session of its own."""

    identity: Identity
    process: subprocess.Popen[bytes]


def read_secret_file(path: str) -> str | None:
    """The content of a secret's file, None when it cannot be read."""
    try:
        with open(os.path.expanduser(path)) as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


def resolved(text: str, env: Callable[[str], str | None] = os.environ.get) -> str:
    """`text` with its secrets; raises Unresolved."""
    return resolve(text, env=env, file=read_secret_file)


def api_key(plan: LaunchPlan) -> str | None:
    """The key that the engine was started with, if our requests need one and it can be read here."""
    argv = plan.argv
    word = argv[argv.index("--api-key") + 1] if "--api-key" in argv[:-1] else plan.env.get("VLLM_API_KEY")
    try:
        return resolved(word) if word else None
    except Unresolved:
        return None


def spawn(plan: LaunchPlan, log: str, folder: str, group: str | None, env: Mapping[str, str]) -> Spawned:
    """Start the engine of `plan`, writing to `log`, with `folder` as its working directory, in the cgroup `group`, with
    `env` beside the plan's own variables.

    Raises:
        CannotSpawn: a secret has no value, or the program cannot be started.
    """
    try:
        argv = [resolved(word) for word in plan.argv]
        full = {name: resolved(value) for name, value in plan.env.items()} | dict(env)
    except Unresolved as error:
        raise CannotSpawn(f"a secret has no value: {error}") from None
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Popen closes every other descriptor: a lock that leaked into the engine would outlive us with it.
        # Our handlers become default dispositions at exec, so a SIGINT that was ignored above us is not inherited.
        with cgroups.inside(group):
            process = subprocess.Popen(
                argv,
                env=full,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
    except (OSError, ValueError) as error:
        raise CannotSpawn(f"{argv[0]}: {getattr(error, 'strerror', None) or error}") from None
    finally:
        os.close(out)
    identity = identity_of(process.pid)
    if identity is None:  # unreachable while we have not reaped it
        raise CannotSpawn("the engine vanished")
    return Spawned(identity, process)
