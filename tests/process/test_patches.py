"""Patches on the fake engine: confirmed, refused, never confirmed, overlays, and what is refused before a start."""

import difflib
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from tests.box import FAKE_VLLM, Box


def write_patch(box: Box, name: str, code: str, document: dict[str, Any] | None = None) -> Path:
    """A patch of the user's own whose plugin module is `code`."""
    folder = box.root / "config/kdeploy/patches" / name
    folder.mkdir(parents=True)
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    plain = {"schema": 1, "name": name, "summary": f"does {name}", "kind": "plugin", "plugin": {"module": module}}
    (folder / "patch.yaml").write_text(json.dumps({**plain, **(document or {})}))
    return folder


def install_engine(box: Box) -> Path:
    """The fake engine as an installed one whose `vllm` package is one module; the folder of that package."""
    site = box.root / "site"
    (site / "vllm").mkdir(parents=True)
    (site / "vllm" / "__init__.py").write_text("")
    (site / "vllm" / "answer.py").write_text("# the answer\nVALUE = 41\n")
    (site / "vllm-0.33.0.dist-info").mkdir()
    (site / "vllm-0.33.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n")
    folder = box.root / "data/engines/fake"
    folder.mkdir(parents=True)
    record = {"version": "0.33.0", "interpreter": sys.executable, "start": [str(FAKE_VLLM)]}
    (folder / "engine.json").write_text(json.dumps({**record, "env": {"PYTHONPATH": str(site)}}))
    return site / "vllm"


def overlay(old: str, new: str) -> str:
    """A unified diff."""
    return "".join(difflib.unified_diff(old.splitlines(True), new.splitlines(True), "a/answer.py", "b/answer.py"))


def test_a_patch_is_confirmed_by_every_process_and_only_the_named_one_is_loaded(box: Box) -> None:
    write_patch(box, "good", "def apply():\n    return 'done as asked'\n")
    write_patch(box, "bad", "raise RuntimeError('not selected, and yet loaded')\n")
    status = box.up("tiny", "", {"patches": ["good"]})
    (row,) = status["patches"]
    said = {entry["title"]: entry for entry in row["processes"]}
    assert {entry["pid"] for entry in row["processes"]} >= {box.api(), box.core(), *box.workers()}
    assert {"VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1"} <= set(said)
    assert {entry["outcome"] for entry in said.values()} == {"applied"}
    assert said["VLLM::Worker_TP1"]["why"] == "done as asked"
    refused = box.run("render", "tiny", "--format", "compose")  # a container would be without it, and nobody would know
    assert refused.rc == 2
    assert "good cannot be handed to a container" in refused.stderr
    text = box.ok("patch", "status", "tiny").stdout
    assert "VLLM::Worker_TP1" in text
    assert "done as asked" in text
    assert "not selected" not in (box.launch() / "engine.log").read_text()
    # another launch of the same engine is as it was
    other = box.profile("other", "", {"serve.port": box.port + 1})
    box.ok("up", str(other))
    assert "kdeploy-patch" not in (box.launch("other") / "engine.log").read_text()
    assert "without patches" in box.ok("patch", "status", "other").stderr
    box.down("tiny")
    box.down("other")


def test_a_patch_that_raises_fails_the_launch_with_its_reason(box: Box) -> None:
    write_patch(box, "raises", "def apply():\n    raise ValueError('the registry has no such backend')\n")
    box.profile("tiny", "", {"patches": ["raises"]})
    result = box.run("up", "tiny")
    assert result.rc == 1
    assert "patch-refused" in result.stderr
    assert "the registry has no such backend" in result.stderr
    box.await_released()
    assert box.status()["diagnosis"]["cause"] == "patch-refused"
    assert not box.events("ready")


def test_an_engine_that_never_loads_the_patch_is_not_ready(box: Box) -> None:
    write_patch(box, "good", "def apply():\n    return 'done'\n")
    wrapper = box.root / "vllm"
    wrapper.write_text(f'#!/bin/sh\nexec env -u PYTHONPATH {FAKE_VLLM} "$@"\n')
    wrapper.chmod(0o755)
    box.profile("tiny", "", {"patches": ["good"], "engine.executable": str(wrapper)})
    result = box.run("up", "tiny")
    assert result.rc == 1
    assert "patch-unconfirmed" in result.stderr
    assert "VLLM::Worker_TP1" in result.stderr
    box.await_released()
    assert not box.events("ready")


