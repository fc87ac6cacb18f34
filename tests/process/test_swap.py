"""Swaps against the fake engine: whatever fails or is killed, one of the two serves in the end, or it is said."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.host.pagecache import drop, resident_share
from tests.box import Box, Result, alive, free_port, wait_until, write_checkpoint
from tests.gpu_box import GpuBox

DEAD_ON_LOAD = "die_at=weights;die_log=oom"
LONG = {"stop.drain_s": 100}


def swaps(box: Box) -> list[Path]:
    """The folders of all swaps, oldest first."""
    found = [path.parent for path in box.state.glob("swaps/*/order.json") if path.parent.suffix != ".new"]
    return sorted(found, key=lambda path: (path.name.partition("-")[0], int(path.name.partition("-")[2])))


def at(box: Box, place: str, number: int = 1) -> bool:
    """Whether swap `number` has come to `place`: a step, or another record of its journal."""
    return len(swaps(box)) >= number and any(
        place in (record["kind"], record.get("step")) for record in box.journal(folder=swaps(box)[number - 1])
    )


def loads(box: Box, name: str, launch: int = 1) -> bool:
    """Whether launch number `launch` of a deployment loads its weights."""
    found = box.launches(name)
    return len(found) >= launch and any(
        record.get("phase") == "weights" for record in box.journal(name, found[launch - 1])
    )


def runner(box: Box) -> int | None:
    """The process that carries a swap out."""
    found = [process.pid for process in box.processes() if process.title.endswith("-m deploy.swap")]
    return found[0] if found else None


def serving(box: Box) -> list[str]:
    """Names of the deployments that are ready."""
    return [entry["name"] for entry in box.ok("ps", "--json").json["deployments"] if entry["ready"]]


@contextlib.contextmanager
def streaming(box: Box, model: str, tokens: int) -> Iterator[dict[str, Any]]:
    """A completion under way, begun for certain; filled with what came of it after the block."""
    told: dict[str, Any] = {"words": 0, "done": False}
    begun = threading.Event()

    def ask() -> None:
        body = {"model": model, "prompt": "count", "max_tokens": tokens, "ignore_eos": True, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", box.port, timeout=120)
        try:
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
                for line in connection.getresponse():
                    told["done"] |= line.strip() == b"data: [DONE]"
                    told["words"] += b'"text"' in line
                    begun.set()
        finally:
            connection.close()
            begun.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    assert begun.wait(60)
    yield told
    thread.join(60)


def test_the_new_one_takes_the_port_once_the_last_stream_has_ended(box: Box) -> None:
    box.up("one", "token_s=0.02", {"stop.drain_s": 60})
    box.profile("two")
    steps = box.ok("swap", "two", "--dry-run", "--json").json
    assert [step["step"] for step in steps["steps"]] == ["stop-old", "start-new"]
    assert serving(box) == ["one"]
    with streaming(box, "one-model", 60) as told:
        document = box.ok("swap", "two", "--json").json
    assert told == {"words": 60, "done": True}
    assert (document["outcome"], document["exit_code"], document["from"], document["to"]) == (
        "committed",
        0,
        "one",
        "two",
    )
    assert [(entry["name"], entry["state"]) for entry in document["deployments"]] == [
        ("one", "stopped"),
        ("two", "ready"),
    ]
    assert "two-model" in box.request("GET", "/v1/models")[1]
    # what it took is what the next dry run says
    assert "never done before" not in box.ok("swap", "one", "--dry-run").stdout.partition("2.")[2]
    assert "two serves" in box.ok("swap").stderr
    box.down()


def test_the_new_ones_weights_are_read_while_the_old_one_serves(box: Box) -> None:
    box.up("one")
    larger = write_checkpoint(box.root / "models" / "larger", 4, 24 << 10)
    shards = sorted(larger.glob("*.safetensors"))
    for shard in shards:
        with open(shard, "rb") as file:
            os.fsync(file.fileno())
        drop(str(shard))
    box.profile("two", "", {"model.path": str(larger)})
    steps = box.ok("swap", "two", "--dry-run", "--json").json
    assert [step["step"] for step in steps["steps"]] == ["warm", "stop-old", "start-new"]
    said = box.ok("swap", "two").stderr
    assert "into memory while one serves" in said
    records = box.journal(folder=swaps(box)[0])
    warmed = next(record for record in records if record["kind"] == "warmed")
    assert (warmed["state"], warmed["present"]) == ("done", warmed["total"])
    stopping = next(record for record in records if record.get("step") == "stop-old")
    assert warmed["at"] <= stopping["at"]
    assert resident_share([(str(shard), shard.stat().st_size) for shard in shards]) == 1.0
    box.down("two")


def test_force_does_not_wait_for_requests(box: Box) -> None:
    box.up("one", "token_s=1", LONG)
    box.profile("two")
    with streaming(box, "one-model", 10_000) as told:
        box.ok("swap", "two", "--force")
    assert not told["done"]
    assert serving(box) == ["two"]
    box.down()


def test_other_gpus_and_another_port_leave_no_gap(gpus: GpuBox) -> None:
    box = gpus.box
    ports = [free_port(), free_port()]
    gpus.profile("one", 2, {"serve.port": ports[0]})
    gpus.profile("two", 2, {"serve.port": ports[1]})
    assert gpus.up("one").rc == 0
    gaps = asked = 0
    with box.running("swap", "two") as command:
        while command.poll() is None:
            asked += 1
            # whoever tries the old address, then the new one, is served
            gaps += not any(_listens(port) for port in ports)
    assert command.returncode == 0
    assert asked > 1
    assert gaps == 0
    assert serving(box) == ["two"]
    assert gpus.leases() == {2: "two", 3: "two"}
    # one that fails leaves the old one where it is
    before = box.api("two")
    gpus.profile("bad", 2, {"env.FAKE_VLLM": f"max_life_s=240;device=cuda;{DEAD_ON_LOAD}"})
    result = box.run("swap", "bad", "--json")
    assert (result.rc, result.json["outcome"], result.json["reason"]["cause"]) == (1, "untouched", "cuda-out-of-memory")
    assert "two serves as before; it was not stopped" in result.stderr
    assert box.api("two") == before
    assert gpus.leases() == {2: "two", 3: "two"}
    box.down()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_overlapping_gpus_are_handed_over(gpus: GpuBox) -> None:
    gpus.set("gpus 4", "charge_holders 90000", "release_after_s 1")
    gpus.profile("one", 2)
    gpus.profile("two", 4)
    assert gpus.up("one").rc == 0
    assert gpus.up("two").rc == 4
    gpus.box.ok("swap", "two")
    assert gpus.leases() == dict.fromkeys(range(4), "two")
    stopped = gpus.box.events("stopped", "one")[-1]["at"]
    assert stopped <= gpus.box.events("launch", "two")[0]["at"]
    gpus.box.down()


def test_a_new_one_that_fails_brings_the_old_one_back(box: Box) -> None:
    """From the plan it ran with: its profile has changed meanwhile, and would not start."""
    box.up("one", "token_s=0.003")
    plan = json.loads((box.launch("one") / "plan.json").read_text())
    box.profile("one", "die_at=init")
    for name, fake, cause in (("dies", DEAD_ON_LOAD, "cuda-out-of-memory"), ("babbles", "garbage=1", "canary-failed")):
        box.profile(name, fake)
        result = box.run("swap", name, "--json")
        assert result.rc == 7
        assert (result.json["outcome"], result.json["reason"]["cause"]) == ("rolled-back", cause)
        assert f"one serves again, from the plan it ran with; {name} does not run" in result.stderr
        assert serving(box) == ["one"]
        assert json.loads((box.launch("one") / "plan.json").read_text()) == plan
        assert "one-model" in box.request("GET", "/v1/models")[1]
    box.down("one")


def test_what_can_be_refused_is_refused_before_the_old_one_is_touched(box: Box) -> None:
    box.up("one")
    before = box.api("one")
    for keys, code in (
        ({"model.path": "/no/such/model"}, 6),
        ({"env.FAKE_KEY": "${env:NOT_SET_ANYWHERE}"}, 6),
        ({"serve.port": "many"}, 2),
    ):
        box.profile("two", "", keys)
        assert box.run("swap", "two", "--dry-run").rc == code
        assert box.run("swap", "two").rc == code
        assert serving(box) == ["one"]
    assert not (box.state / "deployments" / "two").exists()
    assert box.api("one") == before
    assert len(box.launches("one")) == 1
    box.down()


def test_nothing_to_replace(box: Box) -> None:
    box.profile("one")
    assert box.run("swap").rc == 2
    assert box.run("swap", "one").rc == 3
    assert box.run("swap", "one", "--from", "other").rc == 3
    box.ok("up", "one")
    assert "nothing to do" in box.ok("swap", "one").stderr
    box.profile("two", "", {"serve.port": free_port()})
    box.profile("three", "", {"serve.port": free_port()})
    box.ok("up", "two")
    result = box.run("swap", "three")
    assert result.rc == 2
    assert "--from" in result.stderr
    result = box.run("swap", "two")
    assert result.rc == 4
    assert "--name" in result.stderr
    box.ok("switch", "three", "--from", "two")
    assert serving(box) == ["one", "three"]
    box.down("--all")


def test_one_swap_at_a_time_and_others_keep_off(box: Box) -> None:
    box.up("one")
    box.profile("two", "load_s=60")
    box.profile("three")
    with box.running("swap", "two") as command:
        wait_until(lambda: loads(box, "two"), "two to load")
        for words in (["swap", "three"], ["up", "one"], ["restart", "two"], ["down", "two"], ["down", "--all"]):
            result = box.run(*words)
            assert result.rc == 4, (words, result)
            assert "a swap is under way: one -> two" in result.stderr
        # the same port: neither listens on it yet
        assert box.run("up", "three").rc == 4
        assert box.run("swap", "--timeout", "0.1").rc == 124
        # a second thought
        box.run("down", "--force", "two")
        assert command.wait(120) == 7
    assert serving(box) == ["one"]
    box.down("one")


def _killed(box: Box, new: str, place: str) -> Result:
    """A swap to `new` whose runner and command are killed at `place`; what the command that follows it then gives."""
    number, launch = len(swaps(box)) + 1, len(box.launches(new)) + 1
    with box.running("swap", new) as command:
        wait_until(lambda: loads(box, new, launch) if place == "loading" else at(box, place, number), place)
        command.kill()
        command.wait()
        pid = runner(box)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not alive(pid), "the runner to be gone")
    said = box.ok("ps").stderr  # any command has the swap go on
    assert place == "outcome" or "another one goes on" in said
    result = box.run("swap", "--json")
    assert not (box.state / "swaps" / "open").exists()
    return result


def test_a_runner_that_is_killed_on_the_way_to_the_new_one(box: Box) -> None:
    """kill -9 of it and of its command at each step."""
    old, new = "one", "two"
    box.profile("two", "load_s=0.5")
    box.up("one", "load_s=0.5")
    for place in ("begun", "stop-old", "start-new", "loading", "outcome"):
        result = _killed(box, new, place)
        assert (place, result.rc, result.json["outcome"]) == (place, 0, "committed")
        assert (place, serving(box)) == (place, [new])
        old, new = new, old
    box.down(old)


def test_a_runner_that_is_killed_on_the_way_back(box: Box) -> None:
    box.up("one")
    for number, place in enumerate(("doomed", "bring-back")):
        new = f"bad{number}"
        box.profile(new, DEAD_ON_LOAD)
        result = _killed(box, new, place)
        assert (place, result.rc, result.json["outcome"]) == (place, 7, "rolled-back")
        assert (place, serving(box)) == (place, ["one"])
    box.down("one")


def test_a_killed_command_changes_nothing(box: Box) -> None:
    box.up("one")
    box.profile("two", "load_s=0.5")
    with box.running("swap", "two") as command:
        wait_until(lambda: at(box, "stop-old"), "the swap to have begun")
        command.kill()
        command.wait()
    box.await_state("ready", "two")
    assert serving(box) == ["two"]
    wait_until(lambda: runner(box) is None, "the runner to end")
    box.down()


def test_that_nothing_serves_is_said(box: Box) -> None:
    """The old one's model vanishes while the new one fails."""
    model = box.root / "models" / "copy"
    shutil.copytree(box.model, model)
    box.up("one", "", {"model.path": str(model)})
    box.profile("two", f"load_s=1;{DEAD_ON_LOAD}")
    with box.running("swap", "two") as command:
        wait_until(lambda: loads(box, "two"), "two to load")
        shutil.rmtree(model)
        _, said = command.communicate(timeout=120)
    assert command.returncode == 1
    assert b"NOTHING SERVES" in said
    assert str(model).encode() in said
    assert b"-> kdeploy up two" in said
    assert serving(box) == []
    assert box.run("swap").rc == 1
    assert box.run("swap", "two").rc == 3
