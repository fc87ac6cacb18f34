"""The GPUs of this machine, asked with a deadline in a helper process."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from typing import Any, NamedTuple

from deploy.errors import KdeployError, environment

DEADLINE_S = 20.0
# Without persistence mode the driver starts each GPU anew for us, which takes seconds on boxes with many.
DEADLINE_VARIABLE = "KDEPLOY_NVML_DEADLINE_S"

REMEDIES = {
    "library-missing": "the NVIDIA driver is not installed, or this container was not given it (--gpus all)",
    "driver-not-loaded": "load the driver: modprobe nvidia",
    "version-mismatch": "the driver was upgraded under a loaded kernel module: reload it or reboot",
    "gpu-lost": "a GPU has fallen off the bus: see dmesg for Xid, then reset it or reboot",
    "no-answer": "the driver hangs: see dmesg for Xid; a reset or a reboot is the usual way out",
    "no-permission": "this user may not open /dev/nvidia*: check their mode, or the container's device rules",
    "nvml-failed": "nvidia-smi says more; dmesg has the driver's own words",
}
WHAT = {
    "library-missing": "no NVIDIA driver library is installed here",
    "driver-not-loaded": "the NVIDIA driver is not loaded",
    "version-mismatch": "the NVIDIA driver and its library are of different versions",
    "gpu-lost": "a GPU is lost",
    "no-answer": "the NVIDIA driver does not answer",
    "no-permission": "the NVIDIA driver refuses this user",
}


class GpuState(NamedTuple):
    """One GPU now. `number` counts in PCI bus order. Sizes in MiB, power in W, clocks in MHz, temperature in Celsius.

    None where GPU, driver or container do not tell. `problem`: kind and text of a GPU that does not answer.
    """

    number: int
    uuid: str
    name: str | None
    capability: str | None
    total_mib: int | None
    used_mib: int | None
    processes: list[dict[str, Any]] | None  # {"pid", "mib", "kind"}
    pci: str | None = None  # 00000000:c1:00.0
    free_mib: int | None = None
    problem: dict[str, str] | None = None
    mig: bool | None = None
    mig_devices: tuple[dict[str, Any], ...] = ()
    details: dict[str, Any] = {}  # noqa: RUF012 - never written; the other fields, by their names in `gpus --json`

    def get(self, key: str) -> Any:
        """One of `details`, None where it is not told."""
        return self.details.get(key)


class Inventory(NamedTuple):
    """Everything NVML tells. `pairs` by two GPU numbers, the smaller first: (topology level, peer access)."""

    gpus: list[GpuState]
    driver: str | None = None
    cuda: str | None = None
    nvml: str | None = None
    pairs: dict[tuple[int, int], tuple[str | None, str | None]] = {}  # noqa: RUF012


class NoGpus(Exception):
    """NVML gives no inventory: `kind` is a slug, the text its own words."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind

    def as_error(self) -> KdeployError:
        """For a command that cannot go on without GPUs (exit 6)."""
        what = WHAT.get(self.kind, "NVML fails")
        return environment(
            f"the GPUs of this machine cannot be read: {what}",
            evidence=[f"NVML: {self}"],
            fix=[REMEDIES.get(self.kind, REMEDIES["nvml-failed"])],
        )


def deadline_s() -> float:
    """Seconds that NVML gets to answer."""
    try:
        return float(os.environ[DEADLINE_VARIABLE])
    except (KeyError, ValueError):
        return DEADLINE_S


class Reading:
    """A question to NVML under way. `fileno` becomes readable; `advance` takes what there is; then `result`.

    A process that hangs inside the driver cannot be killed, nor waited for: it is left to the kernel.
    """

    def __init__(self, *, everything: bool) -> None:
        words = [] if everything else ["memory"]
        self.deadline = time.monotonic() + deadline_s()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "deploy.host.nvml_helper", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            start_new_session=True,  # a Ctrl-C is ours, not its
        )
        assert self.process.stdout is not None
        self.pipe = self.process.stdout.fileno()
        os.set_blocking(self.pipe, False)
        self.data = b""
        self.over = False

    def fileno(self) -> int:
        """The pipe, for a selector."""
        return self.pipe

    def advance(self) -> bool:
        """Take what there is; True when there will be no more, or the time is over."""
        with contextlib.suppress(BlockingIOError):
            while not self.over:
                chunk = os.read(self.pipe, 1 << 16)
                self.data += chunk
                self.over = not chunk
        return self.over or time.monotonic() >= self.deadline

    def close(self) -> None:
        """End the helper, without waiting for it."""
        assert self.process.stdout is not None
        self.process.stdout.close()
        if not self.over:
            self.process.kill()
        self.process.poll()
        self.process.returncode = self.process.returncode or 0  # whether or not the kernel lets go of it

    def result(self) -> Inventory:
        """What it told. Raises NoGpus."""
        return parsed(self.data.decode(errors="replace"), complete=self.over)


