"""The knowledge base: its YAML, what is made from it, and what every entry must have."""

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from deploy.engine.remedies import REMEDIES

ROOT = Path(__file__).resolve().parents[2]
NEEDED = {
    "id",
    "cause",
    "stage",
    "severity",
    "pattern",
    "summary",
    "explanation",
    "fix",
    "versions",
    "source",
    "sample",
}
MAY = {"settings", "remedy", "retryable", "hardware"}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("make_knowledge", str(ROOT / "scripts/make-knowledge"))
    spec = importlib.util.spec_from_loader("make_knowledge", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_what_is_made_from_the_knowledge_base_is_fresh(script: ModuleType) -> None:
    known = script.entries()
    assert script.JSON.read_text() == script.as_json(known), "run scripts/make-knowledge"
    assert script.PAGE.read_text() == script.as_page(known), "run scripts/make-knowledge"


def test_every_entry_is_whole(script: ModuleType) -> None:
    known = script.entries()
    assert len({entry["id"] for entry in known}) == len(known) >= 60
    for entry in known:
        assert set(entry) >= NEEDED, entry["id"]
        assert set(entry) <= NEEDED | MAY, entry["id"]
        assert entry["stage"] in script.STAGES, entry["id"]
        assert entry["severity"] in ("fatal", "aftermath", "wrapper", "symptom", "benign"), entry["id"]
        assert entry["source"].startswith("https://"), entry["id"]
        assert entry.get("remedy") in (None, *REMEDIES), entry["id"]


def test_a_reason_says_what_to_do(script: ModuleType) -> None:
    for entry in script.entries():
        if entry["severity"] in ("fatal", "aftermath"):
            assert entry["fix"] or entry.get("settings"), entry["id"]
