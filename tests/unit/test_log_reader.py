"""vLLM's log as bytes: phases, progress, facts and trouble, whatever shape the bytes have."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.engine.diagnosis import diagnose
from deploy.engine.log import PIECE_LIMIT, RECENT, LogReader, Sighting
from deploy.lifecycle.states import is_later

RECORDED = Path(__file__).parent.parent / "logs"


def read(*chunks: bytes) -> tuple[LogReader, list[Sighting]]:
    reader = LogReader()
    sightings = [sighting for chunk in chunks for sighting in reader.feed(chunk)]
    return reader, sightings + reader.finish()


def phases(sightings: Iterable[Sighting]) -> list[str]:
    """The phases as the lifecycle takes them: one that was passed is never entered again."""
    passed: list[str] = []
    for sighting in sightings:
        if sighting.kind == "phase" and is_later(sighting.data["phase"], passed[-1] if passed else None):
            passed.append(sighting.data["phase"])
    return passed


def shards(sightings: Iterable[Sighting]) -> list[tuple[int, int, int]]:
    return [(s.data["done"], s.data["total"], s.data["pass"]) for s in sightings if s.kind == "shards"]


def trouble(sightings: Iterable[Sighting]) -> list[tuple[int, str]]:
    return [tuple(s.data["line"]) for s in sightings if s.kind == "trouble"]


# ---------------------------------------------------------------- bars

BAR = b"Loading safetensors checkpoint shards:  12% Completed | 8/66 [00:01<00:08,  6.50it/s]"


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"\r" + BAR + b"\n", id="vLLM-0.33"),
        pytest.param(b"(Worker_TP0 pid=154) \r" + BAR + b"\n", id="a-prefix-before-the-return"),
        pytest.param(b"\x1b[1;36m(Worker_TP0 pid=154)\x1b[0;0m " + BAR + b"\n", id="a-coloured-prefix"),
        pytest.param(b"(APIServer pid=1) (EngineCore_DP0 pid=283) (Worker_TP5 pid=299) " + BAR + b"\n", id="prefixes"),
        pytest.param(
            b"(EngineCore pid=274) \n 12% Completed | 8/66 [00:01<00:08,  6.50it/s]\n", id="cut-after-the-prefix"
        ),
        pytest.param(b"(EngineCore pid=274) Loading safetensors \x1b[A" + BAR, id="never-ended"),
        pytest.param(b"\r\r\n" + BAR + b"\r\n", id="windows-ends"),
        pytest.param(b"\xff\xfe\x00" + BAR + b"\xe2\x96\n", id="bytes-that-are-no-text"),
        pytest.param(BAR.replace(b"safetensors checkpoint", b"pt checkpoint") + b"\n", id="pt"),
        pytest.param(BAR.replace(b"Loading safetensors checkpoint", b"Multi-thread loading") + b"\n", id="threads"),
        pytest.param(BAR.replace(b" checkpoint shards", b" using Runai Model Streamer") + b"\n", id="runai"),
        pytest.param(BAR.replace(b" checkpoint shards", b" using Fastsafetensor loader") + b"\n", id="fastsafetensors"),
        pytest.param(BAR.replace(b"shards:", b"shards (eager):") + b"\n", id="eager-strategy"),
    ],
)
def test_a_bar_is_read_in_every_shape_that_was_seen(raw: bytes) -> None:
    _, sightings = read(raw)
    assert shards(sightings) == [(8, 66, 1)]
    assert phases(sightings) == ["init", "weights"]


def bar(done: int, total: int) -> bytes:
    percent = 100 * done // total if total else 0
    return f"\rLoading safetensors checkpoint shards: {percent:3d}% Completed | {done}/{total} [00:01<00:08]\n".encode()


def test_two_bars_glued_into_one_line_both_count() -> None:
    _, sightings = read(bar(8, 66)[:-1] + bar(9, 66)[1:])
    assert shards(sightings) == [(8, 66, 1), (9, 66, 1)]


def test_only_the_first_and_the_last_percent_may_come() -> None:
    _, sightings = read(bar(0, 6) + bar(6, 6))
    assert shards(sightings) == [(0, 6, 1), (6, 6, 1)]


def test_a_bar_that_is_drawn_by_every_rank_or_twice_does_not_go_back() -> None:
    _, sightings = read(b"".join(bar(done, 4) for done in (0, 0, 1, 0, 1, 2, 1, 2, 4, 3, 4, 4)))
    assert shards(sightings) == [(0, 4, 1), (1, 4, 1), (2, 4, 1), (4, 4, 1)]


@pytest.mark.parametrize("total", [4, 1])
def test_a_draft_model_is_a_second_pass_not_a_step_back(total: int) -> None:
    _, sightings = read(bar(0, 4) + bar(4, 4) + bar(0, total) + bar(total, total))
    assert shards(sightings) == [(0, 4, 1), (4, 4, 1), (0, total, 2), (total, total, 2)]


def test_a_draft_model_whose_first_drawing_is_missing_is_a_second_pass_too() -> None:
    _, sightings = read(bar(0, 4) + bar(4, 4) + bar(1, 1))
    assert shards(sightings) == [(0, 4, 1), (4, 4, 1), (1, 1, 2)]


def test_a_bar_of_nothing_is_no_progress() -> None:
    assert shards(read(bar(0, 0))[1]) == []


def test_a_bar_in_bytes_tells_the_phase_and_no_shards() -> None:
    _, sightings = read(
        b"\rLoading safetensors using InstantTensor loader:   2% Completed | 12.3G/554G [00:03<02:10]\n"
    )
    assert shards(sightings) == []
    assert phases(sightings) == ["init", "weights"]


def test_a_graph_bar_is_seen_while_it_is_still_being_drawn_over() -> None:
    reader = LogReader()
    sightings = reader.feed(b"Capturing CUDA graphs (PIECEWISE):   0%|          | 0/5 [00:00<?, ?it/s]\r")
    assert "graphs" in phases(sightings)
    sightings = reader.feed(b"Capturing CUDA graphs (PIECEWISE):  40%|####      | 2/5 [00:01<00:01]\r")
    assert reader.tail()[-1].text.startswith("Capturing CUDA graphs (PIECEWISE):  40%")


# ---------------------------------------------------------------- whole starts

V2_START = b"""\
(APIServer pid=10) INFO 12-01 10:00:00 [startup.py:39] version 0.33.0\r
(EngineCore pid=11) INFO 12-01 10:00:09 [core.py:140] Initializing a V1 LLM engine (v0.33.0) with config: model='m', \
enforce_eager=False, kv_cache_dtype=fp8
(Worker pid=12) INFO 12-01 10:00:10 [pynccl.py:148] vLLM is using nccl==2.28.9
(Worker_TP0 pid=12) INFO 12-01 10:00:12 [gpu_worker.py:513] Using V2 Model Runner
(Worker_TP0 pid=12) INFO 12-01 10:00:12 [model_runner.py:399] Loading model from scratch...
(Worker_TP0 pid=12) INFO 12-01 10:00:13 [weight_utils.py:1145] Filesystem type for checkpoints: EXT4. Checkpoint size: \
554.10 GiB. Available RAM: 900.00 GiB.
\rLoading safetensors checkpoint shards:   0% Completed | 0/2 [00:00<?, ?it/s]
\rLoading safetensors checkpoint shards: 100% Completed | 2/2 [00:40<00:00, 20.00s/it]
(Worker_TP0 pid=12) INFO 12-01 10:00:53 [default_loader.py:507] Loading weights took 40.12 seconds
(Worker_TP1 pid=13) INFO 12-01 10:00:54 [model_runner.py:429] Model loading took 72.5 GiB memory and 41.200000 seconds
(Worker_TP0 pid=12) INFO 12-01 10:00:54 [model_runner.py:429] Model loading took 72.5 GiB memory and 41.300000 seconds
(Worker_TP0 pid=12) INFO 12-01 10:00:55 [monitor.py:40] Starting torch.compile
(Worker_TP0 pid=12) INFO 12-01 10:01:05 [backends.py:1188] Dynamo bytecode transform time: 9.81 s
(Worker_TP0 pid=12) INFO 12-01 10:01:30 [monitor.py:20] torch.compile took 34.20 s in total
Capturing CUDA graphs (PIECEWISE): 100%|##########| 2/2 [00:01<00:00]
(Worker_TP0 pid=12) INFO 12-01 10:01:33 [model_runner.py:1164] Graph capturing finished in 2 secs, took 0.31 GiB
(Worker_TP0 pid=12) INFO 12-01 10:01:34 [gpu_worker.py:773] Available KV cache memory: 11.37 GiB
(EngineCore pid=11) INFO 12-01 10:01:34 [kv_cache_utils.py:1148] GPU KV cache size: 301,504 tokens, Maximum \
concurrency for 131,072 tokens per request: 2.30x
(Worker_TP0 pid=12) INFO 12-01 10:01:35 [kernel_warmup.py:179] JIT kernel warmup starting.
(Worker_TP0 pid=12) INFO 12-01 10:01:35 [kernel_warmup.py:295] Warming up FlashInfer attention.
(Worker_TP0 pid=12) INFO 12-01 10:01:39 [kernel_warmup.py:192] JIT kernel warmup finished in 4.01s.
Capturing CUDA graphs (PIECEWISE): 100%|##########| 51/51 [00:20<00:00]
(Worker_TP0 pid=12) INFO 12-01 10:02:10 [model_runner.py:1164] Graph capturing finished in 30 secs, took 1.02 GiB
(EngineCore pid=11) INFO 12-01 10:02:11 [core.py:396] init engine (profile, create kv cache, warmup model) took 77.0 s
(APIServer pid=10) INFO 12-01 10:02:12 [entry.py:139] Starting vLLM server on http://127.0.0.1:8000
INFO:     Application startup complete.
"""


def first_line_of(log: bytes, phase: str) -> bytes:
    """The first line after which `phase` is known."""
    reader = LogReader()
    for line in log.splitlines(keepends=True):
        if phase in phases(reader.feed(line)):
            return line
    raise AssertionError(f"{phase} was never seen")


def test_the_phases_of_a_start_on_gpus() -> None:
    reader, sightings = read(V2_START)
    assert phases(sightings) == ["init", "weights", "compile", "graphs", "warmup"]
    assert b"Loading model from scratch" in first_line_of(V2_START, "weights")
    assert b"Model loading took" in first_line_of(V2_START, "compile")
    assert b"Capturing CUDA graphs" in first_line_of(V2_START, "graphs")
    assert reader.facts == {
        "engine_version": "0.33.0",
        "weights_s": 40.12,
        "model_gib": 72.5,
        "kv_cache_gib": 11.37,
        "kv_cache_tokens": 301504,
        "max_concurrency": 2.3,
    }
    assert trouble(sightings) == []


def test_the_first_capture_only_measures_and_does_not_end_the_graphs() -> None:
    assert first_line_of(V2_START, "warmup").endswith(b"Graph capturing finished in 30 secs, took 1.02 GiB\n")


def test_the_kernels_that_are_warmed_up_before_the_graphs_are_not_the_last_warmup() -> None:
    without_estimate = V2_START.replace(b"Capturing CUDA graphs (PIECEWISE): 100%|##########| 2/2 [00:01<00:00]\n", b"")
    assert phases(read(without_estimate)[1]) == ["init", "weights", "compile", "graphs", "warmup"]


def test_an_eager_engine_compiles_nothing_and_captures_nothing() -> None:
    eager = b"".join(
        line
        for line in V2_START.replace(b"enforce_eager=False", b"enforce_eager=True").splitlines(keepends=True)
        if b"compile" not in line and b"Dynamo" not in line and b"Captur" not in line and b"captur" not in line
    )
    assert phases(read(eager)[1]) == ["init", "weights", "warmup"]


def test_the_phases_of_a_start_on_a_cpu() -> None:
    log = b"""\
