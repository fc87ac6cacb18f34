"""What a rehearsal is, and what tells two of them apart."""

from dataclasses import replace

import pytest

from deploy.plan.launch_plan import Gpu, LaunchPlan, Shard
from deploy.plan.rehearsal import fingerprint, kv_words, rehearsal_of

PLAN = LaunchPlan(
    name="a",
    profile="a",
    profile_file="a.yaml",
    digest="1",
    model="/m",
    served_names=["a"],
    argv=["vllm", "serve", "/m", "--port", "8000", "--load-format", "fastsafetensors", "--enforce-eager"],
    env={"A": "1"},
    host="127.0.0.1",
    port=8000,
    engine={"version": "0.33.0"},
    limits={"restart": {"policy": "on-failure", "attempts": 3}},
    health={},
    canary={"enabled": True, "coherence": True},
    gpus=[Gpu(0, "GPU-0")],
    shards=[Shard("model.safetensors", 10)],
)
HOST = {"kernel": "6.1", "driver": "580"}


def test_only_weights_and_port_differ() -> None:
    trial = rehearsal_of(PLAN, 9000)
    assert trial.argv == ["vllm", "serve", "/m", "--port", "9000", "--enforce-eager", "--load-format", "dummy"]
    assert (trial.name, trial.port, trial.env, trial.gpus) == ("a.rehearsal", 9000, PLAN.env, PLAN.gpus)
    assert trial.rehearsal
    assert trial.canary == {"enabled": False, "coherence": True}
    assert trial.limits["restart"]["policy"] == "never"
    assert PLAN.limits["restart"]["policy"] == "on-failure"


def test_settings_of_other_loaders_are_left_out() -> None:
    argv = ["vllm", "serve", "/m", "--load-format=auto", "--model-loader-extra-config", "{}", "--port", "1", "-q", "x"]
    trial = rehearsal_of(replace(PLAN, argv=argv), 2)
    assert trial.argv == ["vllm", "serve", "/m", "--port", "2", "-q", "x", "--load-format", "dummy"]


def test_name_and_port_do_not_matter() -> None:
    argv = [word.replace("8000", "8001") for word in PLAN.argv]
    assert fingerprint(replace(PLAN, name="b", port=8001, argv=argv), HOST) == fingerprint(PLAN, HOST)


@pytest.mark.parametrize(
    "other",
    [
        replace(PLAN, argv=[*PLAN.argv, "--async-scheduling"]),
        replace(PLAN, env={"A": "2"}),
        replace(PLAN, engine={"version": "0.34.0"}),
        replace(PLAN, gpus=[Gpu(1, "GPU-1")]),
        replace(PLAN, patches=[{"name": "p"}]),
        replace(PLAN, shards=[Shard("model.safetensors", 11)]),
    ],
)
def test_what_could_fail_otherwise_is_rehearsed_again(other: LaunchPlan) -> None:
    assert fingerprint(other, HOST) != fingerprint(PLAN, HOST)


def test_another_driver_is_rehearsed_again() -> None:
    assert fingerprint(PLAN, {**HOST, "driver": "590"}) != fingerprint(PLAN, HOST)


def test_kv_cache_beside_the_prediction() -> None:
    assert kv_words(110_000, 100_000, 32_000) == ["KV cache 110,000 tokens; fit predicted 100,000 (+10 %)"]
    assert kv_words(40_000, None, 32_000)[1] == "that is 1.2 requests of full length (32,000 tokens)"
    assert "did not tell" in kv_words(None, 100, 100)[0]
