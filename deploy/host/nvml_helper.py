"""The GPU inventory as JSON lines on stdout: a process of its own, so that a sick driver can hang it and nothing else.

    {"system": {"driver": …, "cuda": …, "nvml": …}}
    {"reading": "0"}                    what is read next: the last one tells where a driver hangs
    {"gpu": {…}}                        one for each GPU
    {"pairs": [[a, b, topology, p2p]]}  only when everything was asked for
    {"done": true}  or  {"error": {"kind": …, "text": …}}

`python -m deploy.host.nvml_helper [memory]`: with `memory` only identity, memory and processes.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import pynvml

KINDS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "library-missing",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "driver-not-loaded",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "version-mismatch",
    pynvml.NVML_ERROR_GPU_IS_LOST: "gpu-lost",
    pynvml.NVML_ERROR_RESET_REQUIRED: "gpu-lost",
    pynvml.NVML_ERROR_NO_PERMISSION: "no-permission",
    pynvml.NVML_ERROR_OPERATING_SYSTEM: "no-permission",
}
TOPOLOGY = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "INT",
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}
P2P = {
    pynvml.NVML_P2P_STATUS_OK: "ok",
    pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED: "chipset not supported",
    pynvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED: "GPU not supported",
    pynvml.NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: "topology not supported",
    pynvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY: "disabled by the driver's registry",
    pynvml.NVML_P2P_STATUS_NOT_SUPPORTED: "not supported",
}
MIB = 20  # bits to shift
P2P_READ = 0  # pynvml's own NVML_P2P_CAPS_INDEX_READ is a tuple, which its function does not take


def _tell(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


def _or_none(read: Callable[..., Any], *arguments: Any) -> Any:
    """A reading, or None where this GPU, driver or container does not give it. A lost GPU is not such a case."""
    try:
        return read(*arguments)
    except pynvml.NVMLError as error:
        if KINDS.get(error.value) == "gpu-lost":
            raise
        return None


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _memory(handle: Any) -> dict[str, int | None]:
    """MiB. Unified memory answers N/A, or numbers that cannot be: both are None."""
    found = _or_none(pynvml.nvmlDeviceGetMemoryInfo, handle)
    if found is None or not 0 < found.total < 1 << 50 or found.used > found.total:
        return {"memory_total_mib": None, "memory_used_mib": None, "memory_free_mib": None}
    return {
        "memory_total_mib": found.total >> MIB,
        "memory_used_mib": found.used >> MIB,
        "memory_free_mib": found.free >> MIB,
    }


def _processes(handle: Any) -> list[dict[str, Any]] | None:
    """Who holds memory, by pid as the driver tells it; None where it does not list processes at all."""
    compute = _or_none(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if compute is None:  # a list without these is none: it would look as if nobody held anything
        return None
    graphics = _or_none(pynvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
    holders: dict[int, dict[str, Any]] = {}
    for kind, found in (("compute", compute), ("graphics", graphics)):
        for entry in found or ():
            mib = None if entry.usedGpuMemory is None else entry.usedGpuMemory >> MIB
            # one process can be in both lists, with the same memory
            holders.setdefault(entry.pid, {"pid": entry.pid, "mib": mib, "kind": kind})
    return list(holders.values())


def _identity(handle: Any) -> dict[str, Any]:
    pci = _or_none(pynvml.nvmlDeviceGetPciInfo, handle)
    return {
        "uuid": _text(_or_none(pynvml.nvmlDeviceGetUUID, handle)),
        "name": _text(_or_none(pynvml.nvmlDeviceGetName, handle)),
        "pci": _text(pci.busId).lower() if pci is not None else None,
    }


def _watts(read: Callable[..., Any], handle: Any) -> int | None:
    milliwatts = _or_none(read, handle)
    return None if milliwatts is None else round(milliwatts / 1000)


def _hardware(handle: Any) -> dict[str, Any]:
    """Everything but identity, memory and processes."""
    capability = _or_none(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    rates = _or_none(pynvml.nvmlDeviceGetUtilizationRates, handle)
    bar1 = _or_none(pynvml.nvmlDeviceGetBAR1MemoryInfo, handle)
    ecc = _or_none(pynvml.nvmlDeviceGetEccMode, handle)
    persistence = _or_none(pynvml.nvmlDeviceGetPersistenceMode, handle)
    span = _or_none(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    uncorrected, volatile = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    sm, memory = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM
    return {
        "capability": f"{capability[0]}.{capability[1]}" if capability else None,
        "utilization_percent": rates.gpu if rates is not None else None,
        "temperature_c": _or_none(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        "power_w": _watts(pynvml.nvmlDeviceGetPowerUsage, handle),
        "power_cap_w": _watts(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
        "power_default_w": _watts(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle),
        "power_max_w": round(span[1] / 1000) if span else None,
        "sm_clock_mhz": _or_none(pynvml.nvmlDeviceGetClockInfo, handle, sm),
        "sm_clock_max_mhz": _or_none(pynvml.nvmlDeviceGetMaxClockInfo, handle, sm),
        "memory_clock_mhz": _or_none(pynvml.nvmlDeviceGetClockInfo, handle, memory),
        "memory_clock_max_mhz": _or_none(pynvml.nvmlDeviceGetMaxClockInfo, handle, memory),
        "pcie_gen": _or_none(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        "pcie_gen_max": _or_none(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        "pcie_width": _or_none(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        "pcie_width_max": _or_none(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        "pcie_replays": _or_none(pynvml.nvmlDeviceGetPcieReplayCounter, handle),
        "bar1_total_mib": bar1.bar1Total >> MIB if bar1 is not None else None,
        "bar1_used_mib": bar1.bar1Used >> MIB if bar1 is not None else None,
        "persistence": None if persistence is None else bool(persistence),
        "ecc": None if ecc is None else bool(ecc[0]),
        "ecc_uncorrected": _or_none(pynvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, volatile),
    }


def _slices(handle: Any) -> dict[str, Any]:
    """MIG: whether it is on (None where the GPU knows no MIG), and the slices with their own memory."""
    mode = _or_none(pynvml.nvmlDeviceGetMigMode, handle)
    if not mode or not mode[0]:
        return {"mig": None if mode is None else False, "mig_devices": []}
    devices = []
    for index in range(_or_none(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        child = _or_none(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if child is None:  # numbers have gaps
            continue
        name = _or_none(pynvml.nvmlDeviceGetName, child)
        uuid = _or_none(pynvml.nvmlDeviceGetUUID, child)
        devices.append(
            {"index": index, "uuid": _text(uuid), "name": _text(name), **_memory(child), "processes": _processes(child)}
        )
    return {"mig": True, "mig_devices": devices}


def _gpu(handle: Any, *, everything: bool) -> dict[str, Any]:
    """One GPU. One that is lost says so in `problem`, and the others are still told."""
    found: dict[str, Any] = {"problem": None}
    try:
        found |= _identity(handle)
        found |= _memory(handle)
        found["processes"] = _processes(handle)
        found |= _slices(handle)
        if everything:
            found |= _hardware(handle)
    except pynvml.NVMLError as error:
        found["problem"] = _problem(error)
    return found


def _problem(error: Any) -> dict[str, str]:
    return {"kind": KINDS.get(error.value, "nvml-failed"), "text": f"{error} (NVML error {error.value})"}


def _pairs(handles: list[Any]) -> list[tuple[int, int, str | None, str | None]]:
    """Between each two GPUs: the topology level as nvidia-smi names it, and whether they may read each other."""
    found = []
    for a, one in enumerate(handles):
        for b, other in enumerate(handles[:a]):
            try:
                level = _or_none(pynvml.nvmlDeviceGetTopologyCommonAncestor, one, other)
                status = _or_none(pynvml.nvmlDeviceGetP2PStatus, one, other, P2P_READ)
            except pynvml.NVMLError:
                continue
            found.append((b, a, TOPOLOGY.get(level), None if status is None else P2P.get(status, "unknown")))
    return found


def tell_inventory(*, everything: bool) -> None:
    """Print it, as the head of this file says. GPUs come in NVML's order, which is not always that of the bus."""
    try:
        pynvml.nvmlInit()
        version = _or_none(pynvml.nvmlSystemGetCudaDriverVersion)
        _tell(
            {
                "system": {
                    "driver": _text(_or_none(pynvml.nvmlSystemGetDriverVersion)),
                    "nvml": _text(_or_none(pynvml.nvmlSystemGetNVMLVersion)),
                    "cuda": f"{version // 1000}.{version % 1000 // 10}" if version else None,
                }
            }
        )
        handles = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            _tell({"reading": str(index)})
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            except pynvml.NVMLError as error:
                _tell({"gpu": {"nvml": index, "problem": _problem(error)}})
                continue
            handles.append((index, handle))
            _tell({"gpu": {"nvml": index, **_gpu(handle, everything=everything)}})
        if everything:
            _tell({"reading": "topology"})
            numbers = [index for index, _ in handles]
            pairs = _pairs([handle for _, handle in handles])
            _tell({"pairs": [(numbers[a], numbers[b], level, p2p) for a, b, level, p2p in pairs]})
    except pynvml.NVMLError as error:
        _tell({"error": _problem(error)})
        return
    _tell({"done": True})


if __name__ == "__main__":
    tell_inventory(everything=sys.argv[1:] != ["memory"])
