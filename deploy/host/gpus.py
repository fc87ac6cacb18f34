"""The GPUs of this machine, asked with a deadline."""

import json
import subprocess
import sys
from typing import Any, NamedTuple

from deploy.errors import KdeployError, environment

DEADLINE_S = 20.0

REMEDIES = {
    "library-missing": "the NVIDIA driver is not installed, or this container was not given it (--gpus all)",
    "driver-not-loaded": "load the driver: modprobe nvidia",
    "version-mismatch": "the driver was upgraded under a loaded kernel module: reload it or reboot",
    "gpu-lost": "a GPU has fallen off the bus: see dmesg for Xid, then reset it or reboot",
    "no-answer": "the driver hangs: see dmesg for Xid; a reset or a reboot is the usual way out",
}


class GpuState(NamedTuple):
    """One GPU now. Memory in MiB; None where the driver does not tell."""

    number: int
    uuid: str
    name: str | None
    capability: str | None
    total_mib: int | None
    used_mib: int | None
    processes: list[dict[str, Any]] | None


class NoGpus(Exception):
    """NVML gives no inventory: `kind` is a slug, the text its own words."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind

    def as_error(self) -> KdeployError:
        """For a command that cannot go on without GPUs (exit 6)."""
        return environment(
            "the GPUs of this machine cannot be read", evidence=[f"NVML: {self}"], fix=[REMEDIES.get(self.kind, "")]
        )


def inventory() -> list[GpuState]:
    """Every GPU in PCI bus order. Raises NoGpus."""
    command = [sys.executable, "-P", "-m", "deploy.host.nvml_helper"]
    try:
        result = subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False, cwd="/")
        answer = json.loads(result.stdout)
    except subprocess.TimeoutExpired:
        raise NoGpus("no-answer", f"no answer within {DEADLINE_S:g} s") from None
    except ValueError:
        raise NoGpus("nvml-failed", result.stderr.decode(errors="replace").strip()[-300:]) from None
    if "error" in answer:
        raise NoGpus(answer["error"]["kind"], answer["error"]["text"])
    return [
        GpuState(
            gpu["index"],
            gpu["uuid"] or f"unknown-{gpu['index']}",
            gpu["name"],
            gpu["capability"],
            gpu["memory_total_mib"],
            gpu["memory_used_mib"],
            gpu["processes"],
        )
        for gpu in answer["gpus"]
    ]


def used_mib() -> dict[str, int | None]:
    """Used memory by UUID; empty where it cannot be read."""
    try:
        return {gpu.uuid: gpu.used_mib for gpu in inventory()}
    except NoGpus:
        return {}
