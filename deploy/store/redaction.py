"""What must not leave the machine in a bug report, taken out of texts. Pure."""

import re
from collections.abc import Iterable, Mapping

HIDDEN = "<hidden>"
SHORTEST = 6  # shorter values are words that occur by chance

# Names of variables, JSON keys and flags whose values are secrets.
_NAMED = r"[\w.-]*(?:token|(?:api|access|private)[_-]?key|secret|passw(?:or)?d|credential|authorization)s?"
SECRET_NAME = re.compile(rf"(?:^|_){_NAMED}$", re.IGNORECASE)
# Counts of tokens and the files of tokenizers are no secrets.
NO_SECRET = re.compile(r"(?i)tokens|tokeniz|_token_ids?$|token_id|per_token|max_token|token_count")

PATTERNS = (
    # tokens that are known by their shape: of the hub, of API providers, of source hosts, bearer headers, URLs
    (re.compile(r"\bhf_[A-Za-z0-9]{8,}"), HIDDEN),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{8,}"), HIDDEN),
    (re.compile(r"\b(?:gh[pousr]|github_pat|glpat|xox[abprs])[_-][A-Za-z0-9_-]{8,}"), HIDDEN),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"(\w://[^\s/:@]+):[^\s/@]+@"), rf"\1:{HIDDEN}@"),
    # what vLLM logs of requests when it is told to
    (re.compile(r"""(\bprompt: )(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|None)"""), rf"\1{HIDDEN}"),
    (re.compile(r"(\bprompt_token_ids: )\[[^\]\n]*\]"), rf"\1{HIDDEN}"),
)
# `--api-key VALUE`, `"HF_TOKEN": "VALUE"`, `api_key=['VALUE']`, `HF_TOKEN=VALUE`
ASSIGNED = re.compile(
    rf"""(?P<name>(?<![\w.-])(?:--)?{_NAMED})(?P<between>["']?\s*(?:[:=]\s*|,\s*|\s)\[?\s*)"""
    r"""(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s,;"'\]\)}]+)""",
    re.IGNORECASE,
)
REFERENCE = re.compile(r"""["']?\$\{(?:env|file):[^}]*\}["']?$""")


def secrets_in(environment: Mapping[str, str]) -> list[str]:
    """Values of an environment whose names say that they are secrets."""
    return [value for name, value in environment.items() if SECRET_NAME.search(name) and not NO_SECRET.search(name)]


class Redaction:
    """Takes secrets, prompts and, unless they are wanted, names of the machine and its user out of texts.

    Args:
        secrets: values that are known to be secret.
        places: words that tell which machine or user it is, and what stands in their place.
    """

    def __init__(self, secrets: Iterable[str], places: Mapping[str, str]) -> None:
        self.secrets = sorted({value for value in secrets if len(value) >= SHORTEST}, key=len, reverse=True)
        known = [word for word in places if len(word) > 1]
        self.places = dict(places)
        words = "|".join(re.escape(word) for word in sorted(known, key=len, reverse=True))
        self.place = re.compile(rf"(?<![A-Za-z0-9_])(?:{words})(?![A-Za-z0-9_])") if words else None

    def __call__(self, text: str) -> str:
        """`text` without them; its lines stay where they are."""
        for value in self.secrets:
            text = text.replace(value, HIDDEN)
        for pattern, instead in PATTERNS:
            text = pattern.sub(instead, text)
        text = ASSIGNED.sub(_assigned, text)
        return self.place.sub(lambda match: self.places[match[0]], text) if self.place else text


def _assigned(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    plain = value.strip("\"'")
    bare = match["between"].strip() == "" and not name.startswith("--")  # a word of a sentence, not an assignment
    if bare or NO_SECRET.search(name) or REFERENCE.match(value) or plain in ("", "None", "null", "true", "false"):
        return match[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{name}{match['between']}{quote}{HIDDEN}{quote}"
