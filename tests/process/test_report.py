"""`report`, `clean` and `up --retry-with-fix`: what somebody does after a failure."""

import os
import signal
import tarfile
from pathlib import Path

from tests.box import Box, alive, wait_until


def test_the_bundle_holds_what_helps_and_no_secret(box: Box) -> None:
    box.profile(
        "tiny", "die_at=weights;die_log=nccl", {"env.HF_TOKEN": "${env:MY_TOKEN}", "args.api-key": "k-12345678"}
    )
    env = {"MY_TOKEN": "sesame-open-123"}
    assert box.run("up", "tiny", env=env).rc == 1
    with box.launch().joinpath("engine.log").open("a") as log:
        log.write(f"Received request: prompt: 'my own words', params; {env['MY_TOKEN']} in {box.root}/home/x\n")
    target = box.root / "bundle.tar.gz"
    result = box.run("report", "tiny", "-o", str(target), "--json", env=env)
    assert result.rc == 0
    assert result.json["file"] == str(target)
    with tarfile.open(target) as bundle:
        texts = {entry.name.partition("/")[2]: bundle.extractfile(entry).read().decode() for entry in bundle}  # type: ignore[union-attr]
    assert {"plan.json", "events.jsonl", "engine.log", "status.json", "doctor.json", "versions.json"} <= set(texts)
    assert "NCCL error: unhandled system error" in texts["engine.log"]
    assert "nccl-failed" in texts["status.json"]
    for text in texts.values():
        for secret in ("sesame-open-123", "k-12345678", "my own words", f"{box.root}/home"):
            assert secret not in text
    assert oct(target.stat().st_mode & 0o777) == "0o600"
    shown = box.run("report", "tiny", "--stdout", env=env)
    assert "==> plan.json <==" in shown.stdout
    assert "sesame-open-123" not in shown.stdout


def test_a_bundle_that_cannot_be_written_is_said(box: Box) -> None:
    box.profile("tiny", "die_at=weights")
    box.run("up", "tiny")
    result = box.run("report", "tiny", "-o", "/nowhere/at/all.tar.gz")
    assert result.rc == 6
    assert "cannot write /nowhere/at/all.tar.gz" in result.stderr
    assert box.run("report", "none").rc == 3


def test_a_failure_that_one_setting_mends_is_mended_once(box: Box) -> None:
    box.profile("tiny", "die_at=compile;die_log=kv")
    result = box.run("up", "tiny", "--retry-with-fix", "--json")
    assert result.rc == 0
    assert result.json["state"] == "ready"
    assert "--set serve.max_model_len=88064" in result.stderr
    assert len(box.launches()) == 2
    box.down("tiny")


def test_what_no_setting_mends_is_not_started_again(box: Box) -> None:
    box.profile("tiny", "die_at=weights;die_log=nccl", {"restart.policy": "never"})
    result = box.run("up", "tiny", "--retry-with-fix")
    assert result.rc == 1
    assert "no one setting is known to mend this" in result.stderr
    assert len(box.launches()) == 1


def test_clean_removes_what_a_launch_left_whose_supervisor_and_engine_were_killed(box: Box) -> None:
    box.up("tiny", "shm=leak")
    (recorded,) = [event["files"] for event in box.events("files")][-1:]
    shared = [Path(path) for path in recorded if path.startswith("/dev/shm/")]
    assert shared
    pids = [*[process.pid for process in box.engine()], box.supervisor()]
    os.kill(pids[-1], signal.SIGKILL)
    for pid in pids[:-1]:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(alive(pid) for pid in pids), "the end of everything")
    assert any(path.exists() for path in shared)
    would = box.ok("clean", "--dry-run", "--json").json
    assert [entry["name"] for entry in would["deployments"]] == ["tiny"]
    assert any(path.exists() for path in shared)
    there = {str(path) for path in shared if path.exists()}
    found = box.ok("clean", "--json").json
    assert [entry["name"] for entry in found["deployments"]] == ["tiny"]
    assert there <= set(found["deployments"][0]["files"])
    assert not any(path.exists() for path in shared)
    assert "nothing to clean" in box.ok("clean").stdout


def test_clean_keeps_the_newest_launches_and_whatever_runs(box: Box) -> None:
    box.up("tiny")
    for _ in range(2):
        box.ok("restart", "tiny")
    before = box.launches()
    assert len(before) == 3
    assert box.ok("clean", "--keep", "2", "--json").json["launches"] == []
    assert box.status()["ready"]
    box.down("tiny")
    removed = box.ok("clean", "--keep", "2", "--json").json["launches"]
    assert [entry["launch"] for entry in removed] == [before[0].name]
    assert box.launches() == before[1:]
