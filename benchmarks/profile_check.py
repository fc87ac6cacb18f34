#!/usr/bin/env python3
"""What `profile check` and `render` cost, as ratios to `python -c 'import click'` run beside them.

    python benchmarks/profile_check.py [--rounds N] [--profile NAME]

Whole processes, interleaved rounds, medians. The engine's parser was asked once before, and its answer is remembered;
where no engine is installed, the shipped catalogue serves. To reach: a check within 0.3 s of the command's own start.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 0.3


def seconds(command: list[str]) -> float:
    """Wall-clock of one run."""
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> int:
    """Measure and print; 1 when a check takes longer than the limit beyond the start."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--profile", default="tiny-moe")
    options = parser.parse_args()
    kdeploy = str(Path(sys.executable).with_name("kdeploy"))
    commands = {
        "python -c 'import click'": [sys.executable, "-c", "import click"],
        "kdeploy --help": [kdeploy, "--help"],
        "kdeploy profile check": [kdeploy, "profile", "check", options.profile],
        "kdeploy render": [kdeploy, "render", options.profile],
    }
    seconds(commands["kdeploy profile check"])
    samples: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, command in commands.items():
            samples[name].append(seconds(command))
    medians = {name: statistics.median(runs) for name, runs in samples.items()}
    base = next(iter(commands))
    for name, median in medians.items():
        print(f"{name:<28}{1000 * median:>7.1f} ms{median / medians[base]:>7.2f} x")
    beyond = medians["kdeploy profile check"] - medians["kdeploy --help"]
    print(f"{'check, beyond the start':<28}{1000 * beyond:>7.1f} ms   ({options.rounds} interleaved rounds, medians)")
    return int(beyond > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
