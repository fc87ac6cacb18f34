"""A load that is read ahead, followed and judged from outside, with the fake engine."""

import contextlib
import json
import os
from pathlib import Path

import pytest

from deploy.host.pagecache import drop, resident_share
from deploy.plan.launch_plan import loads
from deploy.store import load_memory
from deploy.supervise.loading import Loading
from tests.box import Box, wait_until, write_checkpoint

MIB = 1024  # KiB


def checkpoint(box: Box, shards: int = 4, mib: int = 24) -> Path:
    """A checkpoint that is large enough to be read ahead, not in memory."""
    folder = write_checkpoint(box.root / "models" / "larger", shards, mib * MIB)
    for path in folder.glob("*.safetensors"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        drop(str(path))
    return folder


def share(folder: Path) -> float:
    return resident_share([(str(path), path.stat().st_size) for path in folder.glob("*.safetensors")])


def test_warm_reads_what_is_not_there_and_only_that(box: Box) -> None:
    folder = checkpoint(box)
    box.profile("tiny", "", {"model.path": str(folder)})
    assert share(folder) < 0.5
    first = box.ok("warm", "tiny", "--json").json
    assert (first["state"], first["present"]) == ("done", first["total"])
    assert first["read"] > 0.5 * first["total"]
    assert share(folder) == 1.0
    again = box.ok("warm", "tiny", "--json").json
    assert (again["state"], again["read"]) == ("resident", 0)
    assert "in memory already" in box.ok("warm", "tiny").stdout
    assert not (box.state / "deployments").exists()


def test_warm_tells_what_is_wrong_with_a_checkpoint(box: Box) -> None:
    folder = checkpoint(box)
    box.profile("tiny", "", {"model.path": str(folder)})
    shards = sorted(folder.glob("*.safetensors"))
    with open(shards[2], "r+b") as file:
        file.truncate(1000)
    shards[1].unlink()
    shards[0].write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    result = box.run("warm", "tiny")
    assert result.rc == 6
    for words in ("3 of 4 weight files", "a git-lfs pointer", "No such file", "truncated"):
        assert words in result.stderr
    assert box.run("warm", "tiny", "--set", "model.path=/nowhere").rc == 6


def test_a_start_is_read_ahead_and_followed_through_symbolic_links(box: Box) -> None:
    """As the hub's cache has it: a folder of links to blobs whose names say nothing."""
    real = checkpoint(box)
    farm, blobs = box.root / "models" / "farm", box.root / "models" / "blobs"
    farm.mkdir()
    blobs.mkdir()
    for number, path in enumerate(sorted(real.iterdir())):
        blob = blobs / f"{number:064x}"
        path.rename(blob)
        (farm / path.name).symlink_to(blob)
    box.start("tiny", "load_s=4;init_s=2", {"model.path": str(farm)})
    box.await_state("ready")
    records = box.events("prewarm")
    assert records[0]["state"] == "started"
    assert records[-1]["state"] == "done"
    assert records[-1]["present"] == records[-1]["total"]
    progress = box.events("progress")
    read, loaded = [one["bytes_read"] for one in progress], [one["bytes_done"] for one in progress]
    assert read == sorted(read)
    assert loaded == sorted(loaded)
    # all was in memory before the first shard was consumed
    assert any(one["bytes_read"] == one["bytes_total"] and one["bytes_done"] == 0 for one in progress)
    assert "maps" in {one["source"] for one in progress}
    load = box.status()["load"]
    assert load["bytes_done"] == load["bytes_read"] == load["bytes_total"]
    assert "weights" in box.ok("status").stdout
    box.down()


def test_off_means_off_and_the_next_start_knows_how_long_it_takes(box: Box) -> None:
    keys = {"model.path": str(checkpoint(box)), "load.prewarm": "off"}
    box.up("tiny", "load_s=2", keys)
    assert not box.events("prewarm")
    assert box.events("load-remembered")[0]["phases"].keys() >= {"spawn", "init", "weights", "canary"}
    box.down()
    box.start("tiny", "load_s=3", keys)
    box.await_state("ready")
    assert any(one["eta_ready_s"] is not None for one in box.events("progress"))
    box.down()


def test_a_prewarmer_that_is_killed_costs_nothing(box: Box) -> None:
    box.start("tiny", "init_s=1;load_s=2", {"model.path": str(checkpoint(box, mib=64))})
    pid = box.await_event("prewarm")["pid"]
    with contextlib.suppress(ProcessLookupError):  # it may be done already
        os.kill(pid, 9)
    box.await_state("ready")
    assert not box.events("process-ended")
    box.down()


def test_a_rank_that_waits_for_a_file_is_stalled_and_named(box: Box) -> None:
    """A checkpoint behind a pipe that nobody fills: the process sleeps in the kernel for ever."""
    folder = checkpoint(box)
    box.profile("tiny", "read=read", {"model.path": str(folder), "load.stall_s": 3, "stop.term_s": 3})
    victim = sorted(folder.glob("*.safetensors"))[2]

    box.ok("up", "tiny", "--detach", "--set", "env.FAKE_VLLM=max_life_s=240;device=cpu;read=read;init_s=2")
    box.await_phase("init")
    victim.unlink()
    os.mkfifo(victim)
    box.await_state("failed")
    diagnosis = box.status()["diagnosis"]
    assert diagnosis["cause"] == "stalled"
    assert "phase weights" in diagnosis["summary"]
    assert "VLLM::Worker" in diagnosis["summary"]
    texts = [entry["text"] for entry in diagnosis["evidence"]]
    assert any("VLLM::Worker_TP0" in text and "state" in text for text in texts)
    # the evidence was written before the end was begun
    kinds = [record["kind"] for record in box.journal()]
    assert kinds.index("stall-evidence") < kinds.index("failed") < kinds.index("signal")
    box.await_released()
    wait_until(lambda: not box.engine(), "the stalled engine to be gone")


def test_a_crash_of_the_loader_that_was_chosen_is_answered_with_the_other_one(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan of a GPU launch, started here on the CPU: what counts is the way back in it."""
    box.profile("tiny", "", {"model.path": str(checkpoint(box))})
    plan = json.loads(box.ok("render", "tiny", "--format", "json").stdout)
    plan["load"] |= {"strategy": "instanttensor", "fallback_argv": plan["argv"]}
    plan["argv"] = [*plan["argv"], "--load-format", "instanttensor"]
    monkeypatch.setenv("KDEPLOY_STATE_DIR", str(box.state))
    loading = Loading(loads(json.dumps(plan)), 600.0)
    assert loading.way_back("weights", ["ValueError: something else"]) is None
    assert loading.way_back("graphs", ["cudaHostRegister failed"]) is None
    again = loading.way_back("weights", ["RuntimeError: cudaHostRegister failed: invalid argument"])
    assert again is not None
    assert "--load-format" not in again.argv
    assert load_memory.crashed(plan["load"]["folder"]) == ("instanttensor",)
    assert again.load["strategy"] == "auto"
    assert "fallback_argv" not in again.load
