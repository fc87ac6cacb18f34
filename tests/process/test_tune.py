"""`kdeploy tune` with the fake engine: one candidate is faster, one answers garbage, one does not start."""

import json
import os
import signal
from typing import Any

import pytest

from tests.box import FAKES, LIMIT_S, Box, wait_until
from tests.gpu_box import GpuBox

FAKE = "max_life_s=240;device=cpu;watchdog_s=0.5;"
SLOW, FAST = "token_s=0.03", "token_s=0.001"  # so far apart that a busy machine cannot blur them
SHORT = ("--output-tokens", "16", "--input-tokens", "16", "--runs", "1")


def candidates(box: Box, **fakes: str) -> list[str]:
    """A file of candidates that set the fake engine's knobs."""
    document = {name.replace("_", "-"): {"env": {"FAKE_VLLM": FAKE + knobs}} for name, knobs in fakes.items()}
    path = box.root / "candidates.yaml"
    path.write_text(json.dumps({"schema": 1, "candidates": document}))
    only = [word for name in document for word in ("--only", name)]
    return ["--candidates", str(path), *only]


def records(box: Box, name: str = "tiny") -> list[dict[str, Any]]:
    """The journal of the newest tune."""
    journals = sorted((box.state / "tune" / name).glob("*-*/events.jsonl"))
    return [json.loads(line) for line in journals[-1].read_text().splitlines()] if journals else []


def kinds(box: Box) -> list[str]:
    return [record["kind"] for record in records(box)]


@pytest.mark.timeout(600)
def test_interrupted_it_goes_on_and_finds_the_faster_one(box: Box) -> None:
    before = box.up("tiny", SLOW)
    given = candidates(box, fast=FAST, garbles="garbage=1", dies="die_at=weights;die_log=oom")
    overlay = box.root / "overlay.yaml"
    words = ("tune", "tiny", *given, *SHORT, "--rounds", "5")
    with box.running(*words) as process:
        wait_until(lambda: "cell" in kinds(box) and box.engine("tiny-tune"), "the second launch")
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, told
    assert b"kdeploy tune tiny   goes on with it" in told
    assert not box.engine("tiny-tune")
    assert "brought-back" in kinds(box)
    box.ok("wait", "tiny")

    assert box.run("tune", "tiny", "--margin", "0.5").rc == 2, "with other settings it would be another tune"
    result = box.run(*words, "--write-overlay", str(overlay), "--json", timeout=4 * LIMIT_S)
    assert result.rc == 0, result
    assert "going on with the tune" in result.stderr
    assert "discarded" in kinds(box), "half a round is not paired with another hour"
    found = {one["name"]: one for one in result.json["candidates"]}
    assert result.json["verdict"]["decision"] == "change"
    assert result.json["verdict"]["candidate"] == "fast"
    assert found["fast"]["status"] == "better"
    assert found["fast"]["low"] > 0
    assert (found["garbles"]["status"], found["dies"]["status"]) == ("out", "out")
    assert "canary-failed" in found["garbles"]["reason"]
    assert "cuda-out-of-memory" in found["dies"]["reason"]
    # in turn; who is out is not launched again
    cells = [(record["round"], record["name"]) for record in records(box) if record["kind"] == "cell"]
    assert cells[0] == (1, "baseline"), "the one that was interrupted"
    rounds = len(cells) // 2
    assert rounds >= 3
    assert cells[1:] == [(number, name) for number in range(1, rounds + 1) for name in ("baseline", "fast")]
    assert kinds(box).count("out") == 2

    # what was up before is up again, as it was, and nothing else is left
    after = box.status("tiny")
    assert after["state"] == "ready"
    assert after["launch"] != before["launch"]
    assert json.loads((box.launch() / "plan.json").read_text())["env"]["FAKE_VLLM"].endswith(SLOW)
    assert [one["name"] for one in box.ok("ps", "--json").json["deployments"]] == ["tiny"]
    box.down("tiny")
    # the overlay is one that a host takes
    (box.root / "config/kdeploy/host.yaml").write_text(overlay.read_text())
    assert FAST in box.ok("render", "tiny", "--format", "env").stdout
    shown = box.ok("tune", "tiny", "--show")
    assert "verdict: fast is faster by" in shown.stdout
    assert "merge these keys into" in shown.stderr, "the host has an overlay by now, and no file is changed"


@pytest.mark.timeout(600)
def test_what_a_killed_tune_has_left_can_be_undone(box: Box) -> None:
    box.up("tiny", SLOW)
    with box.running("tune", "tiny", *candidates(box, fast=FAST), *SHORT) as process:
        wait_until(lambda: box.engine("tiny-tune"), "a try")
        assert box.run("tune", "tiny").rc == 4, "one at a time"
        process.kill()
        process.communicate()
    assert box.status("tiny")["state"] == "stopped"
    box.ok("tune", "tiny", "--undo")
    assert not box.engine("tiny-tune")
    assert box.status("tiny")["state"] == "ready"
    assert kinds(box)[-1] == "ended"
    assert "nothing to undo" in box.ok("tune", "tiny", "--undo").stderr
    box.down("tiny")


