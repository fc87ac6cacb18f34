#!/usr/bin/env python3
"""The load on the real engine: kdeploy beside the bare engine, cold and warm; reading ahead beside the disk's own rate.

    python benchmarks/load.py [--pairs N] [--size-mib M] [--part pairs|read|all]

pairs: `kdeploy up` and the same command line by itself, in turns, once with no weight in the page cache and once with
all of them there (each proven by residency). Compared are vLLM's own figure for its weights phase and the time from the
start until /health answers; kdeploy's canary comes after that and is not part of it.
read: the prewarmer alone, from nothing in the cache, beside O_DIRECT reads of the same files, in turns.
Wanted: weights phase cold at most 0.5 of the bare engine's; warm start at most 1.02 of it and half a second; the
prewarmer at least 0.85 of the disk and at most 1.05 times the bytes.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import datetime
from pathlib import Path
from statistics import median

from deploy.host.pagecache import drop, resident_share
from deploy.host.storage import probe_rate
from deploy.warm.client import start_warm

ROOT = Path(__file__).resolve().parents[1]
KDEPLOY = str(Path(sys.executable).with_name("kdeploy"))
WEIGHTS_TOOK = re.compile(rb"Loading weights took ([0-9.]+) seconds")
PORT = 18765
LIMIT_S = 900


def files_of(folder: Path) -> list[tuple[str, int]]:
    """(path, bytes) of the shards."""
    return [(str(path), path.stat().st_size) for path in sorted(folder.glob("*.safetensors"))]


def make_cold(folder: Path) -> None:
    """No page of the shards in memory, proven."""
    files = files_of(folder)
    for path, _ in files:
        drop(path)
    share = resident_share(files)
    assert share < 0.02, f"{share:.0%} of the shards stay in memory: something has them mapped"


def make_warm(folder: Path) -> None:
    """Every page in memory, proven."""
    files = files_of(folder)
    for path, _ in files:
        with open(path, "rb") as file:
            while file.read(8 << 20):
                pass
    share = resident_share(files)
    assert share > 0.98, f"only {share:.0%} of the shards stay in memory: not enough of it for this size"


def await_health(limit_s: float) -> None:
    """Until the engine answers."""
    until = time.monotonic() + limit_s
    while True:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=10).close()
            return
        assert time.monotonic() < until, "the engine does not answer"
        time.sleep(0.1)


def took(log: bytes) -> float:
    """Seconds of the weights phase, of the slowest rank that tells."""
    return max(float(seconds) for seconds in WEIGHTS_TOOK.findall(log))


def arguments(folder: Path) -> list[str]:
    """The profile as both sides run it."""
    return ["tiny-moe", "--set", f"model.path={folder}", "--set", f"serve.port={PORT}"]


def bare(folder: Path, state: str) -> tuple[float, float]:
    """(weights phase, start to /health) in seconds of the command line by itself."""
    env = {**os.environ, "KDEPLOY_STATE_DIR": state}
    told = subprocess.run(
        [KDEPLOY, "render", *arguments(folder), "--format", "json"], env=env, check=True, capture_output=True
    )
    plan = json.loads(told.stdout)
    with tempfile.TemporaryFile() as log:
        began = time.monotonic()
        engine = subprocess.Popen(
            plan["argv"],
            env={**os.environ, **{key: value for key, value in plan["env"].items() if value is not None}},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            await_health(LIMIT_S)
            ready = time.monotonic() - began
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(engine.pid, signal.SIGTERM)
            engine.wait()
        log.seek(0)
        return took(log.read()), ready


def supervised(folder: Path, state: str) -> tuple[float, float]:
    """(weights phase, start to /health) in seconds of `kdeploy up`: the command's own seconds count."""
    env = {**os.environ, "KDEPLOY_STATE_DIR": state}
    began = time.time()
    done = subprocess.run(
        [KDEPLOY, "up", *arguments(folder), "--json"], env=env, check=True, capture_output=True, timeout=LIMIT_S
    )
    phases = json.loads(done.stdout)["phases"]
    ready = datetime.fromisoformat(phases[-1]["started_at"]).timestamp() - began
    assert phases[-1]["phase"] == "canary"
    log = Path(json.loads(done.stdout)["log"]).read_bytes()
    subprocess.run([KDEPLOY, "down", "tiny-moe"], env=env, check=True, capture_output=True)
    return took(log), ready


def pairs(folder: Path, count: int) -> None:
    """kdeploy beside the bare engine."""
    for state_of_cache, prepare in (("cold", make_cold), ("warm", make_warm)):
        ours: list[tuple[float, float]] = []
        theirs: list[tuple[float, float]] = []
        with tempfile.TemporaryDirectory() as state:
            for number in range(count):
                sides = [(bare, theirs), (supervised, ours)]
                for run, results in sides if number % 2 == 0 else reversed(sides):
                    prepare(folder)
                    results.append(run(folder, state))
        for index, what in ((0, "weights phase"), (1, "until /health")):
            a, b = median(one[index] for one in ours), median(one[index] for one in theirs)
            every = " ".join(f"{one[index]:.1f}/{other[index]:.1f}" for one, other in zip(ours, theirs, strict=True))
            print(f"{state_of_cache} {what:<14} kdeploy {a:6.2f} s  bare {b:6.2f} s  {a / b:.2f}x   ({every})")


def read_once(folder: Path) -> tuple[float, float]:
    """(bytes a second, bytes fetched for each byte of the checkpoint) of the prewarmer."""
    make_cold(folder)
    files = files_of(folder)
    total = sum(size for _, size in files)
    before = disk_bytes(files[0][0])
    began = time.monotonic()
    warm = start_warm(files)
    while not warm.over:
        warm.poll()
        time.sleep(0.01)
    elapsed = time.monotonic() - began
    assert warm.report["state"] == "done", warm.report
    return total / elapsed, (disk_bytes(files[0][0]) - before) / total


def disk_bytes(path: str) -> int:
    """Bytes that the disk under `path` has read, by its own counter."""
    device = os.stat(path).st_dev
    stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
    return 512 * int(stat[2])


def read(folder: Path, count: int) -> None:
    """The prewarmer beside O_DIRECT."""
    ours, theirs = [], []
    for _ in range(count):
        make_cold(folder)
        rate = probe_rate(files_of(folder), limit_s=10)
        assert rate is not None, "no O_DIRECT here"
        theirs.append(rate)
        ours.append(read_once(folder))
    a, b = median(rate for rate, _ in ours), median(theirs)
    print(
        f"read ahead {a / 1e9:.2f} GB/s, O_DIRECT {b / 1e9:.2f} GB/s: {a / b:.2f} of the disk, "
        f"{median(share for _, share in ours):.2f} bytes read for each byte"
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--size-mib", type=int, default=4096)
    parser.add_argument("--checkpoint", type=Path, help="where it is kept (default: the cache folder)")
    parser.add_argument("--part", choices=("pairs", "read", "all"), default="all")
    options = parser.parse_args()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kdeploy"
    folder = options.checkpoint or cache / f"benchmark-{options.size_mib}"
    make = [
        str(ROOT / "scripts/make-tiny-checkpoint"),
        "--shards",
        "12",
        "--size-mib",
        str(options.size_mib),
        str(folder),
    ]
    if not (folder / "model.safetensors.index.json").exists():
        subprocess.run(make, check=True)
    if options.part != "pairs":
        read(folder, options.pairs)
    if options.part != "read":
        pairs(folder, options.pairs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
