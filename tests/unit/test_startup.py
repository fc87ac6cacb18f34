"""Verbs import only what they use: `--help` and `ps` are called all day."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("yaml", "pydantic", "rich", "psutil", "pynvml", "tenacity", "http", "urllib.request", "asyncio", "subprocess")


@pytest.mark.parametrize("arguments", [["--help"], ["ps"], ["ps", "--json"], ["--version"]])
def test_help_and_ps_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from deploy.cli import run\n"
        f"assert run({arguments!r}) == 0\n"
        f"print(','.join(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)"
    )
    env = {**os.environ, "KDEPLOY_STATE_DIR": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert result.stderr.splitlines()[-1] == ""


def test_the_supervisor_imports_no_command_line_and_no_profile() -> None:
    code = "import deploy.supervise.__main__, sys; print(','.join(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    modules = result.stdout.strip().split(",")
    unwanted = ("click", "yaml", "pydantic", "rich", "deploy.profile", "deploy.console", "deploy.commands", "http")
    assert [name for name in modules if name.startswith(unwanted)] == []
