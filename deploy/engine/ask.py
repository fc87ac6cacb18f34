"""What an engine takes, asked of its own parser in its own interpreter, and remembered by engine and command line."""

import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deploy.engine.flags import Flags, flags_from
from deploy.engine.installations import Engine
from deploy.homes import cache_dir

PROBE = Path(__file__).resolve().parent / "parser_probe.py"
LIMIT_S = 180.0


class Answer(NamedTuple):
    """The engine's flags, and its words against the command line (None when it takes it)."""

    flags: Flags
    verdict: str | None


class CannotAsk(Exception):
    """The engine's parser gives no answer; the text says why."""


def ask(engine: Engine, arguments: Sequence[str]) -> Answer:
    """What `engine` says to `serve`'s arguments.

    The first question of an engine imports vLLM, which takes seconds; the same question again is a file read. A new
    command line is put to the parser itself once more: a catalogue of flags knows less than the parser.

    Args:
        arguments: what follows `serve`; secrets stay references.

    Raises:
        CannotAsk: no interpreter, or vLLM cannot be imported there.
    """
    if engine.interpreter is None:
        raise CannotAsk(engine.why_unknown or "its interpreter cannot be told")
    if engine.version is None:
        raise CannotAsk(engine.why_unknown or "no vllm can be imported there")
    path = _remembered(engine, arguments)
    document = _read(path)
    if document is None:
        document = _run(engine, arguments)
        _write(path, document)
    return Answer(flags_from(document), document["verdict"])


def _remembered(engine: Engine, arguments: Sequence[str]) -> str:
    """The file that holds the answer: by interpreter, version and environment of the engine, and by the question."""
    identity = json.dumps([engine.interpreter, engine.version, sorted(engine.env.items()), PROBE.read_text()])
    question = json.dumps(list(arguments))
    names = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in (identity, question)]
    return os.path.join(cache_dir(), "parsers", names[0], f"{names[1]}.json")


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            document = json.load(file)
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and "verdict" in document else None


def _write(path: str, document: dict[str, Any]) -> None:
    """Remember; a cache that cannot be written costs the next question its seconds, and nothing else."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(f"{path}.{os.getpid()}", "w") as file:
            json.dump(document, file)
        os.replace(f"{path}.{os.getpid()}", path)
    except OSError:
        return


def _run(engine: Engine, arguments: Sequence[str]) -> dict[str, Any]:
    assert engine.interpreter is not None
    try:
        result = subprocess.run(
            # as text: the folder of a file would be on the module path, and ours has names of the standard library
            [engine.interpreter, "-c", PROBE.read_text()],
            input=json.dumps(list(arguments)).encode(),
            env={**os.environ, **engine.env},
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
            cwd="/",
        )
        document: dict[str, Any] = json.loads(result.stdout)
    except subprocess.TimeoutExpired:
        raise CannotAsk(f"{engine.interpreter} did not answer within {LIMIT_S:g} s") from None
    except (OSError, ValueError):
        lines = result.stderr.decode(errors="replace").strip().splitlines()
        raise CannotAsk(lines[-1] if lines else "it ended without an answer") from None
    return document
