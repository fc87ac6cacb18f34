"""Fixtures of all tests: redirected homes, the private box with its leak check, the fake NVML library."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.box import FAKES, HOMES, Box
from tests.gpu_box import GpuBox

# A job in the background of a script without job control has SIGINT ignored, and every command would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NOWHERE = "/dev/null/a-home-that-no-test-has-set"


@pytest.fixture(autouse=True)
def homes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the developer's own homes: one that a test has not set is a path that cannot be written.

    Tests of packaging and of the real engine need caches and installed engines, and look after themselves.
    """
    if {"packaging", "real"} & set(request.path.parts):
        return
    for home in HOMES:
        monkeypatch.setenv(home, NOWHERE)
    monkeypatch.delenv("KDEPLOY_PROFILES", raising=False)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """A private kdeploy. At the end nothing of it may be left running, nor any shared memory that it was seen using."""
    root = tmp_path / "box"
    root.mkdir()
    private = Box(root)
    yield private
    left = private.end_everything()
    assert not left, f"left behind: {left}"
    logs = [*private.state.glob("deployments/*/launches/*/supervisor.log"), *private.state.glob("swaps/*/swap.log")]
    faults = [path.read_text() for path in logs]
    assert not any(faults), f"a supervisor complained: {faults}"


@pytest.fixture(scope="session")
def nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for LD_LIBRARY_PATH that holds the fake libnvidia-ml.so.1."""
    compiler = shutil.which("cc")
    assert compiler, "the fake NVML library needs a C compiler (cc)"
    folder = tmp_path_factory.mktemp("nvml")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, FAKES / "nvml.c"], check=True)
    return folder


@pytest.fixture
def gpus(box: Box, nvml_folder: Path) -> GpuBox:
    """Eight GPUs with nothing on them; an engine's rank takes 1000 MiB."""
    return GpuBox(box, nvml_folder)