(Worker_TP0 pid=7) INFO 12-01 03:55:32 [cpu_model_runner.py:68] Starting to load model /m...
(Worker_TP0 pid=7) INFO 12-01 03:55:32 [default_loader.py:501] Loading weights took 0.01 seconds
(Worker_TP0 pid=7) INFO 12-01 03:55:33 [cpu_model_runner.py:87] Warming up model for the compilation...
(Worker_TP0 pid=7) INFO 12-01 03:56:11 [cpu_model_runner.py:91] Warming up done.
(EngineCore pid=6) INFO 12-01 03:56:11 [kv_cache_utils.py:2327] CPU KV cache size: 4,096 tokens, Maximum concurrency \
for 256 tokens per request: 16.00x
(EngineCore pid=6) INFO 12-01 03:56:12 [core.py:402] init engine (profile, create kv cache, warmup model) took 39.21 s
"""
    assert phases(read(log)[1]) == ["init", "weights", "compile", "warmup"]
    assert b"for the compilation" in first_line_of(log, "compile")
    assert b"CPU KV cache size" in first_line_of(log, "warmup")


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("Starting to load model /models/kimi...", "weights"),
        ("Loading model from scratch...", "weights"),
        ("Filesystem type for checkpoints: EXT4. Checkpoint size: 0.05 GiB. Available RAM: 19.69 GiB.", "weights"),
        ("Model loading took 72.5 GiB memory and 41.2 seconds", "compile"),
        ("Starting torch.compile", "compile"),
        ("[encoder] Dynamo bytecode transform time: 9.81 s", "compile"),
        ("Compiling a graph for compile range (1, 8192) takes 12.1 s", "compile"),
        ("torch.compile took 34.20 s in total", "compile"),
        ("Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 1.2 s", "compile"),
        ("Directly load AOT compilation from path /home/me/.cache/vllm/x", "compile"),
        ("Warming up model for the compilation...", "compile"),
        ("Profiling CUDA graph memory: PIECEWISE=51 (largest=512)", "graphs"),
        ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/33", "graphs"),
        ("Capturing multi-module MTP CUDA graphs (FULL):   0%|          | 0/33", "graphs"),
        ("Capturing prefill CUDA graphs (FULL):   0%|          | 0/33", "graphs"),
        ("CPU KV cache size: 4,096 tokens, Maximum concurrency for 256 tokens per request: 16.00x", "warmup"),
        ("init engine (profile, create kv cache, warmup model) took 77.0 s (compilation: 34.2 s)", "warmup"),
        ("Starting vLLM server on http://127.0.0.1:8000", "warmup"),
    ],
)
def test_every_text_that_proves_a_phase_is_seen(text: str, phase: str) -> None:
    _, sightings = read(f"(Worker_TP0 pid=7) INFO 12-01 10:00:00 [x.py:1] {text}\n".encode())
    assert phases(sightings) == ["init", phase]


def test_facts_of_versions_that_write_two_lines() -> None:
    reader, _ = read(
        b"(APIServer pid=1) INFO 12-01 10:00:00 [utils.py:1] vLLM API server version 0.20.2\n"
        b"(EngineCore pid=9) INFO 12-01 10:00:00 [kv_cache_utils.py:9] GPU KV cache size: 301,504 tokens\n"
        b"(EngineCore pid=9) INFO 12-01 10:00:00 [kv_cache_utils.py:9] Maximum concurrency for 131,072 tokens per "
        b"request: 2.30x\n"
    )
    assert reader.facts == {"engine_version": "0.20.2", "kv_cache_tokens": 301504, "max_concurrency": 2.3}


# ---------------------------------------------------------------- lines that look alarming and are not

BENIGN = [
    "(APIServer pid=9) WARNING 12-01 10:00:00 [interface.py:1466] Unknown vLLM environment variable detected: VLLM_X",
    "(Worker_TP0 pid=9) WARNING 12-01 10:00:00 [custom_all_reduce.py:1] Custom allreduce is disabled because it's not "
    "supported on more than two PCIe-only GPUs. To silence this warning, specify disable_custom_all_reduce=True.",
    "(Worker_TP0 pid=9) WARNING 12-01 10:00:00 [symm_mem.py:1] SymmMemCommunicator: Device capability 12.0 not "
    "supported, communicator is not available.",
    "(EngineCore pid=9) INFO 12-01 10:00:00 [shm_broadcast.py:112] No available shared memory broadcast block found in "
    "60 seconds. This typically happens when some processes are hanging or doing some time-consuming work.",
    "(Worker_TP0 pid=9) WARNING 12-01 10:00:00 [fused_moe.py:1166] Using default MoE config. Performance might be "
    "sub-optimal! Config file not found at /x/E=256,N=192.json",
    "(Worker_TP0 pid=9) WARNING 12-01 10:00:00 [x.py:1] Flashinfer allreduce fusion is not supported for world size 8",
    "(Worker_TP0 pid=9) WARNING 12-01 10:00:00 [x.py:1] AllReduce fusion pass is disabled",
    "(Worker_TP0 pid=9) WARNING 12-01 10:00:00 [modelopt.py:1] Detected ModelOpt NVFP4 checkpoint (quant_algo=NVFP4). "
    "Please note that the format is experimental and could change in future.",
    "(Worker_TP0 pid=9) WARNING 12-01 10:00:00 [modelopt.py:1] w1_weight_scale_2 does not match w3_weight_scale_2",
    "(APIServer pid=9) WARNING 12-01 10:00:00 [system_utils.py:255] Found ulimit of 20000 and failed to automatically "
    "increase with error current limit exceeds maximum limit. This can cause fd limit errors like `OSError: [Errno 24] "
    "Too many open files`. Consider increasing with ulimit -n",
    "(Worker pid=422) (Worker pid=421) WARNING 12-01 10:00:00 [x.py:1] failed to import the tuned table, error 3",
    "\x1b[1;36m(APIServer pid=9)\x1b[0;0m INFO 12-01 10:00:00 [x.py:1] Failed to import from vllm._C",
    "INFO 12-01 10:00:00 [x.py:1] Triton failed to initialise; disabled",
    'INFO:     127.0.0.1:46714 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error',
    "(APIServer pid=9) WARNING 12-01 10:00:00 [vllm.py:1703] Enforce eager set, disabling torch.compile, CUDAGraphs, "
    "and JIT kernel warmup.",
]


@pytest.mark.parametrize("line", BENIGN)
def test_a_line_that_only_looks_alarming_is_no_trouble_and_no_phase(line: str) -> None:
    reader, sightings = read(line.encode() + b"\n")
    assert sightings == [Sighting("phase", {"phase": "init"})]
    found = diagnose([], exit_code=1, signal=None, tail=reader.tail())
    assert found["cause"] == "engine-died"
    assert "log says" not in found["summary"]


@pytest.mark.parametrize(
    "line",
    [
        "(EngineCore pid=9) ERROR 12-01 10:00:00 [core.py:1510] ValueError: No available memory for the cache blocks.",
        "ValueError: No available memory for the cache blocks.",
        "node:7:9 [0] enqueue.cc:99 NCCL WARN Failed to CUDA calloc 10485760 bytes",
        "\x1b[31m(Worker_TP0 pid=9) ERROR 12-01 10:00:00 [x.py:1]\x1b[0m torch.OutOfMemoryError: CUDA out of memory.",
        '{"level": "ERROR", "message": "RuntimeError: it broke"}',
        "Killed",
    ],
)
def test_real_trouble_is_kept_with_the_number_of_its_line_and_without_colours(line: str) -> None:
    _, sightings = read(b"one\ntwo\r\n" + line.encode() + b"\nfour\n")
    ((number, text),) = trouble(sightings)
    assert number == 3
    assert "\x1b" not in text
    assert text.split("]")[-1].strip() in line


def test_line_numbers_are_those_of_an_editor() -> None:
    raw = b"Error: a\n\n\rbar\rbar\r\nError: b\n" + b"x" * (PIECE_LIMIT * 2) + b"\nError: c\n\rError: d"
    _, sightings = read(raw)
    lines = raw.split(b"\n")
    assert [number for number, _ in trouble(sightings)] == [1, 4, 6, 7]
    for number, text in trouble(sightings):
        assert text.encode() in lines[number - 1]


# ---------------------------------------------------------------- bytes


def test_a_line_without_an_end_is_looked_at_once_and_does_not_fill_the_memory() -> None:
    reader = LogReader()
    sightings = reader.feed(b"RuntimeError: at its head " + b"x" * (1 << 20))
    for _ in range(20):
        sightings += reader.feed(b"y RuntimeError: far behind " * 4000)
        assert len(reader.rest) <= PIECE_LIMIT
    sightings += reader.feed(b"\nRuntimeError: the next line\n")
    texts = [text for _, text in trouble(sightings)]
    assert len(texts) == 2
    assert texts[0].startswith("RuntimeError: at its head")
    assert len(texts[0]) <= 2000
    assert texts[1] == "RuntimeError: the next line"


def test_a_character_that_a_flush_has_cut_is_whole_in_the_end() -> None:
    reader = LogReader()
    assert trouble(reader.feed(b"RuntimeError: caf\xc3")) == []
    assert trouble(reader.feed(b"\xa9\n")) == [(1, "RuntimeError: café")]


def test_nothing_in_an_empty_log() -> None:
    reader, sightings = read(b"", b"\n", b"  \r\n", b"\n")
    assert sightings == []
    assert reader.tail() == []


def test_the_last_words_are_shown_without_colours_bars_and_empty_lines() -> None:
    reader, _ = read(b"0\n1\n\x1b[1;31m2\x1b[0m\x00\n\n3\r\n\r 10% |#\r 20% |##\n   \n" + "█ fünf".encode())
    assert [(line.number, line.text) for line in reader.tail()] == [(3, "2"), (5, "3"), (6, "20% |##"), (8, "█ fünf")]
    assert len(reader.tail()) == RECENT


WORDS = [
    b"\n",
    b"\r",
    b"\r\n",
    b" ",
    b"\x00",
    b"\xe2\x96\x88",
    b"\xff",
    b"\x1b[1;36m",
    b"x" * 300,
    b"y" * PIECE_LIMIT,
    b"(Worker_TP0 pid=154) ",
    b"(Worker_TP0 pid=154) INFO 12-01 10:00:00 ",
    BAR,
    bar(0, 3),
    bar(3, 3),
    b"RuntimeError: it broke",
    b"Starting to load model /m...",
    b"Model loading took 72.5 GiB memory",
    b"GPU KV cache size: 301,504 tokens, ",
    b"Graph capturing finished in 2 secs",
    b"Capturing CUDA graphs (decode, FULL):  50%|##| 1/2",
    *V2_START.splitlines(keepends=True),
]


@settings(max_examples=300, deadline=None)
@given(words=st.lists(st.sampled_from(WORDS), max_size=25), data=st.data())
def test_how_the_bytes_are_cut_makes_no_difference(words: list[bytes], data: st.DataObject) -> None:
    log = b"".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=12)))
    pieces = [log[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(log)], strict=True)]
    whole, at_once = read(log)
    parts, piecewise = read(*pieces)
    assert piecewise == at_once
    assert parts.tail() == whole.tail()
    assert parts.facts == whole.facts


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=2000))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    reader, _ = read(raw)
    reader.tail()
    assert reader.newlines == raw.count(b"\n")


def test_a_real_start_cut_at_every_byte_reads_the_same() -> None:
    _, at_once = read(V2_START)
    for size in (1, 2, 3, 7, 64, 1000):
        assert read(*[V2_START[at : at + size] for at in range(0, len(V2_START), size)])[1] == at_once


# ---------------------------------------------------------------- recorded logs: a new case is a new file


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.log")), ids=lambda path: path.stem)
def test_a_recorded_log_tells_what_stands_beside_it(path: Path) -> None:
    expected: dict[str, Any] = json.loads(path.with_suffix(".expected.json").read_text())
    reader, sightings = read(path.read_bytes())
    lines = [sighting.data["line"] for sighting in sightings if sighting.kind == "trouble"]
    found = diagnose(lines, exit_code=expected.get("exit", 1), signal=expected.get("signal"), tail=reader.tail())
    if "phases" in expected:
        assert [phase for phase in phases(sightings) if phase != "spawn"] == [
            phase for phase in expected["phases"] if phase not in ("spawn", "canary")
        ]
    if "shards_total" in expected:
        assert (reader.shards or (0, 0))[1] == (expected["shards_total"] or 0)
    if "cause" in expected:
        # a log of a run that ended well has no cause: nothing in it may look like one
        assert found["cause"] == (expected["cause"] or "engine-died")
    for name, value in expected.get("facts", {}).items():
        assert reader.facts[name] == value


def test_every_recorded_log_has_its_expectation_and_every_expectation_its_log() -> None:
    logs = {path.name.removesuffix(".log") for path in RECORDED.glob("*.log")}
    assert logs == {path.name.removesuffix(".expected.json") for path in RECORDED.glob("*.expected.json")}
