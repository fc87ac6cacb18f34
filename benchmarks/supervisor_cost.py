#!/usr/bin/env python3
"""What the supervisor of a ready deployment costs: resident memory, and processor time while it watches.

    python benchmarks/supervisor_cost.py [--seconds N]

Beside it, in the same run: a Python process that only waits on a pidfd, which is the least that a supervisor could be.
To reach: at most 25 MiB resident and 0.1 % of one processor.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FAKE = Path(__file__).resolve().parents[1] / "tests/fakes/vllm"
BARE = "import os, select; p = select.poll(); p.register(os.pidfd_open(os.getppid())); p.poll()"
MEMORY_LIMIT_MIB, PROCESSOR_LIMIT = 25.0, 0.001


def resident_mib(pid: int) -> float:
    """VmRSS."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def processor_s(pid: int) -> float:
    """User and system time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure and print; 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    seconds = parser.parse_args().seconds
    kdeploy = str(Path(sys.executable).with_name("kdeploy"))
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        (Path(folder) / "model").mkdir()
        (Path(folder) / "model/config.json").write_text("{}")
        profile = {
            "name": "cost",
            "model": {"path": f"{folder}/model", "served_name": "cost"},
            "engine": {"executable": str(FAKE)},
            "hardware": {"gpus": 0},
            "serve": {"port": port},
        }
        path = Path(folder) / "cost.yaml"
        path.write_text(json.dumps(profile))
        env = {**os.environ, "KDEPLOY_STATE_DIR": f"{folder}/state"}
        status = json.loads(
            subprocess.run([kdeploy, "up", path, "--json"], env=env, check=True, capture_output=True).stdout
        )
        pid = status["supervisor_pid"]
        with subprocess.Popen([sys.executable, "-c", BARE]) as bare:
            time.sleep(2)
            before, began = processor_s(pid), time.monotonic()
            time.sleep(seconds)
            share = (processor_s(pid) - before) / (time.monotonic() - began)
            memory, least = resident_mib(pid), resident_mib(bare.pid)
            bare.kill()
        subprocess.run([kdeploy, "down", "cost", "--force"], env=env, check=True, stderr=subprocess.DEVNULL)
    print(
        f"resident   {memory:5.1f} MiB   ({memory / least:.2f} x a process that only waits on a pidfd, {least:.1f} MiB)"
    )
    print(f"processor  {100 * share:5.3f} %     over {seconds:g} s, health every 2 s")
    return int(memory > MEMORY_LIMIT_MIB or share > PROCESSOR_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
