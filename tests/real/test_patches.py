"""Patches on the real CPU engine at two ranks: an engine as pip made it, whose attention backend a plugin replaces."""

import json
from pathlib import Path

import pytest

from tests.box import Box
from tests.real.test_real_engine import DATA, ENGINE, checkpoint

__all__ = ["checkpoint"]
pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

PLUGIN = """
import os


def apply():
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CPU_MLA, "other_cpu_mla_backend.OtherBackend")
    return "CPU_MLA is " + AttentionBackendEnum.CPU_MLA.get_path()
"""
BACKEND = """
import os

from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend


class OtherBackend(CPUMLABackend):
    @staticmethod
    def get_impl_cls():
        os.write(2, f"[other backend] built in {os.getpid()}\\n".encode())
        return CPUMLABackend.get_impl_cls()
"""


def words(sets: list[str]) -> list[str]:
    return [word for text in sets for word in ("--set", text)]


def drifted_overlay(parent: Path) -> str:
    """An overlay of CPU_MLA's own module that was made for another text of it; its name."""
    folder = parent / "drifted"
    folder.mkdir()
    (folder / "a.diff").write_text("--- a\n+++ b\n@@ -1,1 +1,1 @@\n-no such line\n+another\n")
    change = {"module": "vllm.v1.attention.backends.mla.cpu_mla", "diff": "a.diff", "bases": ["0" * 64]}
    document = {"schema": 1, "name": "drifted", "summary": "drifted", "kind": "overlay", "overlay": [change]}
    (folder / "patch.yaml").write_text(json.dumps(document))
    return "drifted"


def test_an_engine_as_pip_made_it_runs_with_its_metadata_and_another_attention_backend(
    box: Box, checkpoint: Path
) -> None:
    program = Path(DATA) / "engines" / ENGINE / "venv/bin/vllm"
    assert program.exists(), f"{program} is missing: kdeploy engine install 0.32.0 --cpu"
    folder = box.root / "config/kdeploy/patches/other-cpu-mla"
    folder.mkdir(parents=True)
    (folder / "other_cpu_mla.py").write_text(PLUGIN)
    (folder / "other_cpu_mla_backend.py").write_text(BACKEND)
    document = {"schema": 1, "name": "other-cpu-mla", "summary": "another CPU_MLA", "kind": "plugin"}
    document |= {"plugin": {"module": "other_cpu_mla"}, "applies": {"capabilities": ["cpu"]}}
    (folder / "patch.yaml").write_text(json.dumps(document))
    broken = folder.parent / "not-selected"
    broken.mkdir()
    (broken / "not_selected.py").write_text("raise RuntimeError('loaded, and nobody asked for it')\n")
    document |= {"name": "not-selected", "plugin": {"module": "not_selected"}}
    (broken / "patch.yaml").write_text(json.dumps(document))
    sets = ["patches=[cpu-metadata, other-cpu-mla]", f"engine.executable={program}", f"model.path={checkpoint}"]
    sets += [f"serve.port={box.port}"]
    refused = box.run("up", "tiny-moe", *words([*sets, f"patches=[{drifted_overlay(folder.parent)}]"]))
    assert refused.rc == 6
    assert "hunk 1 of" in refused.stderr
    assert "cpu_mla.py:1: wanted 'no such line'" in refused.stderr
    box.ok("up", "tiny-moe", *words(sets))
    rows = {row["name"]: row for row in box.status("tiny-moe")["patches"]}
    ranks = set(box.workers("tiny-moe"))
    assert len(ranks) == 2
    every = ranks | {box.api("tiny-moe"), box.core("tiny-moe")}
    for row in rows.values():
        assert row["state"] in ("needed", "unverified")
        said = {entry["pid"]: entry for entry in row["processes"]}
        assert set(said) >= every
        assert {said[pid]["outcome"] for pid in every} == {"applied"}
    why = {entry["pid"]: entry["why"] for entry in rows["other-cpu-mla"]["processes"]}
    assert {why[pid] for pid in ranks} == {"CPU_MLA is other_cpu_mla_backend.OtherBackend"}
    log = (box.launch("tiny-moe") / "engine.log").read_text(errors="replace")
    assert all(f"[other backend] built in {pid}" in log for pid in ranks)
    assert "nobody asked for it" not in log
    box.down("tiny-moe")
