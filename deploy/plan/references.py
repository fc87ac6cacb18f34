"""Secrets as references: `${env:NAME}` and `${file:/path}`. Found anywhere, resolved at launch only. Pure."""

import re
from collections.abc import Callable

REFERENCE = re.compile(r"\$\{(env(?=:[A-Za-z_][A-Za-z0-9_]*\})|file(?=:~?/)):([^}]+)\}")
MEANT = re.compile(r"\$\{(?:env|file):[^}]*\}?")


class Unresolved(Exception):
    """A reference that has no value now; its text is the reason."""


def references(text: str) -> list[tuple[str, str]]:
    """The (kind, name) of each reference in `text`."""
    return [(match[1], match[2]) for match in REFERENCE.finditer(text)]


def malformed(text: str) -> list[str]:
    """What was meant as a reference, and is none: a name that no variable has, a relative path, a missing brace."""
    return [match[0] for match in MEANT.finditer(text) if not REFERENCE.fullmatch(match[0])]


def resolve(text: str, *, env: Callable[[str], str | None], file: Callable[[str], str | None]) -> str:
    """`text` with each reference replaced by its value.

    Args:
        env: value of an environment variable, None when it is not set.
        file: content of a file, None when it cannot be read; one newline at its end is dropped.

    Raises:
        Unresolved: a reference has no value.
    """

    def value(match: re.Match[str]) -> str:
        kind, name = match[1], match[2]
        found = env(name) if kind == "env" else file(name)
        if found is None:
            what = f"the variable {name} is not set" if kind == "env" else f"the file {name} cannot be read"
            raise Unresolved(f"{match[0]}: {what}")
        return found.removesuffix("\n") if kind == "file" else found

    return REFERENCE.sub(value, text)
