"""A launch as a script for `sh`: the same words and the same environment, readable, secrets never in an argument list
that other users could see. Pure."""

import re
import shlex

from deploy.plan.launch_plan import LaunchPlan
from deploy.plan.references import REFERENCE, references


def shell_script(plan: LaunchPlan) -> str:
    """The script. Secrets become shell variables that are read when it runs."""
    plain = {key: value for key, value in sorted(plan.env.items()) if not references(value)}
    secret = {key: value for key, value in sorted(plan.env.items()) if references(value)}
    lines = ["#!/bin/sh", f"# {plan.name}: profile {plan.profile} ({plan.profile_file})"]
    secret_words = any(references(word) for word in plan.argv)
    if secret or secret_words:
        return "\n".join([*lines, *_with_secrets(plan, plain, secret)])
    lines.append("exec env -i \\")
    lines += [f"  {_assignment(key, value)} \\" for key, value in plain.items()]
    return "\n".join([*lines, *_command(plan.argv)])


def _assignment(key: str, value: str) -> str:
    return shlex.quote(f"{key}={value}") if not re.fullmatch(r"\w+", key) else f"{key}={shlex.quote(value)}"


def _command(argv: list[str]) -> list[str]:
    """The command, one flag with its values a line."""
    groups: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--") and groups[-1]:
            groups.append([])
        groups[-1].append(shlex.quote(word))
    return [f"  {' '.join(group)}" + (" \\" if index < len(groups) - 1 else "") for index, group in enumerate(groups)]


def _with_secrets(plan: LaunchPlan, plain: dict[str, str], secret: dict[str, str]) -> list[str]:
    """The same through a clean environment: the secrets cross on descriptor 3, as here-document lines, in order."""
    names = sorted(
        {name for text in [*secret.values(), *plan.argv] for kind, name in references(text) if kind == "env"}
    )
    lines = []
    if names:
        checks = [f': "${{{name}?is not set}}"' for name in names]
        lines += [*checks, "exec 3<<KDEPLOY_SECRETS", *(f"${{{name}}}" for name in names), "KDEPLOY_SECRETS"]
    inner = [f"IFS= read -r kdeploy_{name} <&3" for name in names]
    inner += ["exec 3<&-"] if names else []
    inner += [f"export {key}={_expression(value)}" for key, value in secret.items()]
    inner.append("exec " + " ".join(_expression(word) for word in plan.argv))
    lines.append("exec env -i \\")
    lines += [f"  {_assignment(key, value)} \\" for key, value in plain.items()]
    lines.append(f"  /bin/sh -c {shlex.quote(chr(10).join(inner))}")
    return lines


def _expression(text: str) -> str:
    """A word of the inner script, its references replaced by what they expand to."""
    parts, at = [], 0
    for match in REFERENCE.finditer(text):
        if match.start() > at:
            parts.append(shlex.quote(text[at : match.start()]))
        kind, name = match[1], match[2]
        parts.append(f'"$kdeploy_{name}"' if kind == "env" else f'"$(cat -- {shlex.quote(name)})"')
        at = match.end()
    if at < len(text) or not parts:
        parts.append(shlex.quote(text[at:]))
    return "".join(parts)
