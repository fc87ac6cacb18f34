"""What is kept of earlier loads."""

from pathlib import Path

import pytest

from deploy.store import history, load_memory

ENGINE = {"name": "vllm", "version": "0.33.0"}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDEPLOY_STATE_DIR", str(tmp_path / "state"))


def test_the_port_makes_no_other_fingerprint_and_everything_else_does() -> None:
    def key(argv: list[str], version: str = "0.33.0") -> str:
        return history.fingerprint("/m", {"name": "vllm", "version": version}, argv, 8)

    assert key(["vllm", "--port", "1", "--x", "1"]) == key(["vllm", "--port", "2", "--x", "1"])
    assert key(["vllm", "--x", "1"]) != key(["vllm", "--x", "2"])
    assert key(["vllm"]) != key(["vllm"], "0.34.0")


def test_durations_are_learned_as_medians_and_a_cut_line_is_passed_over(tmp_path: Path) -> None:
    key = history.fingerprint("/m", ENGINE, [], 8)
    assert history.learned(history.entries(key)) == {}
    for seconds in (900.0, 10.0, 20.0, 30.0):
        history.add(key, {"phases": {"graphs": seconds}})
    with open(tmp_path / "state" / "history" / f"{key}.jsonl", "a") as file:
        file.write('{"phases": {"gra')
    assert history.learned(history.entries(key)) == {"graphs": 25.0}


def test_disks_crashes_and_rates_are_remembered() -> None:
    assert load_memory.disk_rate("8:1") is None
    load_memory.note_disk_rate("8:1", 5e9)
    load_memory.note_crash("/m", "instanttensor")
    load_memory.note_rate("/m", "auto", 2e9)
    assert load_memory.disk_rate("8:1") == 5e9
    assert load_memory.crashed("/m") == ("instanttensor",)
    assert load_memory.rates("/m") == {"auto": 2e9}
    assert load_memory.crashed("/other") == ()