@pytest.mark.timeout(600)
def test_on_gpus_an_all_reduce_alone_says_who_is_launched(gpus: GpuBox) -> None:
    """Wrong sums are out, the slower one is no finalist, and the faster all-reduce is no proof: the model decides."""
    box = gpus.box
    # one program for both: the ranks of an all-reduce, and the engine
    both = box.root / "python-both"
    both.write_text(
        f'#!/bin/sh\nif [ -n "$KDEPLOY_COLLECTIVE" ]; then exec {FAKES}/python-ranks "$@"; fi\n'
        f'if [ "$1" = {box.root}/vllm ]; then shift; exec {FAKES}/vllm "$@"; fi\nexit 1\n'
    )
    vllm = box.root / "vllm"
    vllm.write_text(f"#!{both}\n")
    for program in (both, vllm):
        program.chmod(0o755)
    gpus.profile("tiny", 2, {"engine.executable": str(vllm), "env.NCCL_PROTO": "LL128"})
    names = ("nccl-proto-ll", "nccl-proto-simple", "nccl-algo-tree", "nccl-graph-xml")
    only = [word for name in names for word in ("--only", name)]
    # a margin beyond what a busy machine does to equal speeds
    result = box.run("tune", "tiny", *only, *SHORT, "--rounds", "3", "--margin", "0.45", "--json", timeout=4 * LIMIT_S)
    assert result.rc == 0, result
    found = {one["name"]: one for one in result.json["candidates"]}
    assert found["nccl-proto-ll"]["collective_gain"] == pytest.approx(1.0, abs=0.01)
    assert found["nccl-proto-simple"]["status"] == "no finalist"
    assert found["nccl-algo-tree"]["status"] == "out"
    assert "wrong values" in found["nccl-algo-tree"]["reason"]
    assert "eight ranks" in found["nccl-graph-xml"]["reason"]
    launched = {record["name"] for record in records(box) if record["kind"] == "cell"}
    assert launched == {"baseline", "nccl-proto-ll"}
    assert result.json["verdict"]["decision"] == "kept"
    assert json.loads(gpus.told.read_text())["env"]["NCCL_PROTO"] in ("LL", "LL128")
    assert gpus.leases() == {}
    assert box.ok("ps", "--json").json["deployments"] == []


def test_nothing_is_started_for_what_cannot_be(box: Box) -> None:
    box.profile("tiny")
    plan = box.ok("tune", "tiny", "--dry-run", "--json").json
    reasons = {one["name"]: one["reason"] for one in plan["candidates"]}
    assert reasons["nccl-proto-ll"] == "a CPU engine has no NCCL"
    assert reasons["async-scheduling-on"] is None
    assert plan["estimate"]["launch_s"] is None
    assert "has never been launched" in box.ok("tune", "tiny", "--dry-run").stdout
    bad = box.root / "bad.yaml"
    bad.write_text("schema: 1\ncandidates:\n  a: {args: {max-model-len: 4}}\n  b: {}\n  c: {evn: {X: 1}}\n")
    result = box.run("tune", "tiny", "--candidates", str(bad))
    assert result.rc == 2
    assert "bad.yaml:5" in result.stderr
    bad.write_text("schema: 1\ncandidates:\n  a: {args: {max-model-len: 4}}\n  b: {}\n")
    result = box.run("tune", "tiny", "--candidates", str(bad))
    assert result.rc == 2
    assert "bad.yaml:3" in result.stderr
    assert "bad.yaml:4" in result.stderr
    exists = box.root / "exists.yaml"
    exists.write_text("")
    for words, told in (
        (("--only", "nccl-proto-lll"), "did you mean nccl-proto-ll"),
        (("--only", "nccl-proto-ll"), "a CPU engine has no NCCL"),
        (("--write-overlay", str(exists)), "exists"),
        (("--budget", "soon"), "is no time"),
    ):
        result = box.run("tune", "tiny", *words)
        assert (result.rc, told in result.stderr) == (2, True), result
    assert box.run("tune", "tinny").rc == 2
    assert box.run("tune", "tiny", "--show").rc == 3
    assert not os.path.exists(box.state / "deployments" / "tiny-tune")


def test_a_budget_is_told_beforehand_and_refused_when_too_small(box: Box) -> None:
    box.up("tiny")
    box.down("tiny")
    told = box.ok("tune", "tiny", "--dry-run", "--budget", "2h").stdout
    assert "median of the last 1" in told
    assert "the budget is 2 h 0 min" in told
    result = box.run("tune", "tiny", "--budget", "1s")
    assert result.rc == 2
    assert "too small for one candidate" in result.stderr


@pytest.mark.timeout(600)
def test_a_baseline_that_does_not_work_ends_it(box: Box) -> None:
    box.profile("tiny", "garbage=1")
    given = candidates(box, fast=FAST)
    result = box.run("tune", "tiny", *given, *SHORT)
    assert result.rc == 1
    assert "does not work as it is" in result.stderr
    assert "canary-failed" in result.stderr
    assert box.ok("ps", "--json").json["deployments"] == []
