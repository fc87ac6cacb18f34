"""What the tests of pure code and of profiles share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest tests/unit --update-golden` writes the golden files anew; read the diff before you commit it."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/ from what comes out now")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, Any], None]:
    """Compare a JSON value with a file of tests/golden, or write the file under --update-golden."""

    def compare(path: Path, value: Any) -> None:
        if request.config.getoption("--update-golden", default=False):
            path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
        assert value == json.loads(path.read_text()), (
            f"{path.name}: see the diff, then: pytest tests/unit --update-golden"
        )

    return compare
