"""A launch as a script for `sh`: the same words and the same environment, readable, secrets never in an argument list
that other users could see. Pure."""

import re
import shlex

from deploy.errors import usage
from deploy.plan.launch_plan import LaunchPlan
from deploy.plan.references import REFERENCE, references

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OF_THE_SHELL = ("PWD", "OLDPWD", "SHLVL", "_")  # what a shell adds to the environment by itself

# The secrets cross into the clean environment on descriptor 3, one after the other, each closed by a line that holds
# the plan's digest, as no secret does.
NEXT_SECRET = """\
kdeploy_secret() {
  kdeploy_value=
  while IFS= read -r kdeploy_line <&3 && [ "$kdeploy_line" != END ]; do
    kdeploy_value="$kdeploy_value$kdeploy_line
"
  done
  kdeploy_value=${kdeploy_value%?}
}"""
# A file's content without the one newline at its end; `$(…)` would take all of them.
FROM_FILE = """\
kdeploy_file() {
  kdeploy_value=$(cat -- "$1" && echo x) || exit 6
  kdeploy_value=${kdeploy_value%x}
  kdeploy_value=${kdeploy_value%"
"}
}"""


def shell_script(plan: LaunchPlan) -> str:
    """The script. Secrets become shell variables that are read when it runs."""
    plain = {key: value for key, value in sorted(plan.env.items()) if not references(value)}
    secret = {key: value for key, value in sorted(plan.env.items()) if references(value)}
    origin = plan.profile_file.replace("\n", " ")
    lines = ["#!/bin/sh", f"# {plan.name}: profile {plan.profile} ({origin})"]
    if secret or any(references(word) for word in plan.argv):
        return "\n".join([*lines, *_with_secrets(plan, plain, secret)])
    lines.append("exec env -i \\")
    lines += [f"  {_assignment(key, value)} \\" for key, value in plain.items()]
    return "\n".join([*lines, *_command([shlex.quote(word) for word in plan.argv])])


def _assignment(key: str, value: str) -> str:
    return f"{key}={shlex.quote(value)}" if WORD.fullmatch(key) else shlex.quote(f"{key}={value}")


def _command(words: list[str]) -> list[str]:
    """The command from quoted words, one flag with its values a line."""
    groups: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--") and groups[-1]:
            groups.append([])
        groups[-1].append(word)
    return [f"  {' '.join(group)}" + (" \\" if index < len(groups) - 1 else "") for index, group in enumerate(groups)]


def _with_secrets(plan: LaunchPlan, plain: dict[str, str], secret: dict[str, str]) -> list[str]:
    """The same through a clean environment, the secrets read inside it."""
    for key in secret:
        if not WORD.fullmatch(key):
            raise usage(f"env.{key}: no shell can set a variable of this name from a secret")
    texts = [*secret.values(), *plan.argv]
    variables = sorted({name for text in texts for kind, name in references(text) if kind == "env"})
    files = sorted({name for text in texts for kind, name in references(text) if kind == "file"})
    lines = []
    inner = []
    if variables:
        lines += [f': "${{{name}?is not set}}"' for name in variables]
        end = f"KDEPLOY_{plan.digest}"
        lines += ["exec 3<<KDEPLOY_SECRETS", *(f"${{{name}}}\n{end}" for name in variables), "KDEPLOY_SECRETS"]
        inner += [
            NEXT_SECRET.replace("END", end),
            *(f"kdeploy_secret; kdeploy_{name}=$kdeploy_value" for name in variables),
            "exec 3<&-",
        ]
    if files:
        inner.append(FROM_FILE)
        inner += [f"kdeploy_file {_path(name)}; kdeploy_{at}=$kdeploy_value" for at, name in enumerate(files)]
    inner += [f"export {key}={_expression(value, files)}" for key, value in secret.items()]
    added = [name for name in OF_THE_SHELL if name not in plan.env]
    # a shell hands on no variable whose name it could not set itself
    odd = {key: plain[key] for key in plain if not WORD.fullmatch(key)}
    words = [*(f"-u {name}" for name in added), *(_assignment(key, value) for key, value in odd.items())]
    inner.append(f"exec env {' '.join(words)} \\")
    inner += _command([_expression(word, files) for word in plan.argv])
    lines.append("exec env -i \\")
    lines += [f"  {_assignment(key, value)} \\" for key, value in plain.items() if key not in odd]
    lines.append(f"  /bin/sh -c {shlex.quote(chr(10).join(inner))}")
    return lines


def _path(name: str) -> str:
    return f'"$HOME"{shlex.quote(name[1:])}' if name.startswith("~") else shlex.quote(name)


def _expression(text: str, files: list[str]) -> str:
    """A word of the inner script, its references replaced by what they expand to."""
    parts, at = [], 0
    for match in REFERENCE.finditer(text):
        if match.start() > at:
            parts.append(shlex.quote(text[at : match.start()]))
        kind, name = match[1], match[2]
        parts.append(f'"$kdeploy_{name if kind == "env" else files.index(name)}"')
        at = match.end()
    if at < len(text) or not parts:
        parts.append(shlex.quote(text[at:]))
    return "".join(parts)
