"""What the GPUs did while something was measured."""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any


class GpuWatch:
    """Samples the GPUs `uuids` while it is entered (None: no GPU of this machine is concerned)."""

    def __init__(self, uuids: Sequence[str] | None) -> None:
        self._uuids = uuids
        self._process: subprocess.Popen[bytes] | None = None
        self._samples: list[list[dict[str, Any]]] = []

    def __enter__(self) -> "GpuWatch":
        if self._uuids:
            # a file, not a pipe: nobody has time to read it now
            self._out = tempfile.TemporaryFile()
            command = [sys.executable, "-P", "-m", "deploy.host.gpu_samples"]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=self._out, stderr=subprocess.DEVNULL, cwd="/"
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # the driver hangs
            self._process.kill()
        self._out.seek(0)
        for line in self._out.read().splitlines():
            with contextlib.suppress(ValueError):
                self._samples.append(json.loads(line))
        self._out.close()

    def summary(self) -> list[dict[str, Any]] | None:
        """For each GPU: median clock, power and temperature, and why it was slowed; None where nothing is known."""
        return summarise(self._samples, self._uuids or ()) or None


def summarise(samples: Sequence[Sequence[dict[str, Any]]], uuids: Sequence[str]) -> list[dict[str, Any]]:
    """Medians by GPU, and every throttle reason that was seen."""
    found = []
    for uuid in uuids:
        own = [gpu for sample in samples for gpu in sample if gpu["uuid"] == uuid]
        if not own:
            continue
        entry: dict[str, Any] = {"uuid": uuid}
        for key in ("sm_clock_mhz", "power_w", "temperature_c"):
            values = [gpu[key] for gpu in own if gpu[key] is not None]
            entry[key] = statistics.median(values) if values else None
        reasons = [gpu["throttled"] for gpu in own if gpu["throttled"] is not None]
        entry["throttled"] = sorted({text for one in reasons for text in one}) if reasons else None
        found.append(entry)
    return found
