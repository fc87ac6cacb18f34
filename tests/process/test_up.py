"""From a profile to an answered request and back to nothing: the main path, and what `up` says in between."""

import json
import subprocess

from tests.box import KDEPLOY, LOAD_KEYS, STATUS_KEYS, Box


def test_up_serves_and_down_leaves_nothing(box: Box) -> None:
    status = box.up()
    assert status["state"] == "ready"
    assert status["ready"] is True
    code, body = box.chat("What is 2 + 2?")
    assert code == 200
    assert json.loads(body)["choices"][0]["message"]["content"] == "4"
    result = box.down("tiny")
    assert "is down" in result.stderr
    assert not box.processes()
    assert box.status()["state"] == "stopped"


def test_status_object_has_every_key_of_the_contract(box: Box) -> None:
    box.up()
    status = box.status()
    assert set(status) >= STATUS_KEYS
    assert set(status["load"]) >= LOAD_KEYS
    assert status["schema"] == 1
    assert status["name"] == status["profile"] == "tiny"
    assert status["launch"] == box.launch().name
    assert (status["state"], status["phase"], status["ready"]) == ("ready", None, True)
    assert status["url"] == f"http://127.0.0.1:{box.port}"
    assert status["model"] == "tiny-model"
    assert status["supervisor_pid"] == box.supervisor()
    assert status["pid"] == box.api()
    assert status["gpus"] == []
    assert status["load"]["shards_total"] == status["load"]["shards_done"] == 4
    assert status["load"]["bytes_total"] == status["load"]["bytes_done"] > 4 * 16 * 1024
    assert status["phases"][0]["phase"] == "spawn"
    assert {"weights", "canary"} <= {entry["phase"] for entry in status["phases"]}
    assert all(isinstance(entry["seconds"], float) for entry in status["phases"])
    assert (status["restarts"], status["exit"], status["diagnosis"]) == (0, None, None)
    assert box.ok("ps", "--json").json == {"schema": 1, "deployments": [status]}
    # with one deployment, no name is needed
    assert box.ok("status", "--json").json == status
    assert "tiny-model" in box.ok("ps").stdout
    assert "ready" in box.ok("status").stdout
    box.down()


def test_status_while_loading(box: Box) -> None:
    box.start("tiny", "load_s=60")
    box.await_phase("weights")
    status = box.status()
    assert set(status) >= STATUS_KEYS
    assert (status["state"], status["phase"], status["ready"], status["ready_at"]) == (
        "starting",
        "weights",
        False,
        None,
    )
    assert status["phases"][-1]["seconds"] is None
    assert "weights" in box.ok("ps").stdout
    box.down("tiny")


def test_up_json_is_one_document(box: Box) -> None:
    box.profile()
    result = box.ok("up", "tiny", "--json")
    assert result.json["state"] == "ready"
    assert "weights" in result.stderr
    box.down("--json")


def test_ready_twice_is_a_no_op(box: Box) -> None:
    first = box.up()
    again = box.run("up", "tiny", "--json")
    assert again.rc == 0
    assert again.json["pid"] == first["pid"]
    assert "already ready" in again.stderr
    assert len(box.launches()) == 1
    box.down("tiny")


def test_up_after_down_is_a_launch_of_its_own(box: Box) -> None:
    box.up()
    box.down("tiny")
    log = (box.launch() / "engine.log").read_bytes()
    box.ok("up", "tiny")
    assert len(box.launches()) == 2
    assert (box.launches()[0] / "engine.log").read_bytes() == log
    assert box.ok("logs", "tiny", "--previous").stdout.encode() == log
    box.down("tiny")


def test_second_up_while_loading_is_refused_with_who_and_since(box: Box) -> None:
    box.start("tiny", "hang_at=weights")
    second = box.run("up", "tiny")
    assert second.rc == 4
    assert f"supervisor pid {box.supervisor()} since 20" in second.stderr
    assert "kdeploy wait tiny" in second.stderr
    assert len(box.launches()) == 1
    box.down("tiny")


def test_eight_racing_ups_start_one_engine(box: Box) -> None:
    box.profile()
    racing = [
        subprocess.Popen(
            [KDEPLOY, "up", "tiny"],
            env=box.environment(),
            cwd=box.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for _ in range(8)
    ]
    told = [process.communicate()[1].decode() for process in racing]
    codes = [process.returncode for process in racing]
    assert 0 in codes, told
    assert set(codes) <= {0, 4}, told
    assert len(box.launches()) == 1
    assert len([process for process in box.engine() if process.title == "VLLM::EngineCore"]) == 1
    box.down("tiny")


def test_detach_returns_while_it_loads(box: Box) -> None:
    box.profile("tiny", "hang_at=weights")
    result = box.ok("up", "tiny", "--detach", "--json")
    assert result.json["state"] == "starting"
    assert "kdeploy wait tiny" in result.stderr
    box.down("tiny")


def test_timeout_leaves_it_loading(box: Box) -> None:
    box.profile("tiny", "hang_at=weights")
    result = box.run("up", "tiny", "--timeout", "0.5")
    assert result.rc == 124
    assert "goes on loading" in result.stderr
    assert box.status()["state"] == "starting"
    box.down("tiny")


def test_name_set_and_extra_reach_the_engine(box: Box) -> None:
    box.profile()
    box.ok("up", "tiny", "--name", "other", "--set", "args.max-num-seqs=7", "--", "--seed", "5")
    plan = json.loads((box.launch("other") / "plan.json").read_text())
    assert plan["argv"][-2:] == ["--seed", "5"]
    assert "--max-num-seqs" in plan["argv"]
    assert box.status("other")["profile"] == "tiny"
    assert box.run("status", "tiny").rc == 3
    box.down("other")


def test_dry_run_starts_nothing(box: Box) -> None:
    box.profile()
    result = box.ok("up", "tiny", "--dry-run")
    assert result.json["name"] == "tiny"
    assert not box.state.exists()


def test_state_is_private(box: Box) -> None:
    box.up()
    for path in [box.state, *box.state.rglob("*")]:
        mode = path.stat().st_mode & 0o777
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path}: {mode:o}"
    box.down("tiny")


