#!/usr/bin/env python3
"""What `kdeploy --help` and `kdeploy ps` cost, as ratios to `python -c 'import click'` run beside them.

    python benchmarks/cli_startup.py [--rounds N]

Whole processes, interleaved rounds, medians of wall-clock and of processor time. `ps` reads eight deployments that
are ready. To reach: at most 1.2 for both.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DEPLOYMENTS = 8
LIMIT = 1.2


def fill(state: Path) -> None:
    """Eight deployments as a finished load leaves them: a plan, and a journal with a record for each shard."""
    for number in range(DEPLOYMENTS):
        launch = state / "deployments" / f"model-{number}" / "launches" / "20261201T101500-1"
        launch.mkdir(parents=True)
        shards = [{"name": f"model-{index:05}.safetensors", "size": 9_296_000_000} for index in range(64)]
        plan = {"host": "127.0.0.1", "port": 8000 + number, "served_names": ["m"], "shards": shards, "profile": "p"}
        (launch / "plan.json").write_text(json.dumps(plan))
        records: list[dict[str, object]] = [
            {"kind": "launch", "state": "starting", "phase": "spawn", "launch": launch.name, "boot_id": ""},
            {"kind": "phase", "state": "starting", "phase": "weights", "seconds": 20},
            *(
                {"kind": "progress", "shards_done": n, "shards_total": 64, "bytes_done": n * 9_296_000_000}
                for n in range(65)
            ),
            {"kind": "ready", "state": "ready", "seconds": 3},
            {"kind": "stopped", "state": "stopped"},
        ]
        lines = [json.dumps({"v": 1, "at": "2026-12-01T10:15:00.000Z", **record}) for record in records]
        (launch / "events.jsonl").write_text("\n".join(lines) + "\n")


def measure(command: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Wall-clock and processor seconds of one run."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    return ended - began, (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def main() -> int:
    """Measure and print; 1 when a ratio is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    kdeploy = str(Path(sys.executable).with_name("kdeploy"))
    commands = {
        "python -c 'import click'": [sys.executable, "-c", "import click"],
        "kdeploy --help": [kdeploy, "--help"],
        "kdeploy ps (8 deployments)": [kdeploy, "ps"],
    }
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder))
        env = {**os.environ, "KDEPLOY_STATE_DIR": folder}
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                samples[name].append(measure(command, env))
    walls = {name: statistics.median(wall for wall, _ in runs) for name, runs in samples.items()}
    cpus = {name: statistics.median(cpu for _, cpu in runs) for name, runs in samples.items()}
    base = next(iter(commands))
    print(f"{'':<28}{'wall':>9}{'ratio':>8}{'cpu':>9}{'ratio':>8}   ({rounds} interleaved rounds, medians)")
    for name in commands:
        wall, cpu = walls[name], cpus[name]
        ratios = f"{wall / walls[base]:>8.2f}", f"{cpu / cpus[base]:>8.2f}"
        print(f"{name:<28}{1000 * wall:>6.1f} ms{ratios[0]}{1000 * cpu:>6.1f} ms{ratios[1]}")
    return int(any(walls[name] / walls[base] > LIMIT for name in list(commands)[1:]))


if __name__ == "__main__":
    sys.exit(main())
