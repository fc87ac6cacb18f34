"""`kdeploy explain`: the same answer for a file, for standard input, and for a deployment as `status` gives."""

import gzip
import json
import subprocess
from pathlib import Path

from tests.box import KDEPLOY, Box

LOG = Path(__file__).parents[1] / "logs" / "real-0.32.0-cpu-no-kv-memory.log"


def test_a_file_a_packed_file_and_standard_input_give_the_same_diagnosis(box: Box) -> None:
    found = box.ok("explain", str(LOG), "--json").json
    assert found["cause"] == "kv-cache-too-small"
    assert found["fix"][0] == "--set serve.max_model_len=432"
    (evidence,) = found["evidence"]
    assert "max seq len (1024)" in LOG.read_bytes().decode().split("\n")[evidence["line"] - 1]
    assert "max seq len (1024)" in evidence["text"]
    packed = box.root / "engine.log.gz"
    packed.write_bytes(gzip.compress(LOG.read_bytes()))
    assert box.ok("explain", str(packed), "--json").json == found
    piped = subprocess.run(
        [KDEPLOY, "explain", "-", "--json"],
        env=box.environment(),
        input=LOG.read_bytes(),
        capture_output=True,
        check=True,
    )
    assert json.loads(piped.stdout) == found


def test_a_log_without_a_failure_has_none(box: Box) -> None:
    healthy = LOG.with_name("real-0.32.0-cpu-tp2-ready.log")
    assert box.ok("explain", str(healthy), "--json").json["cause"] is None
    assert "nothing in this log" in box.ok("explain", str(healthy)).stdout


def test_a_file_that_is_not_there_is_an_error_of_three_parts(box: Box) -> None:
    result = box.run("explain", "./no.log")
    assert result.rc == 6
    assert "no such file" in result.stderr
    assert "->" in result.stderr


def test_up_status_and_explain_say_the_same(box: Box) -> None:
    box.profile("tiny", "die_at=weights;die_log=oom")
    up = box.run("up", "tiny")
    assert up.rc == 1
    status = box.status()["diagnosis"]
    assert status["cause"] == "cuda-out-of-memory"
    assert status["summary"] in up.stderr
    assert box.ok("explain", "tiny", "--json").json == status
    (launch,) = box.launches()
    assert box.ok("explain", str(launch / "engine.log"), "--json").json["cause"] == "cuda-out-of-memory"
