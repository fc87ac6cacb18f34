"""Asks one vLLM what it takes. Run as a program by that vLLM's own interpreter, never imported by kdeploy.

stdin: a JSON array, the arguments after `serve`. stdout: one JSON document:

    {"version": …, "flags": {long name: {"kind": "switch"|"value", "negative": bool, "aliases": […], "choices": […]}},
     "environment": [variables that vLLM reads], "verdict": null or the parser's own words about the arguments}
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import re
import sys
from typing import Any

# Companions of torch that the parser never uses and that fail to import where they do not match it.
UNUSED = ("torchaudio", "torchcodec", "torchvision")
HOMES = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.common.cli_args", "vllm.entrypoints.openai.cli_args")
READ = re.compile(rb"(?:environ|getenv)[^\n]{0,12}[(\[]\s*[\"'](VLLM_[A-Z0-9_]+)[\"']")
PARSERS = ("vllm.utils.argparse_utils", "vllm.utils")


def _first(modules: tuple[str, ...], name: str) -> Any:
    """The object `name` of the first of these modules that has it: vLLM moves its files about."""
    for module in modules:
        with contextlib.suppress(ImportError):
            found = getattr(importlib.import_module(module), name, None)
            if found is not None:
                return found
    raise ImportError(f"no {name} in {', '.join(modules)}")


def flags_of(parser: argparse.ArgumentParser) -> dict[str, dict[str, Any]]:
    """The long flags of a parser."""
    flags: dict[str, dict[str, Any]] = {}
    for action in parser._actions:
        names = [word for word in action.option_strings if word.startswith("--")]
        plain = [word for word in names if not word.startswith("--no-")]
        if not plain or isinstance(action, argparse._HelpAction):
            continue
        entry: dict[str, Any] = {"kind": "switch" if action.nargs == 0 else "value"}
        if f"--no-{plain[0][2:]}" in names:
            entry["negative"] = True
        others = [word for word in action.option_strings if word not in (plain[0], f"--no-{plain[0][2:]}")]
        if others:
            entry["aliases"] = others
        if action.choices is not None and action.nargs is None:
            entry["choices"] = [str(choice) for choice in action.choices]
        flags[plain[0][2:]] = entry
    return flags


def verdict_on(parser: argparse.ArgumentParser, arguments: list[str]) -> str | None:
    """What the parser and vLLM's own checks say against the arguments; None when nothing."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed = parser.parse_args(arguments)
            _first(HOMES, "validate_parsed_serve_args")(parsed)
    except SystemExit:
        lines = [line for line in said.getvalue().splitlines() if line.strip()]
        return lines[-1].partition("error: ")[2] or lines[-1] if lines else "the parser refused the arguments"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def environment_of(envs: Any) -> list[str]:
    """The variables of vLLM's own list, and those that its modules read past it."""
    found = set(envs.environment_variables)
    for folder, _, files in os.walk(os.path.dirname(envs.__file__)):
        for name in files:
            if name.endswith(".py"):
                with open(os.path.join(folder, name), "rb") as file:
                    found |= {text.decode() for text in READ.findall(file.read())}
    return sorted(found)


def main() -> None:
    """Answer on stdout; whatever vLLM prints on its own goes to stderr."""
    arguments = json.load(sys.stdin)
    answer = sys.stdout
    sys.stdout = sys.stderr
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    sys.argv = ["vllm", "serve"]
    for name in UNUSED:
        sys.modules[name] = None  # type: ignore[assignment]
    parser = _first(HOMES, "make_arg_parser")(_first(PARSERS, "FlexibleArgumentParser")(prog="vllm serve"))
    envs = importlib.import_module("vllm.envs")
    document = {
        "version": importlib.import_module("vllm.version").__version__,
        "flags": flags_of(parser),
        "environment": environment_of(envs),
        "verdict": verdict_on(parser, arguments),
    }
    json.dump(document, answer)


if __name__ == "__main__":
    main()
