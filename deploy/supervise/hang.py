"""What a hang without words means, from the phase, the ranks, the GPUs and the last lines. Pure.

Nothing here is certain: each answer says what it rests on, and the evidence stands below it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from deploy.supervise.stall_evidence import GpuLook, Rank, suspect

IDLE_PERCENT = 5
NETWORK_WAITS = ("rpc_", "nfs", "fuse", "request_wait_answer", "ceph")


class Hang(NamedTuple):
    """A name, what speaks for it, and what to try."""

    name: str
    words: str
    fix: list[str]


def account(
    phase: str | None,
    ranks: Sequence[Rank],
    gpus: Sequence[GpuLook],
    stacks: Sequence[str],
    last_lines: Sequence[tuple[int, str]],
) -> dict[str, Any]:
    """The `stall` part of a tick: `who` is named in the summary, `hang` says what it looks like (None where nothing
    speaks for any reason), `evidence` has what was seen."""
    blamed = suspect(ranks)
    hang = reason(phase, ranks, gpus, stacks, [text for _, text in last_lines])
    seen = [*[rank.words for rank in ranks], *[gpu.words for gpu in gpus], *stacks]
    evidence = [{"line": 0, "text": text} for text in seen]
    evidence += [{"line": number, "text": text} for number, text in last_lines]
    return {
        "phase": phase,
        "who": None if blamed is None else blamed.words,
        "hang": None if hang is None else hang._asdict(),
        "evidence": evidence,
    }


def reason(
    phase: str | None, ranks: Sequence[Rank], gpus: Sequence[GpuLook], stacks: Sequence[str], lines: Sequence[str]
) -> Hang | None:
    """The likeliest reason; None where nothing speaks for any.

    Args:
        phase: where the launch stands still.
        ranks: their states.
        gpus: those of the launch.
        stacks: of some ranks, where py-spy could take them.
        lines: the last lines of the log, oldest first.
    """
    return _storage(ranks) or _autotune(phase, stacks, lines) or _collective(phase, gpus) or _compiles(phase, gpus)


def _storage(ranks: Sequence[Rank]) -> Hang | None:
    for rank in ranks:
        if rank.wchan.startswith(NETWORK_WAITS) or rank.state == "D":
            where = "a network filesystem" if rank.wchan.startswith(NETWORK_WAITS) else "a disk or a driver"
            return Hang(
                "storage",
                f"{rank.title} sleeps in the kernel ({rank.wchan}): {where} does not answer",
                [
                    "dmesg | tail   shows I/O errors and servers that do not respond",
                ],
            )
    return None


def _autotune(phase: str | None, stacks: Sequence[str], lines: Sequence[str]) -> Hang | None:
    seen = [text for text in (*stacks, *lines[-3:]) if "autotun" in text.lower()]
    if phase in ("spawn", "weights") or not seen:
        return None
    return Hang(
        "autotune",
        "the kernel autotuner does not come to an end",
        ["without it: --set args.enable-flashinfer-autotune=false"],
    )


def _collective(phase: str | None, gpus: Sequence[GpuLook]) -> Hang | None:
    waiting = [gpu for gpu in gpus if gpu.waits]
    if len(gpus) < 2 or any(gpu.waits is None for gpu in gpus) or not waiting:
        return None
    others = [gpu for gpu in gpus if not gpu.waits]
    if len(others) == 1 and len(gpus) > 2:
        return Hang(
            "lone-gpu",
            f"all GPUs but {others[0].number} wait in a collective ({others[0].words}): suspect GPU {others[0].number}",
            ["dmesg | grep Xid", f"kdeploy gpus   shows link and errors of GPU {others[0].number}"],
        )
    if others:
        return None
    draws = f"{max(gpu.power_w or 0 for gpu in gpus)} of {gpus[0].cap_w} W"
    first = phase in ("spawn", "init", "weights")
    when = "the first exchange between GPUs does not end" if first else "the ranks wait for each other"
    return Hang(
        "collective",
        f"every GPU is at 100 % and draws little ({draws}): {when}, as where IOMMU or ACS breaks peer access",
        [
            "kdeploy doctor --collective   repeats it in a minute, with and without peer access",
            "--set env.NCCL_P2P_DISABLE=1 --set args.disable-custom-all-reduce=true",
            "at the root of it: iommu=pt (or off) and ACS off   (kdeploy doctor)",
        ],
    )


def _compiles(phase: str | None, gpus: Sequence[GpuLook]) -> Hang | None:
    idle = bool(gpus) and all(gpu.percent is not None and gpu.percent < IDLE_PERCENT for gpu in gpus)
    if phase not in ("compile", "graphs", "warmup") or not idle:
        return None
    return Hang(
        "silent-compile",
        "the GPUs have nothing to do: a compiler that takes long, or waits for a lock",
        [
            "a first start compiles for long: raise load.stall_s once; the next start finds the result",
            "a lock that somebody left: ls -l ~/.cache/flashinfer ~/.triton | grep -i lock",
        ],
    )
