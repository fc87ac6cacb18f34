"""The exact command of every shipped profile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.engine.flags import objections, shipped_flags
from deploy.plan.gather import Wish, plan_for_show
from deploy.plan.launch_plan import LaunchPlan
from deploy.profile.catalogue import Catalogue
from deploy.shipped import shipped

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CATALOGUE = Catalogue([str(shipped("profiles"))])
RESOLVED = {found.name: CATALOGUE.resolve(found.file) for found in CATALOGUE.all()}
MODELS = [name for name, resolved in RESOLVED.items() if resolved.profile.model.id or resolved.profile.model.path]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], LaunchPlan]:
    """The plan of a shipped profile for an owner without any engine or model."""
    monkeypatch.setenv("HOME", "/home/owner")
    monkeypatch.setenv("KDEPLOY_DATA_DIR", "/home/owner/.local/share/kdeploy")
    monkeypatch.setenv("KDEPLOY_STATE_DIR", str(tmp_path))  # takes the folder of a profile's patches
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("HF_HOME", raising=False)
    return lambda name: plan_for_show(RESOLVED[name], Wish(name))


def test_the_profiles_of_the_mission_are_there() -> None:
    assert {"kimi-int4", "kimi-nvfp4", "minimax-fp8", "glm5-nvfp4", "tiny-moe"} <= set(MODELS)


def test_no_golden_file_is_left_of_a_profile_that_is_gone() -> None:
    assert {path.name for path in GOLDEN.glob("*.argv.json")} == {f"{name}.argv.json" for name in MODELS}


@pytest.mark.parametrize("name", MODELS)
def test_the_command_is_the_recorded_one(
    name: str, planned: Callable[[str], LaunchPlan], golden: Callable[[Path, Any], None]
) -> None:
    golden(GOLDEN / f"{name}.argv.json", planned(name).argv)


@pytest.mark.parametrize("name", MODELS)
def test_the_flag_catalogue_accepts_the_command(name: str, planned: Callable[[str], LaunchPlan]) -> None:
    plan = planned(name)
    flags = shipped_flags()
    assert plan.argv[1] == "serve"
    assert objections(plan.argv[1:], flags) == []
    assert not [note for note in plan.notes if "reads no variable" in note]
    used = [flags.flags[flag] for word in plan.argv if word.startswith("--") for flag in flags.lookup(word)]
    assert not any(record.get("deprecated") for record in used)


@pytest.mark.parametrize("name", MODELS)
def test_the_environment_names_no_more_gpus_than_the_profile(name: str, planned: Callable[[str], LaunchPlan]) -> None:
    plan = planned(name)
    visible = plan.env.get("CUDA_VISIBLE_DEVICES")
    assert plan.gpus_wanted == (len(visible.split(",")) if visible else 0)
    assert ("CUDA_DEVICE_ORDER" in plan.env) == bool(plan.gpus_wanted)
    # NCCL's graph files are made for 8 ranks and hang smaller groups
    assert plan.gpus_wanted >= 8 or "NCCL_GRAPH_FILE" not in plan.env
