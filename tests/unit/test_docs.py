"""The docs tell what the code does."""

from pathlib import Path

from deploy.profile.reference import key_table
from deploy.verbs import VERBS

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_of_profile_keys_is_the_schemas() -> None:
    assert key_table() in (ROOT / "docs/profiles.md").read_text()


def test_every_verb_has_its_section() -> None:
    headings = [line for line in (ROOT / "docs/commands.md").read_text().splitlines() if line.startswith("## ")]
    missing = [verb for verb in VERBS if not any(verb in heading[3:].split(", ") for heading in headings)]
    assert missing == []
