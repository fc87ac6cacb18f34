"""Patches on engines that are not laid out as one expects, and what `patch check` and the canary make of a bad one."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tests.box import FAKE_VLLM, Box
from tests.process.test_canary import SPOILT, _canned
from tests.process.test_patches import install_engine, overlay, write_patch

FINDER = """
import sys
from importlib.machinery import ModuleSpec, PathFinder


class EditableFinder:
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return PathFinder.find_spec(fullname, [{source!r}]) if fullname == "vllm" else None


def install():
    sys.meta_path.append(EditableFinder)
"""
ANSWER = "# the answer\nVALUE = {}\n"
CODE = "def apply():\n    from vllm.answer import VALUE\n    return f'the answer is {VALUE}'\n"


def make_environment(box: Box, name: str, value: int, version: str, *, editable: bool = False) -> Path:
    """A virtual environment with `bin/vllm` and a `vllm` package of one module; the folder of that package."""
    home = box.root / name
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (site,) = (home / "lib").glob("python*/site-packages")
    source = home / "checkout" if editable else site
    (source / "vllm").mkdir(parents=True)
    (source / "vllm/__init__.py").write_text("")
    (source / "vllm/answer.py").write_text(ANSWER.format(value))
    (site / f"vllm-{version}.dist-info").mkdir()
    (site / f"vllm-{version}.dist-info/METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    if editable:
        (site / "__editable___vllm_finder.py").write_text(FINDER.format(source=str(source)))
        (site / "__editable__.vllm.pth").write_text("import __editable___vllm_finder as f; f.install()\n")
    program = home / "bin/vllm"
    program.write_text(f"#!{home}/bin/python\n{FAKE_VLLM.read_text().split(chr(10), 1)[1]}")
    program.chmod(0o755)
    return source / "vllm"


def write_overlay(box: Box, old: int, new: int) -> None:
    text = ANSWER.format(old)
    change = {"module": "vllm.answer", "diff": "a.diff", "bases": [hashlib.sha256(text.encode()).hexdigest()]}
    folder = write_patch(box, "answer", CODE, {"kind": "overlay", "overlay": [change]})
    (folder / "a.diff").write_text(overlay(text, ANSWER.format(new)))


def answers(box: Box) -> set[str]:
    """What the processes of `tiny` found, by its last words."""
    (row,) = box.status()["patches"]
    return {entry["why"].rpartition("; ")[2] for entry in row["processes"]}


def test_an_overlay_finds_the_module_of_an_editable_install(box: Box) -> None:
    package = make_environment(box, "dev", 41, "0.33.0.dev1+gabc", editable=True)
    write_overlay(box, 41, 42)
    keys = {"patches": ["answer"], "engine.executable": str(box.root / "dev/bin/vllm")}
    box.up("tiny", "", keys)
    assert answers(box) == {"the answer is 42"}
    assert (package / "answer.py").read_text() == ANSWER.format(41)
    # what such an install is for: the file is edited, and the patch was not made for that
    (package / "answer.py").write_text(ANSWER.format(50))
    box.down()
    result = box.run("up", "tiny")
    assert result.rc == 6
    assert f"{package}/answer.py:2: found  'VALUE = 50'" in result.stderr


def test_the_environment_of_the_vllm_on_path_is_patched_and_not_the_one_of_the_shell(box: Box) -> None:
    make_environment(box, "served", 41, "0.33.0")
    other = make_environment(box, "active", 7, "0.19.1")
    write_overlay(box, 41, 42)
    tools = box.root / "tools"
    tools.mkdir()
    (tools / "vllm").symlink_to(box.root / "served/bin/vllm")
    box.env |= {
        "PATH": f"{tools}:{box.env['PATH']}",
        "VIRTUAL_ENV": str(box.root / "active"),
        "PYTHONPATH": str(other.parent),
    }
    listed = box.ok("patch", "list", "--json").json
    assert listed["engine"]["version"] == "0.33.0"
    assert {row["name"]: row["state"] for row in listed["patches"]}["answer"] == "needed"
    box.up("tiny", "", {"patches": ["answer"], "engine.executable": "vllm"})
    assert answers(box) == {"the answer is 42"}
    box.down()
    (tools / "vllm").unlink()
    (tools / "vllm").symlink_to(box.root / "active/bin/vllm")
    result = box.run("up", "tiny")
    assert result.rc == 6
    assert f"{other}/answer.py:2: found  'VALUE = 7'" in result.stderr


def test_an_edit_of_the_same_size_and_time_is_loaded_and_no_stale_byte_code(box: Box) -> None:
    folder = write_patch(box, "good", "def apply():\n    return 'one'\n")
    code = folder / "good.py"
    box.up("tiny", "", {"patches": ["good"]})
    assert answers(box) == {"one"}
    before = code.stat()
    code.write_text("def apply():\n    return 'two'\n")
    os.utime(code, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (code.stat().st_size, code.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    # another launch of the same engine at the same time, with the patch as it is now
    other = box.profile("other", "", {"patches": ["good"], "serve.port": box.port + 1})
    box.ok("up", str(other))
    (row,) = box.status("other")["patches"]
    assert {entry["why"] for entry in row["processes"]} == {"two"}
    assert answers(box) == {"one"}
    box.down("tiny")
    box.down("other")


def test_check_ends_with_1_when_a_patch_of_a_built_in_profile_does_not_apply(box: Box) -> None:
    install_engine(box)
    fine = box.ok("patch", "check", "--engine", "fake", "--json").json
    assert {(row["profile"], row["name"]) for row in fine["patches"]} == {("glm5-nvfp4-dcp8", "sm120-mla")}
    # the owner's own one of that name comes before the shipped one
    write_patch(box, "sm120-mla", "def apply(): pass\n", {"applies": {"vllm": "<0.24"}})
    result = box.run("patch", "check", "--engine", "fake")
    assert result.rc == 1
    assert "made for vLLM <0.24, and this is 0.33.0" in result.stdout
    assert box.run("patch", "check", "--engine", "fake", "--json").json["ok"] is False


def test_a_patch_that_needs_the_canary_is_not_launched_without_and_its_failure_names_the_patch(box: Box) -> None:
    write_patch(box, "kernels", "def apply():\n    return 'in place'\n", {"needs_canary": True})
    for keys in ({"canary.enabled": False}, {"canary.coherence": False}):
        box.profile("tiny", "", {"patches": ["kernels"], **keys})
        result = box.run("up", "tiny")
        assert result.rc == 2
        assert "the patch kernels is not launched without the canary" in result.stderr
    box.profile("tiny", f"answers={_canned(box, None, SPOILT)}", {"patches": ["kernels"]})
    result = box.run("up", "tiny")
    assert result.rc == 1
    assert "this launch has the patch kernels" in result.stderr
    box.await_released()
    assert box.status()["diagnosis"]["cause"] == "canary-failed"
