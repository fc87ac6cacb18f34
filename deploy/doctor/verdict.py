"""What a timed all-reduce tells of a box: healthy, slow, wrong values, or it hangs. Pure."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from deploy.doctor.finding import FAIL, OK, WARN, Finding

DECODE_BYTES = tuple(1 << power for power in range(13, 20))  # 8 KiB to 512 KiB: one token to a full batch
PREFILL_BYTES = (8 << 20, 64 << 20)

# Eight ranks on PCIe, microseconds by bytes: NCCL as it comes, and with a graph file that names the real bandwidth
# (community measurements on two-socket boxes, NCCL 2.26 to 2.29).
USUAL_US = {32 << 10: 48.2, 64 << 10: 48.7, 128 << 10: 51.6, 256 << 10: 56.5}
TUNED_US = {32 << 10: 26.2, 64 << 10: 25.6, 128 << 10: 32.1, 256 << 10: 37.3}
USUAL_GB_S = (22.0, 41.0)  # bus bandwidth of eight ranks at large sizes
SLOW_FACTOR = 3.0
SLOW_GB_S = 8.0  # less than host memory gives

HEALTHY = "healthy"
SLOW = "slow"
HANGS = "hangs"
WRONG = "wrong values"
FAILED = "could not be run"


class Measured(NamedTuple):
    """One size: ranks, bytes of the message, microseconds of one all-reduce."""

    ranks: int
    bytes: int
    us: float

    @property
    def bus_gb_s(self) -> float:
        """Bus bandwidth as nccl-tests reckons it: what each link has to carry, 2(n-1)/n times the message."""
        return 2 * (self.ranks - 1) / self.ranks * self.bytes / self.us / 1000

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**self._asdict(), "bus_gb_s": round(self.bus_gb_s, 3), "usual_us": self.usual_us}

    @property
    def usual_us(self) -> float | None:
        """What eight ranks usually take; None where nothing is known."""
        return USUAL_US.get(self.bytes) if self.ranks == 8 else None


class Run(NamedTuple):
    """One run of all ranks. `detail`: where it hung, which value was wrong, or why it could not be run."""

    outcome: str
    measured: Sequence[Measured] = ()
    detail: str = ""
    evidence: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "outcome": self.outcome,
            "detail": self.detail,
            "evidence": list(self.evidence),
            "measured": [entry.to_json() for entry in self.measured],
        }


def slow_ones(measured: Sequence[Measured]) -> list[str]:
    """Sizes that take far longer than on other boxes."""
    found = []
    for entry in measured:
        if entry.usual_us is not None and entry.us > SLOW_FACTOR * entry.usual_us:
            found.append(f"{entry.ranks} ranks, {entry.bytes} bytes: {entry.us:.0f} us, usual are {entry.usual_us:.0f}")
        elif entry.bytes >= PREFILL_BYTES[-1] and entry.bus_gb_s < SLOW_GB_S:
            usual = f"usual are {USUAL_GB_S[0]:g} to {USUAL_GB_S[1]:g}"
            found.append(f"{entry.ranks} ranks, {entry.bytes} bytes: {entry.bus_gb_s:.1f} GB/s, {usual}")
    return found


def worlds(ranks: int, *, only_all: bool) -> list[int]:
    """Group sizes that are tried: 2, 4, … and all. `only_all` where a graph file fits all ranks only."""
    smaller = [] if only_all else [2**power for power in range(1, 10) if 2**power < ranks]
    return [*smaller, ranks]


LOOK = "kdeploy doctor shows IOMMU and ACS: boot with iommu=pt, turn ACS off on every bridge (setpci lines there)"
WITHOUT = "until then: extends: [sm120-pcie-p2p-off] in the profile; it goes through host memory"
RESET = "GPUs that stay at 100 % afterwards need a reset: nvidia-smi -r, or a reboot"


def judge(run: Run, control: Run | None, *, on_gpu: bool) -> Finding:
    """The verdict on a run, with that of the control run without peer access where there was one."""
    if run.outcome == FAILED:
        return Finding(
            FAIL, f"{FAILED}: {run.detail}", run.evidence, ["kdeploy doctor PROFILE examines engine and driver"]
        )
    if run.outcome == HEALTHY:
        slow = slow_ones(run.measured) if on_gpu else []
        if slow:
            fix = [
                "kdeploy doctor shows links and ACS",
                "other NCCL settings, one at a time: --set env.NCCL_…=VALUE with this same command",
            ]
            return Finding(WARN, f"{SLOW}: sums are right, and {len(slow)} sizes take too long", slow, fix)
        return Finding(OK, f"{HEALTHY}: every sum is right at {len(run.measured)} sizes", run.evidence)
    what = f"{run.outcome}: {run.detail}"
    if control is None:
        return Finding(FAIL, what, run.evidence, [LOOK, WITHOUT])
    if control.outcome == HEALTHY:
        summary = f"{what}; without peer access (NCCL_P2P_DISABLE=1) it is healthy"
        return Finding(FAIL, summary, run.evidence, [LOOK, WITHOUT, *([RESET] if run.outcome == HANGS else [])])
    fix = [
        "so it is not peer access: look at /dev/shm, at other NCCL_ variables of the profile, and at NCCL's version",
        "NCCL_DEBUG=INFO under env: of the profile shows where it waits",
        *([RESET] if run.outcome == HANGS else []),
    ]
    evidence = [*run.evidence, *control.evidence]
    return Finding(FAIL, f"{what}; without peer access: {control.outcome}, {control.detail}", evidence, fix)
