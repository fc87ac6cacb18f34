"""The GPU inventory as JSON on stdout: a process of its own, so that a sick driver can hang it and nothing else."""

import json
from collections.abc import Callable
from typing import Any

import pynvml


def _or_none(read: Callable[[], Any]) -> Any:
    """A reading, or None where this GPU, driver or container does not give it."""
    try:
        return read()
    except pynvml.NVMLError:
        return None


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _gpu(index: int) -> dict[str, Any]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = _or_none(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    capability = _or_none(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    pci = _or_none(lambda: pynvml.nvmlDeviceGetPciInfo(handle))
    processes = _or_none(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    return {
        "uuid": _text(_or_none(lambda: pynvml.nvmlDeviceGetUUID(handle))),
        "name": _text(_or_none(lambda: pynvml.nvmlDeviceGetName(handle))),
        "pci": _text(pci.busId) if pci is not None else None,
        "capability": f"{capability[0]}.{capability[1]}" if capability else None,
        "memory_total_mib": memory.total >> 20 if memory is not None else None,
        "memory_used_mib": memory.used >> 20 if memory is not None else None,
        "processes": None
        if processes is None
        else [
            {"pid": entry.pid, "mib": None if entry.usedGpuMemory is None else entry.usedGpuMemory >> 20}
            for entry in processes
        ],
    }


def read_inventory() -> dict[str, Any]:
    """{"driver": …, "gpus": […]} in PCI bus order, or {"error": {"kind": …, "text": …}}."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        kinds = {
            pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "library-missing",
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "driver-not-loaded",
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "version-mismatch",
            pynvml.NVML_ERROR_GPU_IS_LOST: "gpu-lost",
        }
        return {"error": {"kind": kinds.get(error.value, "nvml-failed"), "text": str(error)}}
    try:
        gpus = [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
        driver = _text(_or_none(pynvml.nvmlSystemGetDriverVersion))
    except pynvml.NVMLError as error:
        kind = "gpu-lost" if error.value == pynvml.NVML_ERROR_GPU_IS_LOST else "nvml-failed"
        return {"error": {"kind": kind, "text": str(error)}}
    gpus.sort(key=lambda gpu: gpu["pci"] or "")
    return {"driver": driver, "gpus": [{"index": index, **gpu} for index, gpu in enumerate(gpus)]}


if __name__ == "__main__":
    print(json.dumps(read_inventory()))
