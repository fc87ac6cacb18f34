"""The knowledge base of failures as the program reads it (made from knowledge.yaml by scripts/make-knowledge)."""

import json
import re
from functools import cache, cached_property
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent / "knowledge.json"

FATAL, AFTERMATH, WRAPPER, SYMPTOM, BENIGN = "fatal", "aftermath", "wrapper", "symptom", "benign"


class Entry:
    """One known text of a log. The head of knowledge.yaml says what the fields are."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.id: str = record["id"]
        self.cause: str = record["cause"]
        self.stage: str = record["stage"]
        self.severity: str = record["severity"]
        self.summary: str = record["summary"]
        self.explanation: str = record["explanation"]
        self.source: str = record["source"]
        self.settings: list[str] = record.get("settings", [])
        self.remedy: str | None = record.get("remedy")
        self.fix: list[str] = record.get("fix", [])
        self.retryable: bool = record.get("retryable", False)
        self.hardware: bool = record.get("hardware", False)
        self._pattern: str = record["pattern"]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compiled when first needed: most supervisors never need any."""
        return re.compile(self._pattern)

    def __repr__(self) -> str:
        return f"Entry({self.id})"


@cache
def entries() -> tuple[Entry, ...]:
    """Every entry, specific before general. Read once and early: the package may be upgraded under a supervisor."""
    return tuple(Entry(record) for record in json.loads(FILE.read_text()))
