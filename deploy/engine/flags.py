"""vLLM's flags as a catalogue made from its own parser: which exist, what they take, which kdeploy manages."""

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

HUMAN = re.compile(r"\d+[kmgtKMGT]|\d+\.\d+[kmgt]")  # 32k = 32000, 32K = 32768
CATALOGUE = Path(__file__).resolve().parent / "catalogue" / "vllm-0.33.0.json"

# Flags that a profile key decides, and that key.
MANAGED = {
    "model": "model.path or model.id",
    "host": "serve.host",
    "port": "serve.port",
    "uds": "serve.host",
    "served-model-name": "model.served_name",
    "revision": "model.revision",
    "trust-remote-code": "model.trust_remote_code",
    "tensor-parallel-size": "parallel.tensor",
    "pipeline-parallel-size": "parallel.pipeline",
    "data-parallel-size": "parallel.data",
    "enable-expert-parallel": "parallel.expert",
    "decode-context-parallel-size": "parallel.decode_context",
    "max-model-len": "serve.max_model_len",
    "gpu-memory-utilization": "serve.gpu_memory_utilization",
    "kv-cache-dtype": "serve.kv_cache_dtype",
    "reasoning-parser": "serve.reasoning_parser",
    "tool-call-parser": "serve.tool_call_parser",
    "device-ids": "hardware.gpus",  # which ones: the lease, chosen with --gpus
    "config": "the profile itself; vLLM's own YAML drops values silently",
}

# Flags whose values the parser takes unseen and vLLM refuses later, and the catalogue's list of those that there are.
REGISTRIES = {
    "attention-backend": "attention_backends",
    "load-format": "load_formats",
    "quantization": "quantizations",
    "reasoning-parser": "reasoning_parsers",
    "tool-call-parser": "tool_call_parsers",
}
UNSET = ("", "None", "none", "auto")

# Flags that take several values as one, joined by commas.
JOINED = ("device-ids", "disable-access-log-for-endpoints")


class Flags(NamedTuple):
    """The flags of one vLLM version: long name without dashes -> its record; `aliases` maps short forms."""

    version: str
    flags: dict[str, dict[str, Any]]
    aliases: dict[str, str]
    environment: frozenset[str]

    def lookup(self, word: str) -> list[str]:
        """The flags that `word` (as typed, with dashes) may mean; vLLM's parser takes abbreviations, underscores,
        `--no-` forms and `--flag=value`."""
        word = word.partition("=")[0]
        if not word.startswith("--"):
            return self._exact(word) or sorted({flag for short, flag in self.aliases.items() if short.startswith(word)})
        name = canonical(word[2:])
        positive = name.removeprefix("no-")
        for candidate in (name, positive):
            if self._exact(candidate):
                return self._exact(candidate)
        spellings = {**{flag: flag for flag in self.flags}, **{key.lstrip("-"): at for key, at in self.aliases.items()}}
        return sorted({flag for spelling, flag in spellings.items() if spelling.startswith((name, positive))})

    def _exact(self, name: str) -> list[str]:
        if name in self.flags:
            return [name]
        found = self.aliases.get(name) or self.aliases.get(f"--{name}")
        return [found] if found else []

    def nearest(self, name: str) -> str | None:
        """The flag that `name` was probably meant to be."""
        found = difflib.get_close_matches(canonical(name), list(self.flags), n=1, cutoff=0.6)
        return found[0] if found else None

    def nearest_variable(self, name: str) -> str | None:
        """The environment variable that `name` was probably meant to be."""
        found = difflib.get_close_matches(name, sorted(self.environment), n=1, cutoff=0.8)
        return found[0] if found else None

    def unknown_variables(self, names: Iterable[str]) -> list[str]:
        """Those of `names` that are vLLM's by their prefix and that this version does not read."""
        return sorted(name for name in names if name.startswith("VLLM_") and name not in self.environment)


def canonical(name: str) -> str:
    """A flag's name as vLLM lists it: dashes, not underscores; a dotted tail (`compilation-config.mode`) is cut."""
    return name.partition(".")[0].replace("_", "-")


@cache
def shipped_flags() -> Flags:
    """The catalogue that kdeploy ships: generated from the vLLM 0.33.0 wheel by scripts/make-flag-catalogue."""
    document = json.loads(CATALOGUE.read_text())
    return flags_from(document)


