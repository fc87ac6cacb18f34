"""How weights are read: every row of the table, with its reason."""

from typing import Any

import pytest

from deploy.plan.strategy import Choice, Ground, decide

GB = 10**9
BOX = Ground("/models/k", "ext4", False, 900 * GB, 0.0, 11e9)


def chosen(ground: Ground | None = BOX, **changed: Any) -> Choice:
    known: dict[str, Any] = {
        "wanted": "auto",
        "prewarm": "auto",
        "total": 547 * GB,
        "gpus": 8,
        "version": "0.33.0",
        "draft": False,
        "expert_filter": False,
        "written": False,
        "ground": ground,
        **changed,
    }
    return decide(known.pop("wanted"), known.pop("prewarm"), **known)


@pytest.mark.parametrize(
    ("choice", "strategy", "prewarm", "why"),
    [
        (chosen(), "instanttensor", False, "11.0 GB/s"),
        (chosen(BOX._replace(resident=1.0)), "auto", False, "in memory already"),
        (chosen(BOX._replace(probe=1.2e9)), "auto", True, "1.2 GB/s, which reading ahead can use up"),
        (chosen(BOX._replace(probe=None)), "auto", True, "rate is not known"),
        (chosen(version="0.31.0"), "auto", True, "vLLM 0.31.0 does not bring it"),
        (chosen(version=None), "auto", True, "of unknown version"),
        (chosen(BOX._replace(crashed=("instanttensor",))), "auto", True, "failed to load this model on this host"),
        (chosen(draft=True), "auto", True, "draft model"),
        (chosen(expert_filter=True), "auto", True, "expert filter"),
        (chosen(gpus=0), "auto", True, "CPU engine"),
        (chosen(BOX._replace(measured={"instanttensor": 3e9, "auto": 6e9})), "auto", True, "auto was faster here"),
        (chosen(BOX._replace(measured={"instanttensor": 9e9, "auto": 6e9})), "instanttensor", False, "11.0 GB/s"),
        (chosen(BOX._replace(filesystem="nfs4", network=True, probe=1e9)), "lazy", True, "1.0 GB/s"),
        (chosen(BOX._replace(probe=1e9, available=200 * GB)), "auto", True, "through a window"),
        (chosen(wanted="fastsafetensors"), "fastsafetensors", False, "load.strategy says so"),
        (chosen(wanted="prefetch"), "prefetch", False, "prefetch does not take"),
        (chosen(wanted="lazy", prewarm="off"), "lazy", False, "load.prewarm is off"),
        (chosen(wanted="instanttensor", prewarm="on"), "instanttensor", True, "load.prewarm is on"),
        (chosen(written=True), "auto", False, "args choose"),
        (chosen(total=1000, gpus=0), "auto", False, "too small"),
        (chosen(None), "auto", False, "not on this machine"),
    ],
)
def test_choice(choice: Choice, strategy: str, prewarm: bool, why: str) -> None:
    assert (choice.strategy, choice.prewarm) == (strategy, prewarm)
    assert why in "; ".join(choice.reasons)