def test_wait(box: Box) -> None:
    assert box.run("wait", "tiny").rc == 3
    box.start("tiny", "load_s=0.5")
    ready = box.run("wait", "tiny", "--json")
    assert ready.rc == 0
    assert ready.json["state"] == "ready"
    box.down("tiny")
    assert box.run("wait", "tiny").rc == 3

    box.start("bad", "die_at=weights;die_log=oom")
    failed = box.run("wait", "bad", "--json")
    assert failed.rc == 1
    assert failed.json["diagnosis"]["cause"] == "cuda-out-of-memory"

    box.start("slow", "hang_at=weights")
    assert box.run("wait", "slow", "--timeout", "0.3").rc == 124
    assert box.status("slow")["state"] == "starting"
    box.down("slow")


def test_unknown_names_are_exit_3_with_the_nearest(box: Box) -> None:
    box.up("kimi")
    for verb in ("status", "logs", "down", "wait", "restart"):
        result = box.run(verb, "kimmi")
        assert result.rc == 3, verb
        assert "did you mean kimi?" in result.stderr
    box.down("kimi")


def test_aliases(box: Box) -> None:
    box.profile()
    box.ok("start", "tiny")
    assert "tiny" in box.ok("list").stdout
    box.ok("stop", "tiny")


def test_logs(box: Box) -> None:
    box.up()
    log = (box.launch() / "engine.log").read_bytes()
    whole = box.ok("logs", "tiny").stdout.encode()
    assert whole[: len(log)] == log
    tail = box.ok("logs", "tiny", "--tail", "2").stdout
    assert len(tail.splitlines()) == 2
    lines = [json.loads(line) for line in box.ok("logs", "tiny", "--tail", "3", "--json").stdout.splitlines()]
    assert [set(line) for line in lines] == [{"line", "text"}] * 3
    events = [json.loads(line) for line in box.ok("logs", "--events", "--json").stdout.splitlines()]
    assert [event["kind"] for event in events][:3] == ["launch", "spawning", "spawned"]
    assert events[-1]["kind"] == "ready"
    assert all(event["at"].endswith("Z") for event in events)
    assert box.run("logs", "tiny", "--previous").rc == 3
    box.down("tiny")
    # a bar that is redrawn is one line, a line across blocks stays whole, and the last one may lack its end
    bar = "".join(f"\rLoading {n:>3} %" for n in range(101))
    (box.launch() / "engine.log").write_text("\n".join([bar, *(f"{n:>4} " + "x" * 700 for n in range(500)), "cut"]))
    lines = [json.loads(line) for line in box.ok("logs", "tiny", "--json").stdout.splitlines()]
    assert [line["line"] for line in lines] == list(range(1, 503))
    assert lines[0]["text"] == "Loading 100 %"
    assert {len(line["text"].split()[-1]) for line in lines[1:-1]} == {700}
    assert lines[-1]["text"] == "cut"


def test_logs_follow_ends_with_the_deployment(box: Box) -> None:
    box.up()
    with box.running("logs", "-f", "tiny") as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline()
        box.down("tiny")
        rest = follower.stdout.read()
        assert follower.wait() == 0
    assert rest.endswith((box.launch() / "engine.log").read_bytes()[-40:])


def test_restart_is_one_operation_with_the_same_plan(box: Box) -> None:
    before = box.up()
    result = box.ok("restart", "tiny", "--json")
    assert result.json["state"] == "ready"
    assert result.json["pid"] != before["pid"]
    assert result.json["supervisor_pid"] == before["supervisor_pid"]
    first, second = ((path / "plan.json").read_text() for path in box.launches())
    assert first == second
    # of a stopped one, too
    box.down("tiny")
    assert box.ok("restart", "tiny", "--json").json["state"] == "ready"
    assert len(box.launches()) == 3
    box.down("tiny")


def test_a_model_behind_an_api_key(box: Box) -> None:
    box.profile("tiny", "", {"env.VLLM_API_KEY": "${env:SECRET_KEY}"})
    result = box.run("up", "tiny", "--json", env={"SECRET_KEY": "sesame-5"})
    assert result.rc == 0, result
    assert box.status()["state"] == "ready"
    for path in box.state.rglob("*"):
        assert not path.is_file() or b"sesame-5" not in path.read_bytes(), path
    box.down("tiny")
