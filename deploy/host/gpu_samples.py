"""Clocks, power, temperature and throttling of GPUs as JSON lines on stdout, until stdin is closed.

A process of its own, as the inventory is: a sick driver hangs it and nothing else.
"""

import json
import select
import sys
from collections.abc import Callable
from typing import Any

import pynvml

PERIOD_S = 1.0
# reasons that slow a GPU down; idle clocks and clocks that an application set are none
SLOWING = {
    0x0000000000000004: "power cap",
    0x0000000000000008: "hardware slowdown",
    0x0000000000000020: "thermal",
    0x0000000000000040: "thermal (hardware)",
    0x0000000000000080: "power brake",
}


def _or_none(read: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except (pynvml.NVMLError, AttributeError):
        return None


def sample(handle: Any) -> dict[str, Any]:
    """One GPU now: MHz, W, Celsius, and why it is slowed. None where it does not tell."""
    power = _or_none(pynvml.nvmlDeviceGetPowerUsage, handle)
    reasons = _or_none(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    uuid = _or_none(pynvml.nvmlDeviceGetUUID, handle)
    return {
        "uuid": uuid.decode() if isinstance(uuid, bytes) else uuid,
        "sm_clock_mhz": _or_none(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        "power_w": None if power is None else round(power / 1000),
        "temperature_c": _or_none(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        "throttled": None if reasons is None else [text for bit, text in SLOWING.items() if reasons & bit],
    }


def main() -> None:
    """Print a line at once and then one a second."""
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return
    while True:
        print(json.dumps([sample(handle) for handle in handles]), flush=True)
        if select.select([sys.stdin], [], [], PERIOD_S)[0]:
            return


if __name__ == "__main__":
    main()