def flags_from(document: dict[str, Any]) -> Flags:
    """A catalogue from its JSON form. `--enable-x` is also known as `--disable-x`, and the other way round."""
    flags = dict(document["flags"])
    for flag, registry in REGISTRIES.items():
        if flag in flags and registry in document:
            flags[flag] = {**flags[flag], "known": document[registry]}
    aliases = {
        alias: name
        for name, record in flags.items()
        for alias in (*record.get("aliases", ()), *filter(None, [record.get("opposite")]))
    }
    return Flags(document["version"], flags, aliases, frozenset(document["environment"]))


def managed_in(extra: Sequence[str], flags: Flags) -> list[tuple[str, str]]:
    """Words of a verbatim tail that set what a profile key decides: (word as typed, the key)."""
    found = []
    for word in extra:
        if len(word) > 1 and word.startswith("-") and not word[1].isdigit():
            names = [canonical(word.partition("=")[0].removeprefix("--").removeprefix("no-")), *flags.lookup(word)]
            found += [(word, MANAGED[name]) for name in names if name in MANAGED][:1]
    return found


def objections(arguments: Sequence[str], flags: Flags) -> list[str]:
    """What the catalogue says against `serve MODEL --flag …`: unknown and abbreviated flags, values that are missing,
    too many or none of those that there are. Values with references are not looked at."""
    groups: list[tuple[str, list[str]]] = []
    for word in arguments[2:]:
        if len(word) > 1 and word.startswith("-") and not word[1].isdigit():
            head, equals, value = word.partition("=")
            # -O3 and the like are vLLM's short form of --optimization-level
            groups.append(("--optimization-level" if head.startswith("-O") else head, [value] if equals else []))
            if head.startswith("-O") and len(head) > 2:
                groups[-1][1].append(head[2:])
        elif groups:
            groups[-1][1].append(word)
    return [text for head, values in groups if (text := _objection(head, values, flags))]


def _objection(head: str, values: list[str], flags: Flags) -> str | None:
    name = canonical(head.removeprefix("--"))
    positive = name.removeprefix("no-") if name not in flags.flags else name
    exact = flags.aliases.get(head.partition(".")[0]) or flags.aliases.get(f"--{positive}") or positive
    record = flags.flags.get(exact)
    if record is None:
        close = flags.nearest(positive)
        return f"vLLM {flags.version} has no flag {head}" + (f"; did you mean --{close}?" if close else "")
    if "." in head:
        return None
    if record["kind"] == "switch":
        if name == f"no-{exact}" and not record.get("negative"):
            return f"{head}: vLLM {flags.version} has no --no- form of this switch; leave it out"
        return f"{head} is a switch and takes no value" if values else None
    if positive != name:
        return f"{head}: --{exact} takes a value, there is no --no- form of it"
    if not values and record.get("nargs") != "?":
        return f"{head} wants a value"
    if len(values) > 1 and record.get("nargs") != "+":
        return f"{head} takes one value, not {len(values)}"
    return next((text for value in values if (text := _bad_value(head, value, record))), None)


def _bad_value(head: str, value: str, record: dict[str, Any]) -> str | None:
    if "${" in value:
        return None
    allowed = record.get("choices") or record.get("known")
    forms = {value, value.upper(), value.lower(), value.lower().replace("-", "_")}
    right = forms if record.get("folded") or "choices" not in record else {value}
    if allowed and not right & {*allowed, *(UNSET if "choices" not in record else ())}:
        close = difflib.get_close_matches(value, allowed, n=1)
        ways = f"did you mean {close[0]}?" if close else f"there are {', '.join(allowed)}"
        return f"{head}: vLLM knows no {value!r}; {ways}"
    kind = record.get("type")
    human = HUMAN.fullmatch(value) if record.get("human") else None
    if kind in ("int", "float") and not human and not (record.get("auto") and value == "auto"):
        try:
            int(value) if kind == "int" else float(value)
        except ValueError:
            return f"{head}: {value!r} is no {'whole number' if kind == 'int' else 'number'}"
    if kind == "json":
        try:
            json.loads(value)
        except ValueError:
            return f"{head}: {value!r} is no JSON"
    return None
