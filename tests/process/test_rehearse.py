"""Rehearsals against the fake engine."""

from tests.box import Box, free_port


def test_a_rehearsal_comes_first_and_is_remembered(box: Box) -> None:
    """Random weights, another port, nothing left of it; the same again is not rehearsed twice, a change is."""
    box.profile("tiny", "", {"args.load-format": "safetensors"})
    result = box.ok("up", "tiny", "--rehearse")
    assert "rehearsal passed" in result.stderr
    assert "KV cache 1,234,560 tokens" in result.stderr
    assert "not covered: the weight files themselves" in result.stderr
    rehearsed, real = (box.events("ready", name)[0] for name in ("tiny.rehearsal", "tiny"))
    assert rehearsed["at"] < box.events("stopped", "tiny.rehearsal")[0]["at"] < real["at"]
    assert f":{box.port}" not in rehearsed["url"]
    assert box.status("tiny.rehearsal")["state"] == "stopped"
    assert not box.engine("tiny.rehearsal")
    box.down("tiny")
    assert "rehearsed already" in box.ok("up", "tiny", "--rehearse").stderr
    assert len(box.launches("tiny.rehearsal")) == 1
    # the next one fails where no weights are needed for it: what serves is not touched
    box.profile("next", "die_at=warmup;die_log=oom")
    before = box.api("tiny")
    result = box.run("swap", "next", "--rehearse")
    assert result.rc == 1
    assert "the rehearsal was not passed; nothing else was started" in result.stderr
    assert "cuda-out-of-memory" in result.stderr
    assert box.status("tiny")["ready"] is True
    assert box.api("tiny") == before
    assert not box.events("ready", "next.rehearsal")
    box.profile("next")
    assert "rehearsal passed" in box.ok("swap", "next", "--rehearse").stderr
    box.down("next")


def test_a_rehearsal_ends_by_itself_when_its_command_was_killed(box: Box) -> None:
    box.profile("tiny", "compile_s=0.5", {"serve.port": free_port()})
    with box.running("up", "tiny", "--rehearse") as command:
        box.await_phase("weights", "tiny.rehearsal")
        command.kill()
        command.wait()
    box.await_state("stopped", "tiny.rehearsal")
    assert box.events("ready", "tiny.rehearsal")
    box.await_released("tiny.rehearsal")
    assert not box.launches("tiny")
