"""What `render --format systemd|compose|k8s|slurm` prints is taken by those who read it."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from tests.box import Box

FORMATS = ("systemd", "compose", "k8s", "slurm")
TRICKY = 'a "b" $HOME %n \\ é'


@pytest.fixture
def rendered(box: Box) -> Any:
    """`rendered(FORMAT)`: the output for a GPU profile with an awkward value and a secret."""
    keys = {
        "hardware.gpus": 2,
        "args.chat-template": TRICKY,
        "env": {"HF_TOKEN": "${env:HF_TOKEN}", "ODD": TRICKY, "NCCL_P2P_LEVEL": "SYS"},
        "restart.policy": "on-failure",
    }
    box.profile("big", "", keys)
    return lambda form: box.ok("render", "big", "--format", form, env={"HF_TOKEN": "hf_secret_value"}).stdout


@pytest.mark.parametrize("form", FORMATS)
def test_no_secret_is_printed(rendered: Any, form: str) -> None:
    assert "hf_secret_value" not in rendered(form)


def test_the_unit_satisfies_systemd(rendered: Any, tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("no systemd-analyze on this machine")
    unit = tmp_path / "kdeploy-big.service"
    unit.write_text(rendered("systemd"))
    result = subprocess.run([verify, "verify", "--man=no", unit], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_unit_runs_our_supervisor(rendered: Any, box: Box) -> None:
    unit = rendered("systemd")
    assert "Type=notify" in unit
    (start,) = (line for line in unit.splitlines() if line.startswith("ExecStart="))
    assert start.endswith("/kdeploy supervise big")


def test_the_compose_file_satisfies_the_compose_specification(rendered: Any) -> None:
    text = rendered("compose")
    PyCompose.from_yaml(text)
    service = yaml.safe_load(text)["services"]["big"]
    assert service["ipc"] == "host"
    assert service["ulimits"]["memlock"] == -1
    devices = service["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "device_ids": ["0", "1"], "capabilities": ["gpu"]}]
    # compose expands `$`; doubled, it is one again
    assert service["environment"]["ODD"].replace("$$", "$") == TRICKY
    assert service["environment"]["HF_TOKEN"] == "${HF_TOKEN:?is not set}"
    words = [word.replace("$$", "$") for word in service["command"]]
    assert words[words.index("--chat-template") + 1] == TRICKY
    assert words[words.index("--host") + 1] == "0.0.0.0"


def test_the_kubernetes_manifest_asks_for_gpus_and_takes_the_secret_from_a_secret(rendered: Any) -> None:
    deployment, service = yaml.safe_load_all(rendered("k8s"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}
    env = {entry["name"]: entry for entry in container["env"]}
    assert env["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "big", "key": "HF_TOKEN"}
    assert env["ODD"]["value"] == TRICKY
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]


def test_the_slurm_job_is_a_script_and_takes_slurms_gpus(rendered: Any, tmp_path: Path) -> None:
    job = tmp_path / "job.sh"
    job.write_text(rendered("slurm"))
    subprocess.run(["sh", "-n", job], check=True)
    assert "#SBATCH --gres=gpu:2" in job.read_text()
    assert 'CUDA_VISIBLE_DEVICES="$CUDA_VISIBLE_DEVICES"' in job.read_text()