def parsed(text: str, *, complete: bool) -> Inventory:
    """The inventory of the helper's lines. Raises NoGpus.

    Args:
        text: what the helper wrote.
        complete: it has ended by itself; else the time was over.
    """
    documents, strange = [], []
    for line in text.splitlines():
        try:
            document = json.loads(line)
            documents.append(document if isinstance(document, dict) else {})
        except ValueError:
            strange.append(line)
    for document in documents:
        if "error" in document:
            raise NoGpus(document["error"]["kind"], document["error"]["text"])
    if not complete:
        at = [document["reading"] for document in documents if "reading" in document]
        where = f" while reading {'the topology' if at[-1] == 'topology' else f'GPU {at[-1]}'}" if at else ""
        raise NoGpus("no-answer", f"no answer within {deadline_s():g} s{where}")
    if not any("done" in document for document in documents):
        raise NoGpus("nvml-failed", " ".join(strange)[-300:] or "the helper ended without an answer")
    empty: dict[str, Any] = {}
    system = next((document["system"] for document in documents if "system" in document), empty)
    gpus = [document["gpu"] for document in documents if "gpu" in document]
    if all(gpu.get("pci") for gpu in gpus):  # else NVML's own order is the best there is
        gpus.sort(key=lambda gpu: str(gpu["pci"]))
    numbers = {gpu["nvml"]: number for number, gpu in enumerate(gpus)}
    pairs = {}
    for a, b, level, p2p in next((document["pairs"] for document in documents if "pairs" in document), []):
        one, other = sorted((numbers[a], numbers[b]))
        pairs[one, other] = (level, p2p)
    return Inventory([_state(number, gpu) for number, gpu in enumerate(gpus)], pairs=pairs, **system)


APART = ("nvml", "uuid", "name", "pci", "capability", "processes", "problem", "mig", "mig_devices")


def _state(number: int, gpu: dict[str, Any]) -> GpuState:
    memory = ("memory_total_mib", "memory_used_mib", "memory_free_mib")
    return GpuState(
        number=number,
        uuid=gpu.get("uuid") or f"unknown-{number}",
        name=gpu.get("name"),
        capability=gpu.get("capability"),
        total_mib=gpu.get("memory_total_mib"),
        used_mib=gpu.get("memory_used_mib"),
        processes=gpu.get("processes"),
        pci=gpu.get("pci"),
        free_mib=gpu.get("memory_free_mib"),
        problem=gpu.get("problem"),
        mig=gpu.get("mig"),
        mig_devices=tuple(gpu.get("mig_devices") or ()),
        details={key: value for key, value in gpu.items() if key not in (*APART, *memory)},
    )


def read_machine(*, everything: bool = True) -> Inventory:
    """Every GPU in PCI bus order, with driver and pairs. Raises NoGpus."""
    try:
        reading = Reading(everything=everything)
    except OSError as error:
        raise NoGpus("nvml-failed", f"its helper cannot be started: {error.strerror}") from None
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(reading, selectors.EVENT_READ)
            while not reading.advance():
                selector.select(max(0.0, reading.deadline - time.monotonic()))
    finally:
        reading.close()
    return reading.result()


def inventory() -> list[GpuState]:
    """Every GPU in PCI bus order. Raises NoGpus."""
    return read_machine().gpus


def used_mib() -> dict[str, int | None]:
    """Used memory by UUID; empty where it cannot be read."""
    try:
        return {gpu.uuid: gpu.used_mib for gpu in read_machine(everything=False).gpus}
    except NoGpus:
        return {}
