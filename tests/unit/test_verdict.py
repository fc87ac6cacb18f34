"""What a timed all-reduce tells of a box."""

import pytest

from deploy.console.examination import all_reduce_lines
from deploy.doctor.finding import FAIL, OK, WARN
from deploy.doctor.verdict import (
    FAILED,
    HANGS,
    HEALTHY,
    TUNED_US,
    USUAL_US,
    WRONG,
    Measured,
    Run,
    judge,
    slow_ones,
    worlds,
)

GOOD = Run(HEALTHY, [Measured(8, size, us) for size, us in TUNED_US.items()])
HUNG = Run(HANGS, detail="nothing for 60 s at 8 ranks, 8192 bytes", evidence=["rank 3: 8 ranks, 8192 bytes"])
LIES = Run(WRONG, detail="1 of 4096 sums are wrong")


def test_bus_bandwidth_is_what_each_link_carries() -> None:
    assert Measured(8, 64 << 20, 2936.0).bus_gb_s == pytest.approx(40.0, rel=0.001)
    assert Measured(2, 1_000_000, 100.0).bus_gb_s == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("ranks", "only_all", "expected"),
    [(2, False, [2]), (4, False, [2, 4]), (8, False, [2, 4, 8]), (6, False, [2, 4, 6]), (8, True, [8])],
)
def test_worlds(ranks: int, only_all: bool, expected: list[int]) -> None:
    assert worlds(ranks, only_all=only_all) == expected


def test_usual_figures_are_no_alarm_and_multiples_of_them_are() -> None:
    usual = [Measured(8, size, us) for size, us in USUAL_US.items()]
    assert slow_ones([*usual, *GOOD.measured, Measured(8, 64 << 20, 3000.0), Measured(2, 8192, 900.0)]) == []
    (line,) = slow_ones([Measured(8, 32 << 10, 13_000.0)])  # a box whose every forward took 12 to 16 ms
    assert "13000 us, usual are 48" in line
    (line,) = slow_ones([Measured(4, 64 << 20, 60_000.0)])
    assert "GB/s" in line


def test_verdicts() -> None:
    assert judge(GOOD, None, on_gpu=True).status == OK
    slow = Run(HEALTHY, [Measured(8, 32 << 10, 13_000.0)])
    assert judge(slow, None, on_gpu=True).status == WARN
    assert judge(slow, None, on_gpu=False).status == OK
    assert judge(Run(FAILED, detail="x"), None, on_gpu=True).status == FAIL


@pytest.mark.parametrize("run", [HUNG, LIES])
def test_the_control_run_tells_peer_access_from_everything_else(run: Run) -> None:
    peers = judge(run, GOOD, on_gpu=True)
    assert peers.status == FAIL
    assert "without peer access (NCCL_P2P_DISABLE=1) it is healthy" in peers.summary
    assert any("sm120-pcie-p2p-off" in line for line in peers.fix)
    other = judge(run, HUNG, on_gpu=True)
    assert other.status == FAIL
    assert "without peer access: hangs" in other.summary
    assert not any("sm120-pcie-p2p-off" in line for line in other.fix)
    # a hang can leave the GPUs busy
    assert any("nvidia-smi -r" in line for line in peers.fix) is (run is HUNG)


def test_the_table_shows_what_is_usual_where_it_is_known() -> None:
    told = all_reduce_lines(GOOD, None, judge(GOOD, None, on_gpu=True))
    assert told[0].split() == ["RANKS", "BYTES", "US", "BUS", "GB/S", "USUAL", "US,", "TUNED"]
    assert told[1].split() == ["8", "32768", "26.2", "2.19", "48.2,", "26.2"]
    two = Run(HEALTHY, [Measured(2, 8192, 20.0)])
    assert "USUAL" not in all_reduce_lines(two, None, judge(two, None, on_gpu=True))[0]
