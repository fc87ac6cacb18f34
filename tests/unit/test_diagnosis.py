"""Why an engine failed: real-looking texts of every known failure, and what is said about those that are not known."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from deploy.engine.diagnosis import diagnose, explain
from deploy.engine.knowledge import BENIGN, SYMPTOM, WRAPPER, Entry, entries
from deploy.engine.log import LogReader
from deploy.engine.remedies import Context
from deploy.engine.trouble import Trouble, look_up

ROOT = Path(__file__).resolve().parents[2]

WRAPPERS = [
    "(EngineCore pid=9) ERROR 12-01 10:00:00 [core.py:1510] Exception: WorkerProc initialization failed due to an "
    "exception in a background process. See stack trace for root cause.",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}",
]
SERVER_GONE = [
    "(EngineCore pid=9) ERROR 12-01 10:00:00 [core.py:1512] EngineCore encountered a fatal error.",
    "(EngineCore pid=9) ERROR 12-01 10:00:00 [core.py:1512] RuntimeError: Executor failed.",
    "(APIServer pid=7) ERROR 12-01 10:00:00 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
    "encountered an issue. See stack trace (above) for the root cause.",
]


def samples() -> list[tuple[str, str, str]]:
    """(id, severity, sample) of every entry of the YAML file."""
    known = yaml.safe_load((ROOT / "deploy/engine/knowledge.yaml").read_text())
    return [(entry["id"], entry["severity"], entry["sample"]) for entry in known]


class Sample(NamedTuple):
    """A line as vLLM or the library below writes it, its cause, and what must appear in summary and fix."""

    text: str
    cause: str
    told: str = ""
    fix: str = ""
    retryable: bool = False


SAMPLES = [
    Sample("vllm: error: unrecognized arguments: --foo", "bad-arguments", "--foo", "args"),
    Sample("vllm serve: error: argument --port: invalid int value: 'x'", "bad-arguments", "argument --port"),
    Sample("vllm serve: error: ambiguous option: --max could match --max-num-seqs", "bad-arguments", "ambiguous"),
    Sample("OSError: [Errno 98] Address already in use", "port-in-use", fix="--port"),
    Sample(
        "OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
        "port-in-use",
    ),
    Sample("KeyError: \"Reasoning parser 'x' not found. Available parsers: a, b\"", "bad-arguments", "parser 'x'"),
    Sample("KeyError: 'invalid reasoning parser: x (chose from { a,b })'", "bad-arguments", "parser: x", "kimi_k2"),
    Sample("KeyError: 'invalid tool call parser: x (chose from { a,b })'", "bad-arguments", "parser: x", "kimi_k2"),
    Sample(
        "ValueError: Total number of attention heads (64) must be divisible by tensor parallel size (3).",
        "tensor-parallel-invalid",
        "64 attention heads cannot be split over 3",
        "divisor of 64",
    ),
    Sample(
        "  Value error, User-specified max_model_len (999999) is greater than the derived max_model_len "
        "(max_position_embeddings=262144 or model_max_length=None in model's config.json). [type=value_error]",
        "context-too-long",
        "999999",
        "serve.max_model_len=262144",
    ),
    Sample(
        "ValueError: World size (8) is larger than the number of available GPUs (4) in this node.", "too-few-gpus", "8"
    ),
    Sample("ValueError: World size (8) is larger than the number of available GPUs", "too-few-gpus", "8 ranks"),
    Sample(
        "ValueError: tp_size=8 must be divisible by dcp_size=3.",
        "tensor-parallel-invalid",
        "context parallel 3",
        "of 8",
    ),
    Sample(
        "ValueError: Unknown attention backend: 'B12X_MLA_SPARSE'. Valid options are: FLASH_ATTN, TRITON_MLA",
        "bad-arguments",
        "B12X_MLA_SPARSE",
    ),
    Sample(
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
        "'/models/kimi'. Use `repo_type` argument if needed.",
        "model-not-found",
        "/models/kimi",
        "model.path",
    ),
    Sample(
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the "
        "specified revision on the local disk and outgoing traffic has been disabled.",
        "model-not-found",
    ),
    Sample("huggingface_hub.errors.GatedRepoError: 403 Client Error.", "model-gated", fix="HF_TOKEN: ${env:HF_TOKEN}"),
    Sample("requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url", "model-gated"),
    Sample("OSError: You are trying to access. Cannot access gated repo for url", "model-gated"),
    Sample(
        "ValueError: Loading /m requires you to execute the configuration file in that repo on your local machine. "
        "Make sure you have read the code there, then set the option `trust_remote_code=True` to remove this error.",
        "trust-remote-code",
    ),
    Sample(
        "  Value error, The repository /m contains custom code which must be executed to correctly load the model.",
        "trust-remote-code",
    ),
    Sample(
        "RuntimeError: Failed to load the model config. If the model is a custom model not yet available in the "
        "HuggingFace transformers library, consider setting `trust_remote_code=True` in LLM or using the "
        "`--trust-remote-code` flag in the CLI.",
        "trust-remote-code",
    ),
    Sample(
        "  Value error, Model architectures ['KimiK9ForCausalLM'] are not supported for now. Supported archs: x",
        "model-unsupported",
        "KimiK9ForCausalLM",
    ),
    Sample(
        "ValueError: The quantization method modelopt_fp4 is not supported for the current GPU. Minimum capability: "
        "100. Current capability: 90.",
        "quantization-unsupported",
        "modelopt_fp4",
    ),
    Sample("RuntimeError: Cannot find any model weights with `/models/kimi`", "checkpoint-damaged", "/models/kimi"),
    Sample("OSError: [Errno 28] No space left on device", "out-of-space"),
    Sample(
        "node:7:9 [0] shm.cc:77 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Ab (size 5244128), "
        "error: No space left on device (28)",
        "out-of-space",
        fix="--shm-size",
    ),
    Sample("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", "checkpoint-damaged"),
    Sample("Exception: InvalidHeaderDeserialization", "checkpoint-damaged"),
    Sample(
        "AssertionError: Attempted to load weight (torch.Size([192, 4])) into parameter (torch.Size([256, 4]))",
        "checkpoint-mismatch",
        "torch.Size([192, 4])",
    ),
    Sample(
        "ValueError: MTP speculative decoding layer 78 weights missing from checkpoint. The checkpoint may have been "
        "quantized without including the MTP layers.",
        "checkpoint-mismatch",
        "78",
        "speculative-config",
    ),
    Sample(
        "ValueError: The output_size of gate's and up's weight = 192 is not divisible by weight quantization block_n = "
        "128.",
        "tensor-parallel-invalid",
        "128 do not divide the 192",
        "parallel.expert=true",
    ),
    Sample(
        "ValueError: NvFp4 MoE backend 'FLASHINFER_TRTLLM' does not support the deployment configuration since kernel "
        "does not support current device cuda.",
        "moe-backend-invalid",
        "FLASHINFER_TRTLLM",
    ),
    Sample("NotImplementedError: No NvFp4 MoE backend supports the deployment configuration.", "moe-backend-invalid"),
    Sample(
        "ValueError: FlashInfer-CUTLASS MoE kernel does not support current device sm_120",
        "moe-backend-invalid",
        "sm_120",
    ),
    Sample("RuntimeError: No compiled cutlass_scaled_mm for CUDA device capability: 120", "no-kernel-for-gpu"),
    Sample("RuntimeError: CUDA error: no kernel image is available for execution on the device", "no-kernel-for-gpu"),
    Sample(
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12040).", "driver-too-old", "12040"
    ),
    Sample("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", "driver-too-old", fix="580"),
    Sample(
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "nccl-failed",
        "unhandled system error",
        "NCCL_GRAPH_FILE",
        retryable=True,
    ),
    Sample(
        "node:7:9 [0] enqueue.cc:99 NCCL WARN Failed to CUDA calloc 10485760 bytes",
        "nccl-failed",
        "10485760",
        retryable=True,
    ),
    Sample(
        "ValueError: Free memory on device cuda:3 (0.41/94.97 GiB) on startup is less than desired GPU memory "
        "utilization (0.93, 88.32 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
        "gpu-memory-held",
        "cuda:3 has only 0.41 of 94.97 GiB",
        "kdeploy gpus",
        retryable=True,
    ),
    Sample(
        "ValueError: Free memory on device (0.41/94.97 GiB) on startup. Desired GPU memory utilization is (0.93, 88.32 "
        "GiB).",
        "gpu-memory-held",
        "0.41 of 94.97",
        retryable=True,
    ),
    Sample(
        "AssertionError: Error in memory profiling. Initial free memory 82.94 GiB, current free memory 90.17 GiB. This "
        "happens when other processes sharing the same container release GPU memory while vLLM is profiling",
        "gpu-memory-held",
        "82.94 GiB before, 90.17 GiB after",
        retryable=True,
    ),
    Sample(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 136.00 MiB. GPU 0 has a total capacity of 22.36 "
        "GiB of which 120.88 MiB is free.",
        "cuda-out-of-memory",
    ),
    Sample("Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization", "cuda-out-of-memory"),
    Sample(
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try "
        "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.",
        "cuda-out-of-memory",
        fix="max-num-seqs",
    ),
    Sample(
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine.",
        "kv-cache-too-small",
    ),
    Sample(
        "ValueError: To serve at least one request with the model's max seq len (131072), (9.15 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (6.14 GiB). Based on the available memory, the "
        "estimated maximum model length is 88064. Try increasing `gpu_memory_utilization`",
        "kv-cache-too-small",
        "131072 tokens needs 9.15 GiB of KV cache, and 6.14 GiB are left",
        "serve.max_model_len=88064",
    ),
    Sample(
        "ValueError: To serve at least one request with the model's max seq len (131072), (9.15 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (0.01 GiB). Try increasing "
        "`gpu_memory_utilization`",
        "kv-cache-too-small",
        "0.01 GiB are left",
    ),
    Sample(
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored "
        "in KV cache (88064). Try increasing `gpu_memory_utilization`",
        "kv-cache-too-small",
        "131072",
        "serve.max_model_len=88064",
    ),
    Sample(
        "ValueError: Selected backend AttentionBackendEnum.FLASHMLA is not valid for this configuration. Reason: "
        "['capability not supported']",
        "attention-backend-invalid",
        "FLASHMLA",
    ),
    Sample(
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=5). Reasons: {}",
        "attention-backend-invalid",
    ),
    Sample(
        "AssertionError: Decode Context Parallelism (DCP) requires attention implementations to return the softmax LSE "
        "during decode, but FlashInferMLASparseImpl does not. Try a different backend by setting --attention-backend",
        "attention-backend-invalid",
        "FlashInferMLASparseImpl",
        "parallel.decode_context=1",
    ),
    Sample(
        "ValueError: attention_backend and attention_config.backend are mutually exclusive",
        "bad-arguments",
        fix="--set args.attention-backend=null",
    ),
    Sample(
        "(EngineCore pid=9) ERROR 12-01 10:00:00 [multiproc_executor.py:381] Worker proc VllmWorker-1 died "
        "unexpectedly (exit code: -9), shutting down executor.",
        "worker-died",
        "VllmWorker-1 died unexpectedly with exit code -9",
        "OOM killer",
        retryable=True,
    ),
    Sample(
        "(EngineCore pid=9) ERROR 12-01 10:00:00 [multiproc_executor.py:381] Worker proc VllmWorker-1 died "
        "unexpectedly (exit code: None), shutting down executor.",
        "worker-died",
        "VllmWorker-1",
        retryable=True,
    ),
    Sample(
        "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by slow weight "
        "loading for large models. Waited 600s (configured by VLLM_ENGINE_READY_TIMEOUT_S).",
        "stalled",
        "600 s",
        "VLLM_ENGINE_READY_TIMEOUT_S",
        retryable=True,
    ),
]
by_text = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.cause}-{SAMPLES.index(sample)}")


def read(*lines: str) -> tuple[Trouble, LogReader]:
    """As the supervisor does it: through the reader, so that a line which it passes over cannot count."""
    reader = LogReader()
    sightings = reader.feed("\n".join(lines).encode() + b"\n") + reader.finish()
    trouble = Trouble(entries())
    for sighting in sightings:
        if sighting.kind == "trouble":
            trouble.append(sighting.data["line"])
    return trouble, reader


def diagnosis_of(
    *lines: str, exit_code: int | None = 1, signal: str | None = None, context: Context | None = None
) -> dict[str, Any]:
    trouble, reader = read(*lines)
    return diagnose(trouble, exit_code=exit_code, signal=signal, tail=reader.tail(), context=context or Context())


def entry_for(text: str) -> Entry | None:
    return look_up(text, entries())[0]


@by_text
def test_a_known_failure_is_named_with_its_numbers_and_the_next_step(sample: Sample) -> None:
    found = diagnosis_of("before it", sample.text, "after it")
    assert found["cause"] == sample.cause
    assert sample.told in found["summary"]
    assert any(sample.fix in fix for fix in found["fix"])
    assert found["retryable"] is sample.retryable
    assert found["evidence"] == [{"line": 2, "text": sample.text.strip()[:500]}]
    assert set(found) >= {"cause", "summary", "evidence", "fix", "retryable"}
    for words in (found["summary"], *found["fix"]):
        assert not re.search(r"\{\d\}|\{\{", words), "a placeholder was left"


@by_text
@pytest.mark.parametrize("wrappers", [WRAPPERS, SERVER_GONE], ids=["while-loading", "while-serving"])
def test_a_closing_wrapper_never_hides_the_root(sample: Sample, wrappers: list[str]) -> None:
    assert diagnosis_of(sample.text, *wrappers)["cause"] == sample.cause
    assert diagnosis_of(*wrappers, sample.text)["cause"] == sample.cause


@pytest.mark.parametrize("text", WRAPPERS + SERVER_GONE)
def test_a_wrapper_alone_is_no_cause(text: str) -> None:
    entry = entry_for(text)
    assert entry is not None
    assert entry.severity == WRAPPER
    found = diagnosis_of(text)
    assert found["cause"] == "engine-died"
    assert "log says" not in found["summary"]


def test_the_reason_in_every_ranks_prefixed_traceback_is_told_once_and_from_the_first() -> None:
    reason = "ValueError: Free memory on device cuda:{} (1.0/94.0 GiB) on startup is less than desired GPU memory"
    lines = [f"(Worker_TP{rank} pid={rank}) ERROR 12-01 10:00:00 [x.py:1] {reason.format(rank)}" for rank in range(8)]
    found = diagnosis_of(*lines, *WRAPPERS)
    assert "cuda:0" in found["summary"]
    assert found["evidence"] == [{"line": 1, "text": lines[0], "times": 8}]


# ---------------------------------------------------------------- what is not known


def test_an_unknown_death_shows_the_last_lines_and_the_last_exception_that_is_no_wrapper() -> None:
    lines = [f"line {number}" for number in range(50)]
    root = "AssertionError: the moon is not in the right phase"
    found = diagnosis_of(*lines[:20], root, *lines[20:], *WRAPPERS)
    assert found["cause"] == "engine-died"
    assert "code 1" in found["summary"]
    assert root in found["summary"]
    shown = [entry["text"] for entry in found["evidence"]]
    assert root in shown
    assert shown[-1] == WRAPPERS[-1]
    numbers = [entry["line"] for entry in found["evidence"]]
    assert numbers == sorted(set(numbers))
    assert found["fix"] == []
    assert found["retryable"] is True


def test_a_death_without_a_word_of_trouble_shows_what_was_said_last() -> None:
    found = diagnosis_of("a", "b", "c", "d", "e", exit_code=0)
    assert found["cause"] == "engine-died"
    assert "code 0" in found["summary"]
    assert [entry["text"] for entry in found["evidence"]] == ["b", "c", "d", "e"]


def test_an_empty_log_is_no_reason_to_fail() -> None:
    found = diagnosis_of("", exit_code=1)
    assert found["cause"] == "engine-died"
    assert found["evidence"] == []


def test_a_signal_that_was_not_ours_is_named() -> None:
    found = diagnosis_of("a", exit_code=None, signal="SIGKILL")
    assert found["cause"] == "engine-died"
    assert "SIGKILL" in found["summary"]


def test_an_exit_code_that_nobody_saw_is_said_to_be_unknown() -> None:
    assert "not known" in diagnosis_of("a", exit_code=None)["summary"]


def test_exit_code_2_is_a_refused_command_line_even_without_its_words() -> None:
    found = diagnosis_of("usage: vllm serve [model_tag] [options]", exit_code=2)
    assert found["cause"] == "bad-arguments"
    assert found["retryable"] is False


def test_texts_with_braces_are_shown_as_they_are() -> None:
    found = diagnosis_of("vllm: error: unrecognized arguments: --foo {0} {x} {{}}")
    assert "--foo {0} {x} {{}}" in found["summary"]


def test_evidence_is_bounded() -> None:
    found = diagnosis_of("RuntimeError: " + "x" * 100_000)
    assert all(len(entry["text"]) <= 500 for entry in found["evidence"])
    assert len(found["summary"]) < 500


# ---------------------------------------------------------------- which of several lines is the reason


def worker(rank: int, text: str) -> str:
    return f"(Worker_TP{rank} pid={100 + rank}) ERROR 12-01 10:00:00 [multiproc_executor.py:953] {text}"


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 136.00 MiB. GPU {} has a total capacity of 22.36 "
    "GiB of which 120.88 MiB is free."
)
NCCL = "RuntimeError: NCCL error: remote process exited or there was a network error"
EIGHT = Context(ranks=8, gpus=(0, 1, 2, 5, 6, 7, 8, 9))


def test_what_follows_another_failure_is_not_the_reason_even_when_it_stands_first() -> None:
    found = diagnosis_of(worker(0, NCCL), worker(1, NCCL), worker(3, OOM.format(3)), context=EIGHT)
    assert found["cause"] == "cuda-out-of-memory"
    assert found["evidence"][0]["line"] == 3


def test_one_rank_of_eight_makes_its_gpu_suspect_and_all_of_them_the_configuration() -> None:
    one = diagnosis_of(worker(3, OOM.format(0)), context=EIGHT)
    assert one["summary"].endswith("only rank 3 of 8 says so: suspect GPU 5")
    everybody = diagnosis_of(*(worker(rank, OOM.format(0)) for rank in range(8)), context=EIGHT)
    assert everybody["summary"].endswith("all 8 ranks say so: suspect the configuration or the version")
    unknown = diagnosis_of(worker(2, "ZeroDivisionError: division by zero"), context=EIGHT)
    assert unknown["cause"] == "engine-died"
    assert "only rank 2 of 8" in unknown["summary"]
    configuration = diagnosis_of(worker(2, "KeyError: 'layers.3.mlp.up.qweight'"), context=EIGHT)
    assert "suspect" not in configuration["summary"]


def test_the_deepest_process_is_trusted_first_and_within_it_the_earliest_line() -> None:
    lines = (
        "(APIServer pid=1) ERROR 12-01 10:00:00 [a.py:1] ValueError: No available memory for the cache blocks.",
        "(EngineCore_DP0 pid=2) ERROR 12-01 10:00:00 [a.py:1] RuntimeError: odd",
        "(APIServer pid=1) (EngineCore_DP0 pid=2) (Worker_TP5 pid=3) ERROR 12-01 10:00:00 [a.py:1] "
        "SafetensorError: HeaderTooLarge",
        worker(5, "AssertionError: Attempted to load weight (a) into parameter (b)"),
    )
    assert diagnosis_of(*lines)["entry"] == "safetensors-header"
    assert diagnosis_of(*lines)["evidence"][0]["line"] == 3


def test_what_was_said_while_it_loaded_is_no_reason_once_it_has_served() -> None:
    loading = worker(0, "RuntimeError: No compiled cutlass_scaled_mm for CUDA device capability: 120")
    ready = "(APIServer pid=1) INFO:     Application startup complete."
    trouble, reader = read(loading, ready, worker(1, OOM.format(1)))
    context = Context(serving_since=reader.serving_since)
    assert diagnose(trouble, exit_code=0, signal=None, tail=[], context=context)["cause"] == "cuda-out-of-memory"
    assert reader.serving_since == 2


def test_ranks_and_share_are_read_from_the_log() -> None:
    _, reader = read(
        "(APIServer pid=8) INFO 12-01 04:27:29 [x.py:286] non-default args: {'gpu_memory_utilization': 0.93}",
        "(EngineCore pid=9) INFO 12-01 04:27:35 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
        "load_format=auto, tensor_parallel_size=4, pipeline_parallel_size=2, data_parallel_size=1",
    )
    assert (reader.ranks, reader.utilization) == (8, 0.93)


def test_trouble_of_any_length_is_held_in_bounded_memory_with_its_beginning_and_its_end() -> None:
    words = [f"ValueError: {'x' * (number % 1500)}{chr(97 + number % 26)}" for number in range(3_000)]
    trouble, _ = read(*words, worker(0, OOM.format(0)))
    told = trouble.all()
    assert len(told) <= 512
    assert told[0].line.number == 1
    assert told[-1].entry is not None


# ---------------------------------------------------------------- every entry, by its own sample


@pytest.mark.parametrize("entry", samples(), ids=lambda pair: pair[0])
def test_an_entry_knows_its_own_sample_and_no_more_specific_one_does(entry: tuple[str, str, str]) -> None:
    name, severity, sample = entry
    trouble, reader = read(*sample.rstrip("\n").split("\n"))
    found = explain(trouble, tail=reader.tail())
    if severity in (BENIGN, SYMPTOM):
        assert found is None
        assert any(known is not None and known.id == name for line in sample.splitlines() if (known := entry_for(line)))
        assert reader.waits == (severity == SYMPTOM)
    elif severity == WRAPPER:
        assert {told.entry.id for told in trouble.all() if told.entry} == {name}
    else:
        assert found is not None
        assert found["entry"] == name
        for words in (found["summary"], *found["fix"], *found["settings"]):
            assert not re.search(r"\{\d\}|\{\{", words), "a placeholder was left"


# ---------------------------------------------------------------- settings that mend it


def test_a_share_is_lowered_by_what_was_missing_once_the_kv_cache_was_taken() -> None:
    context = Context(utilization=0.98, kv_cache_taken=True)
    assert diagnosis_of(OOM.format(0), context=context)["settings"] == ["serve.gpu_memory_utilization=0.96"]
    assert diagnosis_of(OOM.format(0), context=Context(utilization=0.98))["settings"] == []


def test_a_share_is_lowered_to_what_is_free_unless_nearly_nothing_is() -> None:
    text = "ValueError: Free memory on device cuda:0 ({}/94.97 GiB) on startup is less than desired GPU memory "
    text += "utilization (0.93, 88.32 GiB). Decrease"
    found = diagnosis_of(text.format("85.00"))
    assert found["settings"] == ["serve.gpu_memory_utilization=0.88"]
    assert found["fix"][0] == "--set serve.gpu_memory_utilization=0.88"
    assert diagnosis_of(text.format("0.41"))["settings"] == []


@pytest.mark.parametrize(
    ("refused", "settings"),
    [
        ("--enable-reasoning", ["args.enable-reasoning=null"]),
        ("--disable_log_requests", ["args.disable-log-requests=null", "args.enable-log-requests=false"]),
        ("--cuda-graph-sizes 8", ["args.cuda-graph-sizes=null", "args.cudagraph-capture-sizes=8"]),
        ("--foo 3", []),
        ("--enable-reasoning --foo", []),
    ],
)
def test_a_retired_flag_gets_its_new_name_and_an_unknown_one_no_guess(refused: str, settings: list[str]) -> None:
    assert diagnosis_of(f"vllm: error: unrecognized arguments: {refused}")["settings"] == settings


def test_half_the_requests_are_tried_when_the_sampler_ran_out_of_memory() -> None:
    text = "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests."
    assert diagnosis_of(text)["settings"] == ["args.max-num-seqs=512"]
