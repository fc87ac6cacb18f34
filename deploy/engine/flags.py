"""vLLM's flags as a catalogue made from its own parser: which exist, what they take, which kdeploy manages."""

import difflib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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
    "config": "the profile itself; vLLM's own YAML drops values silently",
}


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
        if word in self.aliases:
            return [self.aliases[word]]
        if not word.startswith("--"):
            return []
        name = canonical(word[2:])
        for candidate in (name, name.removeprefix("no-")):
            if candidate in self.flags:
                return [candidate]
        return sorted(flag for flag in self.flags if flag.startswith((name, name.removeprefix("no-"))))

    def nearest(self, name: str) -> str | None:
        """The flag that `name` was probably meant to be."""
        found = difflib.get_close_matches(canonical(name), list(self.flags), n=1, cutoff=0.6)
        return found[0] if found else None


def canonical(name: str) -> str:
    """A flag's name as vLLM lists it: dashes, not underscores; a dotted tail (`compilation-config.mode`) is cut."""
    return name.partition(".")[0].replace("_", "-")


@cache
def shipped_flags() -> Flags:
    """The catalogue that kdeploy ships: generated from the vLLM 0.33.0 wheel by scripts/make-flag-catalogue."""
    document = json.loads(CATALOGUE.read_text())
    aliases = {alias: name for name, record in document["flags"].items() for alias in record.get("aliases", ())}
    return Flags(document["version"], document["flags"], aliases, frozenset(document["environment"]))


def managed_in(extra: Sequence[str], flags: Flags) -> list[tuple[str, str]]:
    """Words of a verbatim tail that set what a profile key decides: (word as typed, the key)."""
    found = []
    for word in extra:
        if not word.startswith("-"):
            continue
        exact = canonical(word.partition("=")[0].removeprefix("--").removeprefix("no-"))
        names = [exact] if exact in MANAGED else flags.lookup(word)
        found += [(word, MANAGED[name]) for name in names[:1] if name in MANAGED]
    return found
