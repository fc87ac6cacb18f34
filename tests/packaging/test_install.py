"""kdeploy installs three ways, and finds its profiles from any working directory in each of them."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROFILES = {file.stem for file in (ROOT / "profiles").glob("*.yaml")}


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command in a clean place: no settings of the user's, no checkout on the path."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("KDEPLOY_", "PYTHON", "VIRTUAL"))}
    env["HOME"] = str(cwd)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        env.pop(name, None)
    cache = os.environ.get("UV_CACHE_DIR") or os.path.expanduser("~/.cache/uv")
    result = subprocess.run(
        [str(word) for word in command], cwd=cwd, env={**env, "UV_CACHE_DIR": cache}, capture_output=True, text=True
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a source distribution as an index would get it."""
    folder = tmp_path_factory.mktemp("dist")
    run("uv", "build", "--quiet", "--out-dir", folder, ROOT, cwd=folder)
    return next(folder.glob("kdeploy-*.whl"))


def installed_command(folder: Path, *requirement: str | Path) -> Path:
    """`kdeploy` of a fresh environment in `folder` with one requirement installed."""
    run("uv", "venv", "--quiet", "--python", sys.executable, folder / "venv", cwd=folder)
    run("uv", "pip", "install", "--quiet", "--python", folder / "venv/bin/python", *requirement, cwd=folder)
    return folder / "venv/bin/kdeploy"


def assert_works(kdeploy: Path, elsewhere: Path) -> None:
    """It finds every profile, renders one, and its version is told."""
    elsewhere.mkdir()
    # a folder of that name must not become our package
    (elsewhere / "deploy").mkdir()
    (elsewhere / "deploy" / "__init__.py").write_text("raise SystemExit('the wrong deploy')")
    listed = json.loads(run(kdeploy, "profile", "list", "--json", cwd=elsewhere))
    assert {entry["name"] for entry in listed["profiles"]} == PROFILES
    argv = json.loads(run(kdeploy, "render", "kimi-int4", "--format", "argv", cwd=elsewhere))
    assert argv[:2] == ["vllm", "serve"]
    assert run(kdeploy, "--version", cwd=elsewhere).startswith("kdeploy")


def test_the_wheel_works_from_anywhere(wheel: Path, tmp_path: Path) -> None:
    assert_works(installed_command(tmp_path, wheel), tmp_path / "elsewhere")


def test_an_editable_install_works_from_anywhere(tmp_path: Path) -> None:
    assert_works(installed_command(tmp_path, "--editable", ROOT), tmp_path / "elsewhere")


def test_the_vllm_extra_resolves(wheel: Path, tmp_path: Path) -> None:
    run("uv", "venv", "--quiet", "--python", sys.executable, tmp_path / "venv", cwd=tmp_path)
    requirement = f"kdeploy[vllm] @ {wheel.as_uri()}"
    run("uv", "pip", "install", "--dry-run", "--python", tmp_path / "venv/bin/python", requirement, cwd=tmp_path)


def test_the_wheel_holds_what_belongs_in_it_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {Path(name).stem for name in names if name.startswith("deploy/profiles/")} == PROFILES
    assert "deploy/engine/catalogue/vllm-0.33.0.json" in names
    assert all(name.startswith(("deploy/", "kdeploy-")) for name in names)