def test_a_wrapper_that_stays_before_the_engine_is_not_asked(box: Box) -> None:
    write_patch(box, "good", "def apply():\n    return 'done'\n")
    wrapper = box.root / "vllm"
    wrapper.write_text(f'#!/bin/sh\n{FAKE_VLLM} "$@"\nexit $?\n')
    wrapper.chmod(0o755)
    status = box.up("tiny", "", {"patches": ["good"], "engine.executable": str(wrapper)})
    pids = {entry["pid"] for entry in status["patches"][0]["processes"]}
    assert {box.core(), *box.workers()} <= pids
    assert status["pid"] not in pids
    box.down()


def test_an_overlay_changes_a_private_copy_and_drift_is_refused(box: Box) -> None:
    package = install_engine(box)
    old = (package / "answer.py").read_text()
    change = {"module": "vllm.answer", "diff": "answer.diff", "bases": [hashlib.sha256(old.encode()).hexdigest()]}
    code = "def apply():\n    from vllm.answer import VALUE\n    return f'the answer is {VALUE}'\n"
    folder = write_patch(box, "answer", code, {"kind": "overlay", "overlay": [change]})
    (folder / "answer.diff").write_text(overlay(old, old.replace("41", "42")))
    keys = {"patches": ["answer"], "engine.executable": "fake"}
    status = box.up("tiny", "", keys)
    assert {entry["why"][-16:] for entry in status["patches"][0]["processes"]} == {"the answer is 42"}
    assert (package / "answer.py").read_text() == old
    assert [path.name for path in package.iterdir() if path.name != "__pycache__"].count("answer.py") == 1
    box.down()
    # a same-size edit within a second of the one before: another hash of the text, another folder, no stale byte code
    (folder / "answer.diff").write_text(overlay(old, old.replace("41", "43")))
    status = box.up("tiny", "", keys)
    assert {entry["why"][-16:] for entry in status["patches"][0]["processes"]} == {"the answer is 43"}
    box.down()
    (package / "answer.py").write_text(old.replace("VALUE = 41", "VALUE = 40"))
    result = box.run("up", "tiny")
    assert result.rc == 6
    assert "hunk 1 of" in result.stderr
    assert "wanted 'VALUE = 41'" in result.stderr
    row = next(
        row for row in box.ok("patch", "list", "--engine", "fake", "--json").json["patches"] if row["name"] == "answer"
    )
    assert row["state"] == "not-applicable"
    (package / "answer.py").write_text(old + "\n# newer\n")
    result = box.run("up", "tiny")
    assert result.rc == 6
    assert "was not made for this vllm.answer" in result.stderr


def test_list_and_check_hold_the_shipped_patches_against_an_engine(box: Box) -> None:
    install_engine(box)
    rows = {row["name"]: row for row in box.ok("patch", "list", "--engine", "fake", "--json").json["patches"]}
    assert {"cpu-metadata", "sm120-mla"} <= set(rows)
    assert rows["sm120-mla"]["state"] == "unverified"
    assert "not run on a GPU" in rows["sm120-mla"]["why"]
    assert "sm120-mla" in box.ok("patch", "list", "--engine", "fake").stdout
    assert box.ok("patch", "check", "--engine", "fake", "--json").json["ok"] is True
    write_patch(box, "old", "def apply(): pass\n", {"applies": {"vllm": "<0.24"}})
    box.profile("tiny", "", {"patches": ["old"], "engine.executable": "fake"})
    result = box.run("up", "tiny")
    assert result.rc == 6
    assert "made for vLLM <0.24, and this is 0.33.0" in result.stderr
    box.profile("tiny", "", {"patches": ["odl"], "engine.executable": "fake"})
    result = box.run("up", "tiny")
    assert result.rc == 2
    assert "did you mean old?" in result.stderr
