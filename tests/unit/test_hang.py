"""A hang without words is named from what can be seen of it, and only where something speaks for a reason."""

import pytest

from deploy.supervise.hang import account, reason
from deploy.supervise.stall_evidence import GpuLook, Rank

RANKS = [Rank(100 + number, f"VLLM::Worker_TP{number}", "R", "0") for number in range(4)]
SPINS = [GpuLook(number, 100, 131, 600) for number in range(4)]
WORKS = [GpuLook(number, 100, 480, 600) for number in range(4)]
IDLE = [GpuLook(number, 0, 31, 600) for number in range(4)]
NCCL = ["(Worker_TP0 pid=100) INFO 12-01 10:00:00 [pynccl.py:111] vLLM is using nccl==2.29.7"]


@pytest.mark.parametrize(
    ("phase", "ranks", "gpus", "stacks", "lines", "name"),
    [
        ("init", RANKS, SPINS, [], NCCL, "collective"),
        ("warmup", RANKS, SPINS, [], [], "collective"),
        ("init", RANKS, WORKS, [], NCCL, None),
        ("weights", RANKS, IDLE, [], [], None),
        ("compile", RANKS, IDLE, [], [], "silent-compile"),
        ("warmup", RANKS, SPINS, ["TP0 stack: _tune (flashinfer/autotuner.py:88) < run (x.py:1)"], [], "autotune"),
        ("init", RANKS, [*SPINS[:2], IDLE[2], SPINS[3]], [], NCCL, "lone-gpu"),
        ("init", RANKS, SPINS[:1], [], NCCL, None),
        ("init", RANKS, [*SPINS[:3], GpuLook(3, None, None, None)], [], NCCL, None),
        ("weights", [RANKS[0], Rank(101, "VLLM::Worker_TP1", "D", "rpc_wait_bit_killable")], IDLE, [], [], "storage"),
        ("init", [], [], [], [], None),
    ],
)
def test_the_likeliest_reason(
    phase: str,
    ranks: list[Rank],
    gpus: list[GpuLook],
    stacks: list[str],
    lines: list[str],
    name: str | None,
) -> None:
    found = reason(phase, ranks, gpus, stacks, lines)
    assert (None if found is None else found.name) == name
    if found is not None:
        assert found.words
        assert found.fix


def test_the_gpu_that_is_not_like_the_others_is_named() -> None:
    found = reason("init", RANKS, [*SPINS[:2], IDLE[2], SPINS[3]], [], NCCL)
    assert found is not None
    assert "suspect GPU 2" in found.words


def test_everything_that_was_seen_is_kept() -> None:
    told = account("init", RANKS, SPINS, ["TP0 stack: wait"], [(7, NCCL[0])])
    assert told["hang"]["name"] == "collective"
    texts = [entry["text"] for entry in told["evidence"]]
    assert "GPU 3: 100 %, 131 of 600 W" in texts
    assert "TP0 stack: wait" in texts
    assert told["evidence"][-1] == {"line": 7, "text": NCCL[0]}
