"""patches/tuned-moe-configs: when the folder is handed to vLLM, and when not."""

import os
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.shipped import shipped

SOURCE = Path(str(shipped("patches"))) / "tuned-moe-configs/kdeploy_tuned_moe/__init__.py"
FILE = "E=8,N=16,device_name=X.json"
VARIABLE = "VLLM_TUNED_CONFIG_FOLDER"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where vLLM keeps its own files."""
    folder = tmp_path / "site/vllm/model_executor/layers/fused_moe/configs"
    folder.mkdir(parents=True)
    (tmp_path / "site/vllm/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    # put back at the end, whatever the patch sets
    monkeypatch.setenv(VARIABLE, "")
    return folder


def load(tmp_path: Path, *files: str) -> Callable[[], Any]:
    """The patch's function, with these files beside it."""
    folder = tmp_path / "kdeploy_tuned_moe"
    folder.mkdir()
    (folder / "__init__.py").write_bytes(SOURCE.read_bytes())
    for name in files:
        (folder / name).write_text("{}")
    apply: Callable[[], Any] = runpy.run_path(str(folder / "__init__.py"))["apply"]
    return apply


def test_without_a_file_there_is_nothing_to_do(tmp_path: Path, engine: Path) -> None:
    outcome, why = load(tmp_path)()
    assert outcome == "needless"
    assert os.environ[VARIABLE] == ""
    assert "scripts/tune-moe-configs" in why


def test_a_file_that_the_engine_lacks_is_handed_over(tmp_path: Path, engine: Path) -> None:
    (engine / "E=4,N=16,device_name=X.json").write_text("{}")
    apply = load(tmp_path, FILE)
    assert apply() == "1 configurations handed over"
    assert os.environ[VARIABLE] == str(tmp_path / "kdeploy_tuned_moe")
    assert apply() == "1 configurations handed over"


def test_a_folder_that_the_user_named_stays(tmp_path: Path, engine: Path) -> None:
    os.environ[VARIABLE] = "/mine"
    assert load(tmp_path, FILE)()[0] == "needless"
    assert os.environ[VARIABLE] == "/mine"


def test_a_file_that_the_engine_has_is_not_hidden(tmp_path: Path, engine: Path) -> None:
    (engine / FILE).write_text("{}")
    with pytest.raises(RuntimeError, match="remove ours"):
        load(tmp_path, FILE)()
    assert os.environ[VARIABLE] == ""
