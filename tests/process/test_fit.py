"""`kdeploy fit`, as it is called."""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.box import Box

ROOT = Path(__file__).resolve().parents[2]
LOG = ROOT / "tests/logs/real-0.32.0-cpu-tp2-ready.log"
KEYS = {
    *("schema", "profile", "fits", "gpu", "weights_gib", "kv_bytes_per_token", "kv_gib", "kv_tokens", "max_model_len"),
    *("longest_context", "concurrency", "notes"),
}
GPUS = {"hardware.gpus": 2, "hardware.memory_gib": 95}


def tiny(box: Box) -> Path:
    """The demo checkpoint."""
    folder = box.root / "tiny-moe"
    script = ROOT / "scripts/make-tiny-checkpoint"
    subprocess.run([sys.executable, script, folder], check=True, capture_output=True)
    return folder


def recorded_tokens() -> int:
    """What the real engine said about this model and 1 GiB a rank."""
    found = re.search(r"KV cache size: ([\d,]+) tokens", LOG.read_text())
    assert found is not None
    return int(found[1].replace(",", ""))


def test_the_demo_is_counted_as_the_engine_counts_it(box: Box) -> None:
    keys = {"model.path": str(tiny(box)), "serve.max_model_len": 1024, "env.VLLM_CPU_KVCACHE_SPACE": "1"}
    box.profile("tiny", "", keys)
    fit = box.ok("fit", "tiny", "--json").json
    assert fit.keys() >= KEYS
    assert fit["fits"] is True
    assert fit["kv_tokens"] == recorded_tokens()
    assert fit["concurrency"] == 227.55
    assert fit["weights_exact"] is True
    text = box.ok("fit", "tiny").stdout
    assert text.startswith("tiny: fits\n")
    assert f"{recorded_tokens():,}" in text


def test_a_context_that_cannot_fit_is_exit_5(box: Box) -> None:
    keys = {"model.path": str(tiny(box)), "serve.max_model_len": 300_000, "env.VLLM_CPU_KVCACHE_SPACE": "1"}
    box.profile("tiny", "", keys)
    result = box.run("fit", "tiny", "--json")
    assert result.rc == 5
    assert result.json["fits"] is False
    assert any("300,000" in note for note in result.json["notes"])
    assert box.run("fit", "tiny", "--set", "serve.max_model_len=4096").rc == 0


def test_without_the_size_of_the_cache_there_is_no_verdict(box: Box) -> None:
    box.profile("tiny", "", {"model.path": str(tiny(box))})
    fit = box.ok("fit", "tiny", "--json").json
    assert (fit["fits"], fit["kv_tokens"]) == (None, None)
    assert any("VLLM_CPU_KVCACHE_SPACE" in note for note in fit["notes"])


def test_a_model_that_nobody_knows(box: Box) -> None:
    box.profile("tiny", "", GPUS)
    fit = box.ok("fit", "tiny", "--json").json
    assert fit["fits"] is None
    assert any(note.startswith("missing") for note in fit["notes"])


def test_a_shipped_profile_without_its_checkpoint(box: Box) -> None:
    fit = box.ok("fit", "minimax-fp8", "--json").json
    assert fit["fits"] is True
    assert abs(fit["weights_gib"] / 53.75 - 1) < 0.03
    assert fit["weights_exact"] is False
    assert fit["gpu"]["memory_gib"] == 95
    refused = box.run("fit", "minimax-fp8", "--set", "parallel.tensor=2")
    assert refused.rc == 5
    assert "does not fit" in refused.stdout
    assert "parallel.tensor 4" in refused.stderr


def test_a_checkpoint_for_gpus_that_are_too_small(box: Box) -> None:
    keys = {**GPUS, "model.path": str(tiny(box)), "serve.max_model_len": 4096, "hardware.memory_gib": 0.02}
    box.profile("tiny", "", keys)
    assert box.run("fit", "tiny").rc == 5
    assert box.ok("fit", "tiny", "--set", "hardware.memory_gib=95", "--json").json["fits"] is True


def test_damaged_configs_are_told_and_never_a_crash(box: Box) -> None:
    box.profile("tiny", "", GPUS)
    for text in ("", "[]", "{", json.dumps({"num_hidden_layers": -1, "num_attention_heads": "x"}), "\x00"):
        (box.model / "config.json").write_text(text)
        result = box.run("fit", "tiny", "--json")
        assert result.rc == 0, result
        assert result.json["fits"] is None


def test_shapes_are_told_too(box: Box) -> None:
    fit = box.run("fit", "minimax-fp8", "--set", "parallel.tensor=8", "--set", "parallel.expert=false", "--json").json
    assert [finding["code"] for finding in fit["findings"]] == ["fp8-blocks-refined"]


def test_bad_usage(box: Box) -> None:
    assert box.run("fit", "nothing-here").rc == 2
    assert box.run("fit", "sm120-pcie").rc == 2
    box.profile("tiny")
    assert box.run("fit", "tiny", "--gpus", "0").rc == 2
