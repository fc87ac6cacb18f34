"""A box on a machine with GPUs: the fake engine, and the fake NVML library whose state tests change while it runs."""

import json
from pathlib import Path
from typing import Any

from tests.box import Box, Result, free_port


class GpuBox:
    """A box on a machine with GPUs. `machine` is the text file that the fake NVML reads."""

    def __init__(self, box: Box, library: Path) -> None:
        self.box = box
        self.machine = box.root / "machine.txt"
        self.told = box.root / "argv.json"
        self.set("charge_holders 1000")
        box.env |= {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(self.machine)}

    def set(self, *lines: str) -> None:
        """What the machine is now."""
        # at once: a supervisor may be reading it
        fresh = self.machine.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self.machine)

    def profile(self, name: str = "tiny", gpus: int = 2, keys: dict[str, Any] | None = None) -> None:
        """A profile for the fake engine on GPUs, on a port of its own."""
        mine = {
            "parallel.tensor": gpus,
            "hardware.gpus": gpus,
            "serve.port": free_port(),
            "env.FAKE_VLLM_ARGV_FILE": str(self.told),
        }
        self.box.profile(name, "device=cuda", {**mine, **(keys or {})})

    def up(self, *args: str) -> Result:
        """`kdeploy up … --json`."""
        return self.box.run("up", *args, "--json")

    def visible(self) -> str:
        """CUDA_VISIBLE_DEVICES of the engine started last."""
        return str(json.loads(self.told.read_text())["env"]["CUDA_VISIBLE_DEVICES"])

    def leases(self) -> dict[int, str]:
        """GPU number -> deployment, as `gpus` shows it."""
        gpus = self.box.ok("gpus", "--json").json["gpus"]
        return {gpu["index"]: gpu["lease"]["deployment"] for gpu in gpus if gpu["lease"]}
